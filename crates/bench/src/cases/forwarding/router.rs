// SPDX-License-Identifier: Apache-2.0
//! `router`: one core routes packets of 64 bytes to random destinations, with one route, several routes or a full
//! table.
//!
//! - `engine-N`: netvm's router alone, from one DPDK null port to another, so that receiving costs nothing. Packets per
//!   second of the worker's CPU time.
//! - `netvm-N`, `kernel-veth-N`, `kernel-macvlan-N`: the same router behind AF_XDP ports, and the kernel's routing in
//!   namespaces. In all of them, the sender of `routers` (see [`crate::studies::routers`]) on the other core sends as
//!   fast as it can. `… offered` is what it sent: if a router forwards about as much, the sender is the bottleneck.
//! - `grout-N`: grout (DPDK's graph router) with the same traffic from the same null port as `engine-N`, to a null
//!   port; also per second of its datapath thread's CPU time.
//! - `vpp-N`: VPP's nodes from Ethernet to the output, by its own counters: see [`crate::peers::vpp`].
//! - `kernel-N`: the kernel's routing with the same traffic, on one core: see [`crate::peers::kernel`].
//!
//! N is the number of routes, or `full` for the whole table.
//!
//! - `interfaces-N`: netvm's router alone with N interfaces, as `engine-N`: see [`interfaces`].

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;

use serde::Deserialize;

use super::route::engine::{self, RoutedTraffic};
use super::route::interfaces;
use crate::cli::{RouterArgs, RouterPart};
use crate::error::BenchError;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::peers::grout::Grout;
use crate::peers::kernel::{self, KernelSpec};
use crate::peers::vpp::{self, Vpp};
use crate::setup::routes::{ALL, IpFamily, RouteTable, Size, destinations};

/// A rate that the sender cannot reach, in packets per second.
const RATE: &str = "100000000";
/// Destinations of the traffic.
const DESTINATIONS: usize = 1 << 17;
/// Kinds of routers behind the sender (`routers --kind`).
const KINDS: [&str; 3] = ["netvm", "kernel-veth", "kernel-macvlan"];

/// The result that `routers` prints.
#[derive(Deserialize)]
struct Trial {
    offered: f64,
    received: f64,
}

/// A trial of `routers`.
struct Other<'a> {
    kind: &'static str,
    routes: u32,
    args: &'a RouterArgs,
}

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &RouterArgs) -> Result<Vec<Row>, BenchError> {
    let core = args.bench.cores()?.engine;
    let (mut subjects, mut comparisons) = (Vec::new(), Vec::new());
    if args.only != Some(RouterPart::Interfaces) {
        add_routes(args, core, &mut subjects, &mut comparisons)?;
    }
    if args.only != Some(RouterPart::Routes) {
        for count in &args.interfaces {
            let case = format!("interfaces-{count}");
            if let Some(first) = args.interfaces.first().filter(|first| *first != count) {
                comparisons.push(Comparison::new(case.clone(), format!("interfaces-{first}")));
            }
            let measure =
                move |plan: &Plan| interfaces::run(&format!("interfaces-{count}"), core, *count, plan);
            subjects.push(Subject::new(case, measure));
        }
    }
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
}

/// Adds the cases of routers with tables.
fn add_routes<'a>(
    args: &'a RouterArgs,
    core: u32,
    subjects: &mut Vec<Subject<'a>>,
    comparisons: &mut Vec<Comparison>,
) -> Result<(), BenchError> {
    let has_peers = !args.bench.skip_peers;
    if has_peers {
        Grout::find()?;
    }
    let name = |routes: u32| if routes == ALL { "full".to_owned() } else { routes.to_string() };
    let counts = args.route_counts();
    for &routes in &counts {
        let table = RouteTable::load(IpFamily::V4, Size::Full, args.prefixes.as_deref())?.some(routes);
        // The traffic's destinations must have a static lifetime.
        let to: &'static [u32] = destinations(&table, DESTINATIONS).leak();
        let update = engine::with_neighbours(table.update());
        let case = format!("engine-{}", name(routes));
        subjects.push(Subject::new(case.clone(), move |plan| {
            engine::run(&case, core, RoutedTraffic::new(&update, to), plan)
        }));
        if has_peers {
            let case = format!("kernel-{}", name(routes));
            comparisons.push(Comparison::new(format!("engine-{}", name(routes)), case.clone()));
            subjects.push(Subject::new(case.clone(), move |plan| {
                let spec = KernelSpec::new(core, routes, DESTINATIONS as u32, plan);
                let outcome = kernel::measure(&spec.with_prefixes(args.prefixes.clone()))?;
                Ok(vec![Figure::new(case.clone(), Unit::Mpps, outcome.rate / 1e6)])
            }));
            let cores = args.bench.cores()?;
            let table = Rc::new(table);
            if let Some(programs) = Vpp::find() {
                let (case, table) = (format!("vpp-{}", name(routes)), Rc::clone(&table));
                comparisons.push(Comparison::new(format!("engine-{}", name(routes)), case.clone()));
                subjects.push(Subject::new(case.clone(), move |plan| {
                    let cycles = Vpp::start(programs.clone(), &table, to, cores)?.measure(plan)?;
                    Ok(vec![
                        Figure::new(case.clone(), Unit::Mpps, vpp::rate_of(cycles)),
                        Figure::new(format!("{case} cycles"), Unit::CyclesPerPacket, cycles),
                    ])
                }));
            }
            let case = format!("grout-{}", name(routes));
            comparisons.push(Comparison::new(format!("engine-{}", name(routes)), case.clone()));
            subjects.push(Subject::new(case.clone(), move |plan| {
                let grout = Grout::start(&table, to, cores)?;
                Ok(vec![Figure::new(case.clone(), Unit::Mpps, grout.measure(plan)?)])
            }));
        }
        for kind in KINDS {
            if kind != KINDS[0] && !has_peers {
                continue;
            }
            let case = format!("{kind}-{}", name(routes));
            let other = Other { kind, routes, args };
            subjects.push(Subject::new(case.clone(), move |plan| other.measure(&case, plan)));
        }
        for kind in &KINDS[1..] {
            let n = name(routes);
            comparisons.push(Comparison::new(format!("netvm-{n}"), format!("{kind}-{n}")));
        }
        if let Some(first) = counts.first().filter(|first| **first != routes) {
            let [ours, first] = [routes, *first].map(|routes| format!("engine-{}", name(routes)));
            comparisons.push(Comparison::new(ours, first));
        }
    }
    Ok(())
}

impl Other<'_> {
    /// Runs `routers` in a separate process, because it enters new namespaces.
    fn measure(&self, case: &str, plan: &Plan) -> Measured {
        let failed = |problem: String| BenchError::Peer { peer: "netvm-bench routers", problem };
        let program = crate::machine::own_program()?;
        let cores = self.args.bench.cores()?;
        let mut command = Command::new(program);
        command.args(["routers", "--kind", self.kind, "--rate", RATE, "--size", "64"]);
        command.args(["--seconds", &plan.window.as_secs_f64().to_string()]);
        command.args(["--warm-up", &plan.warm_up.as_secs_f64().to_string()]);
        command.args(["--cores", &format!("{},{}", cores.nf, cores.engine)]);
        command.args(["--routes", &self.routes.to_string()]);
        command.args(self.args.prefixes.iter().flat_map(|path| [PathBuf::from("--prefixes"), path.clone()]));
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(BenchError::system("cannot run netvm-bench routers"))?;
        if !output.status.success() {
            return Err(failed(format!("{case}: {}", output.status)));
        }
        let trial: Result<Trial, io::Error> = serde_json::from_slice(&output.stdout).map_err(Into::into);
        let Trial { offered, received } = trial.map_err(|error| failed(format!("{case}: {error}")))?;
        Ok(vec![
            Figure::new(case, Unit::Mpps, received / 1e6),
            Figure::new(format!("{case} offered"), Unit::Mpps, offered / 1e6),
        ])
    }
}
