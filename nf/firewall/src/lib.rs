//! A packet filter: rules on the 5-tuple and the ingress port, the first that matches counts (the firewall of NetVM, section 5.1
//! of its paper), and, if asked for, return traffic by state.
#![forbid(unsafe_code)]

mod firewall;
mod rules;
mod states;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use netlib::Verdict;
use netvm_nf_common::{CommonArgs, Failure, Live, MalformedPolicy, run as run_nf};

pub use firewall::{COUNTERS, Firewall};
pub use rules::{Action, Endpoint, Protocol, Rule, Rules, Subject};
pub use states::States;

/// The program's name.
pub const NAME: &str = "netvm-firewall";

/// Allows and denies packets by the rules of a file; the first that matches counts.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Attaching and waiting.
    #[command(flatten)]
    pub common: CommonArgs,
    /// File of rules, one a line: allow|deny PROTOCOL from NET [port R] to NET [port R] [in PORT]; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,
    /// What becomes of packets that no rule matches
    #[arg(long, value_enum, default_value_t = Action::Deny)]
    pub default: Action,
    /// Allow what returns in flows that a rule has allowed
    #[arg(long)]
    pub stateful: bool,
    /// Seconds after which the state of a flow that has been silent is forgotten
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,
    /// Flows that are remembered at most: states of all threads, and decisions of each thread
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// What becomes of ARP and IPv6 neighbour discovery, which hosts need to find each other
    #[arg(long, value_enum, default_value_t = Passing::Pass)]
    pub neighbours: Passing,
    /// What becomes of other packets that are not IP
    #[arg(long, value_enum, default_value_t = Passing::Drop)]
    pub other: Passing,
    /// What becomes of packets whose headers are cut or contradict themselves
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

/// What becomes of packets that are not for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Passing {
    /// They go to the next hop.
    Pass,
    /// They are discarded.
    Drop,
}

impl Passing {
    pub(crate) const fn verdict(self) -> Verdict {
        match self {
            Self::Pass => Verdict::Next,
            Self::Drop => Verdict::Drop,
        }
    }
}

/// Runs the NF until it is told to end.
///
/// # Errors
/// [`Failure`] when the rules cannot be used, or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    let path = args.rules.clone();
    let rules = Live::new(move || Rules::read(&path))?;
    let states = args.stateful.then(|| States::new(args.flows as usize, args.timeout));
    let options = args.common.options(NAME, &COUNTERS);
    run_nf(&options, Some(rules.request()), |context| {
        Firewall::new(args.clone(), rules.view(), states.clone(), context)
    })
}
