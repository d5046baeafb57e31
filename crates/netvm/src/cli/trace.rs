// SPDX-License-Identifier: Apache-2.0
//! `netvm trace`.

use clap::Args;
use netvm_api::LiveTraceRequest;

use crate::complete::{Names, names};

/// `netvm trace`.
#[derive(Debug, Args)]
pub struct LiveTraceArgs {
    /// End after N packets
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=LiveTraceRequest::MAX_PACKETS)
    )]
    pub count: u64,
    /// End after N seconds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=LiveTraceRequest::MAX_SECONDS)
    )]
    pub seconds: u64,
    /// Follow only packets that this port receives
    #[arg(long, value_name = "PORT", add = names(&[Names::Ports]))]
    pub from: Option<String>,
    /// Show each hop of a chain: meanwhile NFs return packets to the engine, and do not pass them on directly
    #[arg(long)]
    pub each_hop: bool,
    /// Follow only packets that this filter in libpcap's language accepts when a port receives them
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}
