// SPDX-License-Identifier: Apache-2.0
//! The options of `conn`.

use clap::Args;

use super::BenchArgs;

/// Options of `conn`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ConnArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Numbers of established connections [default: 1,10000,100000,1000000; with --quick: 1,10000]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub connections: Vec<u64>,
    /// Connections of `memory` [default: 10000000; with --quick: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub memory: Option<u32>,
    /// Run only cases whose names begin with one of these, such as `track,ovs-ct-10000` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}

impl ConnArgs {
    /// The numbers of connections.
    pub fn counts(&self) -> Vec<u64> {
        match self.connections.as_slice() {
            [] if self.bench.quick => vec![1, 10_000],
            [] => vec![1, 10_000, 100_000, 1_000_000],
            chosen => chosen.to_vec(),
        }
    }

    /// Connections of the case `memory`.
    pub fn memory(&self) -> u32 {
        self.memory.unwrap_or(if self.bench.quick { 1_000_000 } else { 10_000_000 })
    }
}
