// SPDX-License-Identifier: Apache-2.0
//! Options of `switching`.

use clap::{Args, ValueEnum};

use super::BenchArgs;

/// What switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SwitchKind {
    /// netvm
    Netvm,
    /// Open vSwitch with its DPDK datapath
    Ovs,
    /// DPDK's testpmd, which copies without looking at packets
    Testpmd,
    /// The kernel's bridge, with nft
    Bridge,
}

/// Options of `switching`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct SwitchingArgs {
    /// What switches
    #[arg(long, value_enum)]
    pub switch: SwitchKind,
    /// Bytes of a frame, FCS included
    #[arg(long, value_parser = clap::value_parser!(u16).range(64..=1518), default_value = "64")]
    pub size: u16,
    /// Drop rules that no packet matches
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=10_000), default_value = "0")]
    pub rules: u16,
    /// Flows
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 24), default_value = "1000")]
    pub flows: u64,
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
}
