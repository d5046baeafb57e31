// SPDX-License-Identifier: Apache-2.0
//! A load balancer: spreads flows over roles and sets the hash that selects a role's replica.
//!
//! This NF selects the role, by weight ([`SelectBy`]). The engine and netlib select the replica, by the role's
//! `balance`: by eight bits of hash in the packet's descriptor, or by the occupancy of the replicas' rings (NetVM,
//! section 5.5: steering by load).
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

/// Most targets: each has a counter.
pub const MAX_TARGETS: usize = MAX_COUNTERS - COUNTERS.len();

/// Spread flows over roles, by weight, and over the replicas of each role
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// A target role and its weight, 1 to 100; repeat for several: --to web=3 --to api=1
    #[arg(long, value_name = "ROLE[=WEIGHT]", required = true)]
    pub to: Vec<Target>,
    /// How to select a packet's role and replica
    #[arg(long, value_enum, default_value_t)]
    pub by: SelectBy,
    /// Action for packets to a role that does not exist
    #[arg(long, value_enum, default_value_t)]
    pub fallback: Fallback,
    /// Action for packets without a flow, such as ARP: drop, next or port:NAME
    #[arg(long, value_name = "drop|next|port:NAME", default_value_t)]
    pub other: Other,
    /// Size of the flow table of --by sticky; when it is full, the longest silent flow is evicted
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// Idle timeout of a flow of --by sticky in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,
    /// Key of the hash, for load balancers that must select alike [default: random]
    #[arg(long, value_name = "N")]
    pub key: Option<u64>,
    /// Action for packets with truncated or inconsistent headers
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

/// How a packet's role and replica are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum SelectBy {
    /// By the hash of the flow, the same for both directions
    #[default]
    Hash,
    /// By the hash of a flow's first packet; later packets follow it, even if roles change
    Sticky,
    /// Rotate roles packet by packet, and select the replica whose ring holds the fewest packets
    Least,
}

/// Action for packets to a role that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum Fallback {
    /// Drop them
    #[default]
    Drop,
    /// Send them to the next hop
    Next,
    /// Spread them over the existing roles, by weight
    Others,
}

impl Args {
    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// [`Failure::Usage`] names the problem.
    pub fn check(&self) -> Result<(), Failure> {
        if self.to.len() > MAX_TARGETS {
            return Err(Failure::Usage("--to: too many roles; counters limit them to 25"));
        }
        let twice = self
            .to
            .iter()
            .enumerate()
            .any(|(n, target)| self.to[..n].iter().any(|other| other.role == target.role));
        if twice {
            return Err(Failure::Usage(
                "--to: a role is named twice: name it once, with the sum of the weights",
            ));
        }
        let own = self.common.options(NAME, &[]).role;
        if self.to.iter().any(|target| target.role == own) {
            return Err(Failure::Usage("--to: the load balancer's own role: packets would return for ever"));
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

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if the options are inconsistent or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let counters = args.counters();
    let names: Vec<_> = counters.iter().map(String::as_str).collect();
    let (hasher, flows) = (args.hasher(), Flows::new(args.flows as usize, args.timeout));
    run_nf(&args.common.options(NAME, &names), None, |context| {
        LoadBalancer::new(args.clone(), hasher.clone(), flows.clone(), context)
    })
}
