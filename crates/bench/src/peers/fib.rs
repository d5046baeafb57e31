// SPDX-License-Identifier: Apache-2.0
//! DPDK's `rte_fib` and `rte_fib6` in a child process, as DPDK starts once per process (`peer/fib.c`).

use std::ffi::c_void;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use netvm_cpu::Level;
use netvm_router::{NextHopId, Tables};
use netvm_wire::IpNet;
use serde::{Deserialize, Serialize};

use super::run_itself;
use crate::error::BenchError;
use crate::machine::pin;
use crate::measure::harness::Plan;
use crate::setup::routes::{Addresses, IpFamily, Pattern, RouteTable, Size};

const NAME: &str = "rte_fib";

/// The measurement.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct FibSpec {
    /// The core that does the lookups.
    #[arg(long)]
    core: u32,
    #[arg(long, value_enum)]
    family: IpFamily,
    #[arg(long, value_enum)]
    size: Size,
    #[arg(long)]
    routes: Option<PathBuf>,
    #[arg(long)]
    warm_up_millis: u32,
    #[arg(long)]
    window_millis: u32,
}

/// The lookup of `rte_fib`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lookup {
    /// An address at a time.
    Scalar,
    /// The library's default, with 512-bit vectors allowed.
    Default,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Memory of the FIB and its RIB in bytes.
    pub memory: u64,
    /// CPU seconds to build it.
    pub load_seconds: f64,
    /// Lookups per second.
    pub rates: Vec<(Lookup, Pattern, f64)>,
}

impl FibSpec {
    /// A measurement on `core`.
    pub fn new(core: u32, family: IpFamily, size: Size, plan: &Plan) -> Self {
        let [warm_up_millis, window_millis] = [plan.warm_up, plan.window].map(|time| time.as_millis() as u32);
        Self { core, family, size, routes: None, warm_up_millis, window_millis }
    }

    /// With the routes of a file, if any.
    #[must_use]
    pub fn with_routes(mut self, routes: Option<PathBuf>) -> Self {
        self.routes = routes;
        self
    }

    fn arguments(&self) -> Vec<String> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let mut list = vec![
            "fib-peer".to_owned(),
            format!("--core={}", self.core),
            format!("--family={}", name(self.family.to_possible_value())),
            format!("--size={}", name(self.size.to_possible_value())),
            format!("--warm-up-millis={}", self.warm_up_millis),
            format!("--window-millis={}", self.window_millis),
        ];
        list.extend(self.routes.iter().map(|path| format!("--routes={}", path.display())));
        list
    }
}

/// Runs the comparison in a child process.
///
/// # Errors
/// [`BenchError::Peer`] with its message.
pub fn measure(spec: &FibSpec) -> Result<Outcome, BenchError> {
    run_itself(NAME, spec.arguments())
}

/// As in `peer/fib.h`.
#[repr(C)]
struct Route {
    address: [u8; 16],
    next_hop: u16,
    length: u8,
}

unsafe extern "C" {
    fn netvm_bench_fib_start(
        ipv6: u32,
        vector_bits: u32,
        routes: *const Route,
        count: u32,
        memory_bytes: *mut u64,
        load_seconds: *mut f64,
    ) -> i32;
    fn netvm_bench_fib_select(lookup: u32) -> i32;
    fn netvm_bench_fib_once(addresses: *const c_void, count: u32, next_hops: *mut u64) -> i32;
    fn netvm_bench_fib_measure(
        addresses: *const c_void,
        count: u32,
        millis: u32,
        lookups: *mut u64,
        seconds: *mut f64,
    ) -> i32;
}

/// The table; one per process.
struct Fib {
    memory: u64,
    load_seconds: f64,
}

impl Fib {
    /// Call once, before anything else of DPDK.
    fn start(family: IpFamily, routes: &[Route]) -> Result<Self, BenchError> {
        let ipv6 = u32::from(family == IpFamily::V6);
        let mut fib = Self { memory: 0, load_seconds: 0.0 };
        // SAFETY: the count of routes is right, and all pointers are valid during the call.
        let error = unsafe {
            netvm_bench_fib_start(
                ipv6,
                Level::current().vector_bits().into(),
                routes.as_ptr(),
                routes.len() as u32,
                &raw mut fib.memory,
                &raw mut fib.load_seconds,
            )
        };
        checked(error)?;
        Ok(fib)
    }

    fn select(&self, lookup: Lookup) -> Result<(), BenchError> {
        let lookup = match lookup {
            Lookup::Scalar => 0,
            Lookup::Default => 1,
        };
        // SAFETY: a `Fib` exists, so the table exists.
        checked(unsafe { netvm_bench_fib_select(lookup) })
    }

    fn once(&self, addresses: &Addresses) -> Result<Vec<u64>, BenchError> {
        let mut found = vec![0; addresses.len()];
        let count = addresses.len() as u32;
        // SAFETY: the table has the addresses' family, and both lists have the given length.
        checked(unsafe { netvm_bench_fib_once(start(addresses), count, found.as_mut_ptr()) })?;
        Ok(found)
    }

    /// Lookups per second.
    fn measure(&self, addresses: &Addresses, millis: u32) -> Result<f64, BenchError> {
        let (mut lookups, mut seconds) = (0, 0.0);
        let count = addresses.len() as u32;
        // SAFETY: as above; both numbers outlive the call.
        checked(unsafe {
            netvm_bench_fib_measure(start(addresses), count, millis, &raw mut lookups, &raw mut seconds)
        })?;
        Ok(lookups as f64 / seconds)
    }
}

fn start(addresses: &Addresses) -> *const c_void {
    match addresses {
        Addresses::V4(list) => list.as_ptr().cast(),
        Addresses::V6(list) => list.as_ptr().cast(),
    }
}

fn checked(error: i32) -> Result<(), BenchError> {
    if error == 0 {
        return Ok(());
    }
    let problem = std::io::Error::from_raw_os_error(-error).to_string();
    Err(BenchError::Peer { peer: NAME, problem })
}

/// Runs as the peer and prints the result. First checks that both tables agree on every address.
///
/// # Errors
/// DPDK fails, or the tables differ.
pub fn run(spec: &FibSpec) -> Result<(), BenchError> {
    pin(spec.core).map_err(BenchError::system(format!("cannot pin to core {}", spec.core)))?;
    let table = RouteTable::load(spec.family, spec.size, spec.routes.as_deref())?;
    let routes: Vec<Route> = table.routes.iter().map(|(net, id)| route(*net, *id)).collect();
    let fib = Fib::start(spec.family, &routes)?;
    let mut tables = Tables::new();
    tables.apply(&table.update());
    let mut rates = Vec::new();
    for pattern in patterns(spec.family, spec.size) {
        let addresses = table.addresses(spec.family, *pattern);
        let expected = addresses.look_up(&tables);
        for lookup in [Lookup::Scalar, Lookup::Default] {
            fib.select(lookup)?;
            let found = fib.once(&addresses)?;
            let differ = expected
                .iter()
                .zip(found)
                .filter(|(expected, found)| u64::from(expected.0) != *found)
                .count();
            if differ > 0 {
                let problem = format!("differs from netvm for {differ} of {} addresses", expected.len());
                return Err(BenchError::Peer { peer: NAME, problem });
            }
            fib.measure(&addresses, spec.warm_up_millis)?;
            rates.push((lookup, *pattern, fib.measure(&addresses, spec.window_millis)?));
        }
    }
    let outcome = Outcome { memory: fib.memory, load_seconds: fib.load_seconds, rates };
    println!("{}", serde_json::json!(outcome));
    Ok(())
}

/// The address patterns of a table.
pub const fn patterns(family: IpFamily, size: Size) -> &'static [Pattern] {
    match (family, size) {
        (IpFamily::V4, Size::Full) => &[Pattern::Routes, Pattern::Anywhere],
        _ => &[Pattern::Routes],
    }
}

fn route(net: IpNet, id: NextHopId) -> Route {
    let mut address = [0; 16];
    match net {
        IpNet::V4(net) => address[..4].copy_from_slice(&net.network().octets()),
        IpNet::V6(net) => address = net.network().octets(),
    }
    Route { address, next_hop: id.0, length: net.length() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn arguments_round_trip() {
        let plan = Plan {
            runs: 1,
            warm_up: std::time::Duration::from_millis(100),
            window: std::time::Duration::from_millis(300),
            limit: None,
        };
        for (family, size, routes) in
            [(IpFamily::V4, Size::Full, Some("some/list".into())), (IpFamily::V6, Size::Few, None)]
        {
            let spec = FibSpec::new(3, family, size, &plan).with_routes(routes);
            let arguments = ["netvm-bench".to_owned()].into_iter().chain(spec.arguments());
            let parsed = crate::cli::Cli::parse_from(arguments);
            assert!(matches!(parsed.command, crate::cli::Bench::FibPeer(parsed) if parsed == spec));
        }
    }
}
