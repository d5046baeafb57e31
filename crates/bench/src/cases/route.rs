//! `route`: longest-prefix match in netvm's tables, beside DPDK's `rte_fib` and `rte_fib6` with the same routes.
//!
//! One core looks up bursts of 64 addresses, of a list of 2^20, over and over:
//!
//! - `…-v4-full`, `…-v6-full`: the Internet's routes, each as likely as another, a random address in it;
//! - `…-v4-anywhere`: in the same table, addresses anywhere in IPv4's space, of which many have no route or a short one;
//! - `…-v4-few`, `…-v6-few`: 16 routes.
//!
//! `fib-…` is what `rte_fib` chooses by itself when it may use 512-bit vectors, `fib-scalar-…` its scalar look-up.
//! Its tables are in pages of 4 KiB, netvm's in huge ones where the kernel gives these on request. Before anything is
//! measured, both must lead all addresses the same way. Then come packets through an engine (`engine`).

mod engine;

use std::path::PathBuf;
use std::time::Duration;

use netvm_router::Tables;
use rustix::time::{ClockId, clock_gettime};

use crate::cli::{RouteArgs, RoutePart};
use crate::error::BenchError;
use crate::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::machine::pin;
use crate::peers::fib::{self, FibSpec, Lookup, patterns};
use crate::report::{Row, Unit};
use crate::routes::{Addresses, IpFamily, Pattern, RouteTable, Size};

const TABLES: [(IpFamily, Size); 4] = [
    (IpFamily::V4, Size::Full),
    (IpFamily::V6, Size::Full),
    (IpFamily::V4, Size::Few),
    (IpFamily::V6, Size::Few),
];

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
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

fn tables(args: &RouteArgs) -> Result<Vec<Row>, BenchError> {
    let core = args.bench.cores()?.engine;
    let mut subjects = Vec::new();
    let mut comparisons = Vec::new();
    if args.bench.skip_peers {
        eprintln!("comparisons left out, as --skip-peers says");
    }
    for (family, size) in TABLES {
        let routes = args.routes.clone();
        let name = format!("netvm-{}", table_name(family, size));
        subjects.push(Subject::new(name, move |plan| ours(core, family, size, routes.clone(), plan)));
        if args.bench.skip_peers {
            continue;
        }
        let routes = args.routes.clone();
        let name = format!("fib-{}", table_name(family, size));
        subjects.push(Subject::new(name, move |plan| {
            theirs(&FibSpec::new(core, family, size, routes.clone(), plan), family, size)
        }));
        for pattern in patterns(family, size) {
            let case = case_name(family, size, *pattern);
            for other in ["fib", "fib-scalar"] {
                comparisons.push(Comparison::new(format!("netvm-{case}"), format!("{other}-{case}")));
            }
        }
    }
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
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

fn ours(core: u32, family: IpFamily, size: Size, routes: Option<PathBuf>, plan: &Plan) -> Measured {
    let plan = *plan;
    // A thread of its own, as it binds itself to the core.
    let thread = std::thread::spawn(move || {
        pin(core).map_err(BenchError::system(format!("using core {core}")))?;
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
        figures.extend(table_figures("netvm", family, size, tables.memory() as u64, seconds));
        Ok(figures)
    });
    thread.join().unwrap_or(Err(BenchError::Nothing { what: "look-ups".to_owned(), seconds: 0.0 }))
}

/// Look-ups a second, of seconds in which the thread had its core.
fn rate(tables: &Tables, addresses: &Addresses, window: Duration) -> f64 {
    let start = thread_time();
    let mut lookups = 0;
    loop {
        addresses.pass(tables);
        lookups += addresses.len();
        let had = thread_time() - start;
        if had >= window {
            return lookups as f64 / had.as_secs_f64();
        }
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn theirs(spec: &FibSpec, family: IpFamily, size: Size) -> Measured {
    let outcome = fib::measure(spec)?;
    let mut figures = Vec::new();
    for (lookup, pattern, rate) in outcome.rates {
        let side = match lookup {
            Lookup::Scalar => "fib-scalar",
            Lookup::Default => "fib",
        };
        let name = format!("{side}-{}", case_name(family, size, pattern));
        figures.push(Figure::new(name, Unit::MillionPerSecond, rate / 1e6));
    }
    figures.extend(table_figures("fib", family, size, outcome.memory, outcome.load_seconds));
    Ok(figures)
}

fn table_figures(side: &str, family: IpFamily, size: Size, memory: u64, seconds: f64) -> [Figure; 2] {
    let table = table_name(family, size);
    [
        Figure::new(format!("{side}-{table} memory"), Unit::Bytes, memory as f64),
        Figure::new(format!("{side}-{table} load"), Unit::Millis, seconds * 1e3),
    ]
}
