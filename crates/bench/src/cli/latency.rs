// SPDX-License-Identifier: Apache-2.0
//! The options of `latency`.

use clap::Args;

use super::BenchArgs;

/// Options of `latency`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct LatencyArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Run only these cases, such as `netvm-vhost,ovs-vhost` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}
