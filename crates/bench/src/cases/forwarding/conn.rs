// SPDX-License-Identifier: Apache-2.0
//! `conn`: packets of tracked and of translated connections on one core, beside Open vSwitch and the kernel.
//!
//! ```text
//!   net_null + traffic -> netvm's worker: table of connections, rules, or a router with NAT -> a null port
//! ```
//!
//! Frames of 64 bytes, FCS included. Rates are packets per second of the forwarding thread's CPU time.
//!
//! - `stateless-N`: a rule forwards from one port to the other; both ends of N UDP connections send by the first port.
//! - `track-N`: the same with `track = true` and rules for `new` and `established`. Measured when all N connections
//!   have had an answer.
//! - `ovs-ct-N`: the same by Open vSwitch with DPDK: `ct(table=1)`, `ct(commit)` for `+new`, and output for `+est`.
//! - `new`: every other packet is of 10,000 such connections, the others open and close TCP connections (`new packets`
//!   is the sum). `new` counts connections that began, `new ended` those that ended; `new lost` is how many of the
//!   10,000 ended. The table is full, and each new connection ends a closed one. `ovs-ct-new`: the same, by packets
//!   sent.
//! - `router-N`, `nat44-N`, `nft-N`: see [`nat`].
//! - `workers-1`, `workers-2`: two sources, each with 5,000 tracked connections to a sink; packets that arrive per
//!   second of wall-clock time, as in `workers`. `nat44-workers-N`: the same, and their sources are translated.
//! - `memory`: resident memory of a table that is full, per connection.

mod nat;
mod tracking;

use crate::cli::ConnArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::peers::ovs::{self, PortKinds, Setup};
use crate::setup::traffic::{Traffic, Turns};

/// Connections that stay while others open and close.
const ESTABLISHED: u64 = 10_000;
/// Open vSwitch's flows.
const OVS_FLOWS: [&str; 3] = [
    "table=0,priority=1,ct_state=-trk,ip,actions=ct(table=1)",
    "table=1,priority=1,ct_state=+trk+new,ip,actions=ct(commit),output:2",
    "table=1,priority=1,ct_state=+trk+est,ip,actions=output:2",
];

/// The cases that were asked for.
#[derive(Default)]
struct Cases<'a> {
    only: &'a [String],
    subjects: Vec<Subject<'a>>,
    comparisons: Vec<Comparison>,
}

impl<'a> Cases<'a> {
    /// Adds a case, whose function gets its name.
    fn add(&mut self, name: &str, measure: impl Fn(&str, &Plan) -> Measured + 'a) {
        if self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only)) {
            let own = name.to_owned();
            self.subjects.push(Subject::new(name, move |plan| measure(&own, plan)));
        }
    }

    /// Compares two cases, if both were asked for.
    fn compare(&mut self, ours: &str, other: &str) {
        self.comparisons.push(Comparison::new(ours, other));
    }
}

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &ConnArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    let sandbox = ovs::sandbox(args.bench.skip_peers)?;
    let sandbox = sandbox.as_deref();
    let mut cases = Cases { only: &args.only, ..Cases::default() };
    for count in args.counts() {
        let both_ways = Traffic::of_connections(count, Turns::BothWays);
        let named = |case: &str| format!("{case}-{count}");
        cases.add(&named("stateless"), move |name, plan| tracking::stateless(name, both_ways, cores, plan));
        cases.add(&named("track"), move |name, plan| tracking::track(name, count, cores, plan));
        cases.compare(&named("track"), &named("stateless"));
        if let Some(sandbox) = sandbox {
            cases.add(&named("ovs-ct"), move |name, plan| {
                let outcome = ovs::measure(sandbox, setup(&ovs_flows(), both_ways), cores, plan)?;
                Ok(vec![Figure::new(name, Unit::Mpps, outcome.mpps)])
            });
            cases.compare(&named("track"), &named("ovs-ct"));
        }
        nat::add(&mut cases, count as u32, cores, sandbox.is_some())?;
    }
    cases.add("new", move |name, plan| tracking::new(name, ESTABLISHED, cores, plan));
    if let Some(sandbox) = sandbox {
        cases.add("ovs-ct-new", move |name, plan| ovs_new(name, sandbox, cores, plan));
        cases.compare("new", "ovs-ct-new");
    }
    for workers in [1, 2] {
        cases.add(&format!("workers-{workers}"), move |name, plan| {
            let host = tracking::two_sources(&[cores.engine, cores.nf][..workers], ESTABLISHED);
            tracking::workers(name, &host, ESTABLISHED, plan)
        });
        cases.add(&format!("nat44-workers-{workers}"), move |name, plan| {
            let host = nat::two_sources(&[cores.engine, cores.nf][..workers], ESTABLISHED);
            tracking::workers(name, &host, ESTABLISHED, plan)
        });
    }
    cases.compare("workers-2", "workers-1");
    cases.compare("nat44-workers-2", "nat44-workers-1");
    let memory = args.memory();
    cases.add("memory", move |name, _| tracking::memory(name, memory, cores));
    alternate(&args.bench.plan(), &mut cases.subjects, &cases.comparisons)
}

fn ovs_flows() -> [String; 3] {
    OVS_FLOWS.map(str::to_owned)
}

/// Open vSwitch between null ports, with tracking.
fn setup(flows: &[String], traffic: Traffic) -> Setup<'_> {
    Setup { flows, signature_cache: false, tracks: true, ends: PortKinds::Null(traffic) }
}

/// Connections that open and close beside others.
fn ovs_new(name: &str, sandbox: &std::path::Path, cores: Cores, plan: &Plan) -> Measured {
    let traffic = Traffic::of_connections(ESTABLISHED, Turns::BesideNew);
    let outcome = ovs::measure(sandbox, setup(&ovs_flows(), traffic), cores, plan)?;
    Ok(vec![
        Figure::new(name, Unit::MillionPerSecond, outcome.mpps / (2 * Turns::STEPS) as f64),
        Figure::new(format!("{name} packets"), Unit::Mpps, outcome.mpps),
        Figure::new(format!("{name} dropped"), Unit::Percent, outcome.dropped_percent),
    ])
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_quick_run_is_small_unless_told() {
        let args = |line: &str| {
            let words = ["netvm-bench", "conn"].into_iter().chain(line.split_whitespace());
            match crate::cli::Cli::try_parse_from(words).unwrap().command {
                crate::cli::Bench::Conn(args) => args,
                other => panic!("{other:?}"),
            }
        };
        let quick = args("--quick");
        assert_eq!((quick.counts(), quick.memory()), (vec![1, 10_000], 1_000_000));
        assert_eq!(args("").counts().last(), Some(&1_000_000));
        let chosen = args("--quick --connections 7 --memory 9");
        assert_eq!((chosen.counts(), chosen.memory()), (vec![7], 9));
    }

    #[test]
    fn only_chosen_cases_are_added() {
        let only = ["track".to_owned(), "ovs-ct-10".to_owned()];
        let runs = std::cell::RefCell::new(Vec::new());
        let mut cases = Cases { only: &only, ..Cases::default() };
        for name in ["stateless-1", "track-1", "ovs-ct-1", "ovs-ct-100", "memory"] {
            cases.add(name, |name, _| {
                runs.borrow_mut().push(name.to_owned());
                Ok(Vec::new())
            });
        }
        let [warm_up, window] = [std::time::Duration::ZERO; 2];
        let plan = Plan { runs: 1, warm_up, window, limit: None };
        alternate(&plan, &mut cases.subjects, &[]).unwrap();
        assert_eq!(*runs.borrow(), ["track-1", "ovs-ct-100"]);
    }
}
