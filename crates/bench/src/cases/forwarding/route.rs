// SPDX-License-Identifier: Apache-2.0
//! `route`: longest-prefix match in netvm's tables and in DPDK's `rte_fib` and `rte_fib6` with the same routes.
//!
//! One core looks up bursts of 64 addresses of a list of 2^20:
//!
//! - `…-v4-full`, `…-v6-full`: a full Internet table; a random address of a uniformly chosen route;
//! - `…-v4-anywhere`: the same table; addresses anywhere in IPv4, many without a route or with a short one;
//! - `…-v4-few`, `…-v6-few`: 16 routes.
//!
//! `fib-…` is `rte_fib`'s default lookup with vectors as wide as netvm's (512 bits where the processor has them and
//! `NETVM_CPU` does not forbid it), `fib-scalar-…` its scalar lookup. Its tables use
//! 4 KiB pages, netvm's huge pages if the kernel provides them. Before the measurement, both must give the same result
//! for all addresses. Then packets pass an engine (`engine`).

pub(super) mod engine;
pub(super) mod interfaces;

use std::path::PathBuf;
use std::time::Duration;

use netvm_router::Tables;

use crate::cli::{RouteArgs, RoutePart};
use crate::error::BenchError;
use crate::machine::{pin, thread_time};
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::peers::fib::{self, FibSpec, Lookup, patterns};
use crate::setup::routes::{Addresses, IpFamily, Pattern, RouteTable, Size};

const TABLES: [(IpFamily, Size); 4] = [
    (IpFamily::V4, Size::Full),
    (IpFamily::V6, Size::Full),
    (IpFamily::V4, Size::Few),
    (IpFamily::V6, Size::Few),
];

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &RouteArgs) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    if args.only != Some(RoutePart::Engine) {
        rows.extend(tables(args)?);
    }
    if args.only != Some(RoutePart::Tables) {
        rows.extend(engine::measure(args)?);
    }
    Ok(rows)
}

/// Each of the parts may take its share of the time.
fn plan_of(args: &RouteArgs) -> Plan {
    let plan = args.bench.plan();
    let parts = if args.only.is_none() { 2 } else { 1 };
    Plan { limit: plan.limit.map(|limit| limit / parts), ..plan }
}

fn tables(args: &RouteArgs) -> Result<Vec<Row>, BenchError> {
    let core = args.bench.cores()?.engine;
    let mut subjects = Vec::new();
    let mut comparisons = Vec::new();
    if args.bench.skip_peers {
        eprintln!("skipping peers (--skip-peers)");
    }
    for (family, size) in TABLES {
        let routes = args.routes.clone();
        let name = format!("netvm-{}", table_name(family, size));
        subjects.push(Subject::new(name, move |plan| {
            netvm_lookups(core, Table { family, size }, routes.clone(), plan)
        }));
        if args.bench.skip_peers {
            continue;
        }
        let routes = args.routes.clone();
        let name = format!("fib-{}", table_name(family, size));
        subjects.push(Subject::new(name, move |plan| {
            let spec = FibSpec::new(core, family, size, plan).with_routes(routes.clone());
            fib_lookups(&spec, Table { family, size })
        }));
        for pattern in patterns(family, size) {
            let case = case_name(family, size, *pattern);
            for other in ["fib", "fib-scalar"] {
                comparisons.push(Comparison::new(format!("netvm-{case}"), format!("{other}-{case}")));
            }
        }
    }
    alternate(&plan_of(args), &mut subjects, &comparisons)
}

fn table_name(family: IpFamily, size: Size) -> &'static str {
    match (family, size) {
        (IpFamily::V4, Size::Full) => "v4-full",
        (IpFamily::V4, Size::Few) => "v4-few",
        (IpFamily::V6, Size::Full) => "v6-full",
        (IpFamily::V6, Size::Few) => "v6-few",
    }
}

fn case_name(family: IpFamily, size: Size, pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Routes => table_name(family, size),
        Pattern::Anywhere => "v4-anywhere",
    }
}

/// A table.
#[derive(Clone, Copy)]
struct Table {
    family: IpFamily,
    size: Size,
}

fn netvm_lookups(core: u32, of: Table, routes: Option<PathBuf>, plan: &Plan) -> Measured {
    let (plan, Table { family, size }) = (*plan, of);
    // In a separate thread, because the thread pins itself to the core.
    let thread = std::thread::spawn(move || {
        pin(core).map_err(BenchError::system(format!("cannot pin a thread to core {core}")))?;
        let table = RouteTable::load(family, size, routes.as_deref())?;
        let update = table.update();
        let start = thread_time();
        let mut tables = Tables::new();
        tables.apply(&update);
        let seconds = (thread_time() - start).as_secs_f64();
        drop(update);
        let mut figures = Vec::new();
        for pattern in patterns(family, size) {
            let addresses = table.addresses(family, *pattern);
            rate(&tables, &addresses, plan.warm_up);
            let rate = rate(&tables, &addresses, plan.window) / 1e6;
            let name = format!("netvm-{}", case_name(family, size, *pattern));
            figures.push(Figure::new(name, Unit::MillionPerSecond, rate));
        }
        figures.extend(table_figures("netvm", of, tables.memory() as u64, seconds));
        Ok(figures)
    });
    thread.join().unwrap_or(Err(BenchError::Nothing { what: "look-ups".to_owned(), seconds: 0.0 }))
}

/// Lookups per second of the thread's CPU time.
fn rate(tables: &Tables, addresses: &Addresses, window: Duration) -> f64 {
    let start = thread_time();
    let mut lookups = 0;
    loop {
        addresses.pass(tables);
        lookups += addresses.len();
        let cpu_time = thread_time() - start;
        if cpu_time >= window {
            return lookups as f64 / cpu_time.as_secs_f64();
        }
    }
}

fn fib_lookups(spec: &FibSpec, of: Table) -> Measured {
    let outcome = fib::measure(spec)?;
    let mut figures = Vec::new();
    for (lookup, pattern, rate) in outcome.rates {
        let side = match lookup {
            Lookup::Scalar => "fib-scalar",
            Lookup::Default => "fib",
        };
        let name = format!("{side}-{}", case_name(of.family, of.size, pattern));
        figures.push(Figure::new(name, Unit::MillionPerSecond, rate / 1e6));
    }
    figures.extend(table_figures("fib", of, outcome.memory, outcome.load_seconds));
    Ok(figures)
}

fn table_figures(side: &str, of: Table, memory: u64, seconds: f64) -> [Figure; 2] {
    let table = table_name(of.family, of.size);
    [
        Figure::new(format!("{side}-{table} memory"), Unit::Bytes, memory as f64),
        Figure::new(format!("{side}-{table} load"), Unit::Millis, seconds * 1e3),
    ]
}
