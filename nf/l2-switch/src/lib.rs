// SPDX-License-Identifier: Apache-2.0
//! A learning Ethernet switch.
//!
//! It learns the port of each station (source address) per VLAN and sends frames to known stations by their port.
//! Others it floods: each port gets a copy, or one port alone, see [`Args::flood_port`].
#![forbid(unsafe_code)]

mod frame;
mod switch;

use clap::Parser;
use netvm_nf_common::{CommonArgs, Failure, MalformedPolicy, run as run_nf};

pub use switch::{COUNTERS, Switch};

/// The program's name.
pub const NAME: &str = "netvm-l2-switch";

/// A learning Ethernet switch: sends frames to the port where their destination was last seen
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The switch's ports, at least two; frames from other ports are dropped
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', required = true)]
    pub ports: Vec<String>,
    /// The only port for frames with an unknown or group destination, such as an uplink [default: a copy to each port
    /// but the ingress port]
    #[arg(long, value_name = "PORT")]
    pub flood_port: Option<String>,
    /// Ageing time of a silent station in seconds (IEEE 802.1Q recommends 300)
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub age: u64,
    /// Size of the station table; when it is full, the longest silent station is evicted
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub stations: u32,
    /// Action for frames truncated in their addresses or tags
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

impl Args {
    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// [`Failure::Usage`] names the missing option.
    pub fn check(&self) -> Result<(), Failure> {
        if self.ports.len() < 2 {
            return Err(Failure::Usage("--ports: a switch needs at least two ports"));
        }
        Ok(())
    }
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if the options are inconsistent or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    run_nf(&args.common.options(NAME, &COUNTERS), None, |context| Switch::new(args.clone(), context))
}
