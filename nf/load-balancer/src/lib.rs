//! A load balancer: spreads flows over roles, and says by which hash a role's replicas are to be chosen.
//!
//! An NF names roles; which replica of a role gets a packet, the engine and netlib choose, as the role's `balance` says. So there
//! are two choices: that of the role is made here, by weight ([`By`]); that of the replica is made by the eight bits of hash
//! that the packet carries, or by the occupancy of the replicas' rings (NetVM, section 5.5: steering by load).
#![forbid(unsafe_code)]

mod balancer;
mod flows;
mod spread;
mod target;

use clap::{Parser, ValueEnum};
use netlib::MAX_COUNTERS;
use netvm_nf_common::{CommonArgs, Failure, MalformedPolicy, run as run_nf};
use netvm_wire::FlowHasher;

pub use balancer::{COUNTERS, LoadBalancer};
pub use flows::Flows;
pub use target::{Other, Target};

/// The program's name.
pub const NAME: &str = "netvm-load-balancer";

/// Targets that there can be: each has a counter.
pub const MAX_TARGETS: usize = MAX_COUNTERS - COUNTERS.len();

/// Spreads flows over roles, by weight, and over the replicas of each.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Attaching and waiting.
    #[command(flatten)]
    pub common: CommonArgs,
    /// A role that takes packets, and its weight, 1 to 100, if there are several: --to web=3 --to api=1
    #[arg(long, value_name = "ROLE[=WEIGHT]", required = true)]
    pub to: Vec<Target>,
    /// How a packet's role, and replica, is chosen
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// What becomes of packets for a role that is not there
    #[arg(long, value_enum, default_value_t)]
    pub fallback: Fallback,
    /// What becomes of packets that belong to no flow, such as ARP: drop, next or port:NAME
    #[arg(long, value_name = "drop|next|port:NAME", default_value_t)]
    pub other: Other,
    /// Flows that --by sticky remembers at most; beyond, the one that was silent for longest is forgotten
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// Seconds after which --by sticky forgets a flow that is silent
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,
    /// Key of the hash, for load balancers that must choose alike [default: a random one]
    #[arg(long, value_name = "N")]
    pub key: Option<u64>,
    /// What becomes of packets whose headers are cut or contradict themselves
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

/// How a packet's role and replica is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum By {
    /// By the hash of the flow, the same for both directions
    #[default]
    Hash,
    /// By the hash for a flow's first packet; the others follow it, also when roles come and go
    Sticky,
    /// Roles in turn, packet by packet, and of a role the replica whose ring holds the fewest packets
    Least,
}

/// What becomes of packets for a role that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum Fallback {
    /// They are discarded
    #[default]
    Drop,
    /// They go to the next hop
    Next,
    /// The roles that are there take them, by their weights
    Others,
}

impl Args {
    /// Whether the options fit together.
    ///
    /// # Errors
    /// [`Failure::Usage`] says what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        if self.to.len() > MAX_TARGETS {
            return Err(Failure::Usage("--to: more roles than there are counters for, 25"));
        }
        let twice = self
            .to
            .iter()
            .enumerate()
            .any(|(n, target)| self.to[..n].iter().any(|other| other.role == target.role));
        if twice {
            return Err(Failure::Usage("--to: a role is named twice: give it the sum of the weights once"));
        }
        let own = self.common.options(NAME, &[]).role;
        if self.to.iter().any(|target| target.role == own) {
            return Err(Failure::Usage(
                "--to: the load balancer's own role, to which packets would come back for ever",
            ));
        }
        Ok(())
    }

    /// Names of the counters: [`COUNTERS`], and one for each target.
    #[must_use]
    pub fn counters(&self) -> Vec<String> {
        let targets = self.to.iter().map(|target| format!("to-{}", target.role));
        COUNTERS.iter().map(|name| (*name).to_owned()).chain(targets).collect()
    }

    fn hasher(&self) -> FlowHasher {
        self.key.map_or_else(FlowHasher::new, FlowHasher::with_key)
    }
}

/// Runs the NF until it is told to end.
///
/// # Errors
/// [`Failure`] when the options do not fit together, or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let counters = args.counters();
    let names: Vec<_> = counters.iter().map(String::as_str).collect();
    let (hasher, flows) = (args.hasher(), Flows::new(args.flows as usize, args.timeout));
    run_nf(&args.common.options(NAME, &names), None, |context| {
        LoadBalancer::new(args.clone(), hasher.clone(), flows.clone(), context)
    })
}
