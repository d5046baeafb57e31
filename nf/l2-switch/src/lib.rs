//! A learning Ethernet switch.
//!
//! It learns behind which port a station is from the source addresses of its frames, for each VLAN, and sends frames to
//! stations that it knows out of their port. A packet has one verdict, so that a frame cannot leave by several ports: what a
//! switch floods goes to one port, see [`Args::flood_port`].
#![forbid(unsafe_code)]

mod frame;
mod switch;

use clap::Parser;
use netvm_nf_common::{CommonArgs, Failure, MalformedPolicy, run as run_nf};

pub use switch::{COUNTERS, Switch};

/// The program's name.
pub const NAME: &str = "netvm-l2-switch";

/// A learning Ethernet switch: sends frames out of the port behind which their destination was last seen.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Attaching and waiting.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The switch's ports, two or more; frames of other ports are discarded
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', required = true)]
    pub ports: Vec<String>,
    /// Where frames go whose destination is not known, or is a group [default, with two ports: the other one]
    #[arg(long, value_name = "PORT")]
    pub flood_port: Option<String>,
    /// Seconds after which a station that sends nothing is forgotten (IEEE 802.1Q recommends 300)
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub age: u64,
    /// Stations that are remembered at most; beyond, the one that was silent for longest is forgotten
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub stations: u32,
    /// What becomes of frames that are cut within their addresses or tags
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

impl Args {
    /// Whether the options fit together.
    ///
    /// # Errors
    /// [`Failure::Usage`] says what is missing.
    pub fn check(&self) -> Result<(), Failure> {
        if self.ports.len() < 2 {
            return Err(Failure::Usage("--ports: a switch needs two ports or more"));
        }
        if self.ports.len() > 2 && self.flood_port.is_none() {
            return Err(Failure::Usage(
                "--flood-port is needed with more than two ports: a frame cannot leave by several",
            ));
        }
        Ok(())
    }
}

/// Runs the NF until it is told to end.
///
/// # Errors
/// [`Failure`] when the options do not fit together, or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    run_nf(&args.common.options(NAME, &COUNTERS), None, |context| Switch::new(args.clone(), context))
}
