// SPDX-License-Identifier: Apache-2.0
//! A packet filter: the first matching rule on 5-tuple and ingress port decides (the firewall of NetVM, section 5.1 of
//! its paper); optionally stateful.
#![forbid(unsafe_code)]

mod firewall;
mod flow;
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

/// Allow and deny packets by the rules of a file; the first match decides
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// File of rules, one on each line: allow|deny|reject PROTOCOL from NET [port R] to NET [port R] [in PORT];
    /// reloaded on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,
    /// Action for packets that no rule matches
    #[arg(long, value_enum, default_value_t = Action::Deny)]
    pub default: Action,
    /// Allow the return traffic of allowed flows
    #[arg(long)]
    pub stateful: bool,
    /// Idle timeout of a flow's state in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,
    /// Size of the flow state table, and of each thread's decision cache
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// Action for ARP and IPv6 neighbour discovery, which hosts need to find each other
    #[arg(long, value_enum, default_value_t = DefaultPolicy::Pass)]
    pub neighbours: DefaultPolicy,
    /// Action for other non-IP packets
    #[arg(long, value_enum, default_value_t = DefaultPolicy::Drop)]
    pub other: DefaultPolicy,
    /// Action for packets with truncated or inconsistent headers
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

/// Action for packets that rules do not cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefaultPolicy {
    /// Send them to the next hop
    Pass,
    /// Drop them
    Drop,
}

impl DefaultPolicy {
    pub(crate) const fn verdict(self) -> Verdict {
        match self {
            Self::Pass => Verdict::Next,
            Self::Drop => Verdict::Drop,
        }
    }
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if the rules are wrong or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    let path = args.rules.clone();
    let rules = Live::new(move || Rules::read(&path))?;
    let states = args.stateful.then(|| States::new(args.flows as usize, args.timeout));
    let options = args.common.options(NAME, &COUNTERS);
    run_nf(&options, Some(rules.request()), |context| {
        Firewall::new(args.clone(), rules.view(), states.clone(), context)
    })
}
