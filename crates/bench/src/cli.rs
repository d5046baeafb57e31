// SPDX-License-Identifier: Apache-2.0
//! The command line.

mod conn;
mod e1000;
mod latency;
#[cfg(test)]
mod studies;
mod switching;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use conn::ConnArgs;
pub use e1000::{E1000Args, Load};
pub use latency::LatencyArgs;
pub use switching::{SwitchKind, SwitchingArgs};

use crate::cases::guests::e1000::CardArgs;
use crate::compare::CompareArgs;
use crate::error::BenchError;
use crate::machine::{Cores, allowed_cores};
use crate::measure::harness::{Plan, seconds};
use crate::nf::NfSpec;
use crate::peers::fib::FibSpec;
use crate::peers::guests::Rings;
use crate::peers::kernel::KernelSpec;
use crate::peers::ring::RingSpec;
use crate::setup::routes::ALL;
use crate::studies::chains::ChainsArgs;
use crate::studies::receive::ReceiveArgs;
use crate::studies::routers::RoutersArgs;

/// Run netvm's benchmarks
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "netvm-bench", version, about)]
pub struct Cli {
    /// The benchmark
    #[command(subcommand)]
    pub command: Bench,
}

/// The benchmarks.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Bench {
    /// One engine core and an NF process on another core, against DPDK's rings and testpmd
    Hop(BenchArgs),
    /// Packets of 64 bytes captured to tmpfs, with a reader on another core
    Capture(BenchArgs),
    /// Chains of 1, 2, 4 and 8 NFs of one trust group
    Chain(BenchArgs),
    /// The same NF in Rust, C, Go and Python
    Bindings(BenchArgs),
    /// TCP and UDP between two network namespaces, against the kernel's bridge and routing
    Container(ContainerArgs),
    /// Connection tracking and NAT on one core, against Open vSwitch with DPDK and the kernel
    Conn(ConnArgs),
    /// A chain within a trust group, against a chain that copies packets to another group
    Copy(BenchArgs),
    /// A chain with a slow NF, at up to ten times its capacity
    Overload(BenchArgs),
    /// CPU time without traffic, and the delay of the first packet afterwards
    Idle(BenchArgs),
    /// The same traffic with one worker and with two
    Workers(BenchArgs),
    /// Time of packets in the engine and its NFs, at 10, 50 and 90 % of the highest lossless rate
    Latency(LatencyArgs),
    /// Forwarding while a scraper and the web page read netvmd, against forwarding without them
    Watch(BenchArgs),
    /// Time to reclaim the buffers of a killed NF
    Reclaim(BenchArgs),
    /// Forwarding by policy on one core, against Open vSwitch with DPDK
    Policy(PolicyArgs),
    /// Longest-prefix match in a full Internet table, against DPDK's rte_fib
    Route(RouteArgs),
    /// One core that routes to random destinations, against the kernel's routers
    Router(RouterArgs),
    /// TCP and packets of 64 bytes through VXLAN, against the same without it and against Open vSwitch with DPDK
    Vxlan(ContainerArgs),
    /// An NF in a VM, against the same program as a process
    Vm(VmArgs),
    /// L2 switching between two vhost-user guests, against Open vSwitch with DPDK and against the copies alone
    Vhost(VhostArgs),
    /// A guest's network cards: netvm's e1000 and vhost-user, against QEMU's e1000 and virtio-net with a TAP
    E1000(E1000Args),
    /// A benchmark of this build and of another build in alternation
    Compare(CompareArgs),
    /// Packets into a program by one method, at rates from standard input (`./dev study capture`)
    Receive(ReceiveArgs),
    /// Packets through NFs, at a rate or as fast as possible (`./dev study netvm-chains`)
    Chains(ChainsArgs),
    /// Packets from guest to guest, through one of several switches (`./dev study snich-switching`)
    Switching(SwitchingArgs),
    /// TCP, UDP and raw packets through a guest's network card, in one direction (`./dev study e1000`)
    Card(CardArgs),
    /// Packets through virtual routers, at rates from standard input (`./dev study routers`)
    Routers(RoutersArgs),
    /// Run as an NF of a benchmark
    #[command(hide = true)]
    Nf(NfSpec),
    /// Run as the rte_ring peer
    #[command(hide = true)]
    RingPeer(RingSpec),
    /// Run as the rte_fib peer
    #[command(hide = true)]
    FibPeer(FibSpec),
    /// Run as the peer in which the kernel routes
    #[command(hide = true)]
    KernelPeer(KernelSpec),
}

/// Options of all benchmarks.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct BenchArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Make at most three short runs within two minutes, for a first impression
    #[arg(long)]
    pub quick: bool,
    /// Runs of each case [default: 5; with --quick: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: Option<u16>,
    /// Seconds of each measurement [default: 2; with --quick: 0.3]
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// The engine's core and the NFs' core [default: the first two of this process's affinity]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
    /// Skip comparisons with other programs
    #[arg(long)]
    pub skip_peers: bool,
}

/// Options of `container` and `vxlan`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ContainerArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Run only these cases, such as `switch,kernel-bridge` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// TCP's congestion control, of those that `sysctl net.ipv4.tcp_available_congestion_control` lists
    /// [default: cubic]
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    pub congestion: Option<String>,
}

/// Options of `policy`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct PolicyArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Numbers of flows
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)),
          default_value = "1,1000,10000,100000,1000000")]
    pub flows: Vec<u64>,
    /// Run only these cases, such as `normal-100000,new-flows` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// ClassBench filter set, used as drop rules that no packet matches [default: 1,000 generated rules of the flavour
    /// acl1]
    #[arg(long)]
    pub acl: Option<PathBuf>,
}

/// The parts of `route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoutePart {
    /// Lookups alone
    Tables,
    /// Packets through an engine's router
    Engine,
}

/// Options of `route`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct RouteArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The full table: one prefix of either family on each line; gzip-compressed if the name ends in .gz [default:
    /// generated, with 1,000,000 IPv4 and 220,000 IPv6 prefixes]
    #[arg(long)]
    pub routes: Option<PathBuf>,
    /// Run only lookups, or only packets through an engine [default: both]
    #[arg(long, value_enum)]
    pub only: Option<RoutePart>,
    /// Numbers of destinations
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20),
          default_value = "1,1000,100000")]
    pub destinations: Vec<u32>,
}

/// The parts of `router`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RouterPart {
    /// Routers with tables
    Routes,
    /// A router with many interfaces
    Interfaces,
}

/// Options of `router`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct RouterArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The full table, as for `route --routes`
    #[arg(long)]
    pub prefixes: Option<PathBuf>,
    /// Numbers of routes; `full`: the whole table, which the kernel takes half a minute to load [default: 1,512,full;
    /// with --quick: 1,512]
    #[arg(long, value_delimiter = ',', value_parser = route_count)]
    pub routes: Vec<u32>,
    /// Numbers of interfaces of the router
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(2..=512), default_value = "2,32,512")]
    pub interfaces: Vec<u16>,
    /// Run only one part [default: both]
    #[arg(long, value_enum)]
    pub only: Option<RouterPart>,
}

/// A number of routes, or `full`.
fn route_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("at least one route is needed".to_owned()),
        Ok(count) => Ok(count),
        Err(_) if text == "full" => Ok(ALL),
        Err(error) => Err(format!("{error}: give a number or `full`")),
    }
}

/// Options of `vm`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct VmArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// QEMU's accelerator: emulation or KVM
    #[arg(long, value_parser = ["tcg", "kvm"], default_value = "tcg")]
    pub accel: String,
}

/// Options of `vhost`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct VhostArgs {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Numbers of flows
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)),
          default_value = "1,10000,100000")]
    pub flows: Vec<u64>,
    /// Frame sizes in bytes, FCS included
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(64..=1518),
          default_value = "64,1500")]
    pub sizes: Vec<u16>,
    /// Layout of the guests' rings
    #[arg(long, value_enum, default_value = "packed")]
    pub rings: Rings,
}

/// Checks that the kernel has this congestion control.
fn congestion(name: &str) -> Result<String, String> {
    const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = std::fs::read_to_string(AVAILABLE).map_err(|error| format!("{AVAILABLE}: {error}"))?;
    if available.split_whitespace().any(|other| other == name) {
        Ok(name.to_owned())
    } else {
        Err(format!("this kernel has {}; load the module tcp_{name} if there is one", available.trim()))
    }
}

/// How long a benchmark with `--quick` may take, with a reserve for what comes before and after the runs.
const QUICK: Duration = Duration::from_secs(100);

impl RouterArgs {
    /// The numbers of routes.
    pub fn route_counts(&self) -> Vec<u32> {
        match self.routes.as_slice() {
            [] if self.bench.quick => vec![1, 512],
            [] => vec![1, 512, ALL],
            chosen => chosen.to_vec(),
        }
    }
}

impl BenchArgs {
    /// The plan of the measurements.
    pub fn plan(&self) -> Plan {
        let (runs, seconds) = if self.quick { (3, 0.3) } else { (5, 2.0) };
        let window = self.seconds.unwrap_or(Duration::from_secs_f64(seconds));
        let warm_up = if self.quick { Duration::from_millis(200) } else { Duration::from_millis(500) };
        // Who says how many runs gets them.
        let limit = (self.quick && self.runs.is_none()).then_some(QUICK);
        Plan { runs: self.runs.map_or(runs, usize::from), warm_up, window, limit }
    }

    /// The cores.
    ///
    /// # Errors
    /// [`BenchError::Cores`] without two cores.
    pub fn cores(&self) -> Result<Cores, BenchError> {
        let allowed = allowed_cores();
        let list = if self.cores.is_empty() { &allowed } else { &self.cores };
        match list.as_slice() {
            [engine, nf, ..] if engine != nf => Ok(Cores { engine: *engine, nf: *nf }),
            _ => Err(BenchError::Cores { required: 2, available: list.len().min(1) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<BenchArgs, clap::Error> {
        let words = ["netvm-bench", "hop"].into_iter().chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Bench::Hop(args) => args,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn quick_means_fewer_and_shorter_runs() {
        let (full, quick) = (args("").unwrap().plan(), args("--quick --json").unwrap().plan());
        assert_eq!((full.runs, quick.runs), (5, 3));
        assert!(quick.window < full.window && quick.warm_up < full.warm_up);
        assert_eq!(args("--runs 9 --seconds 0.5").unwrap().plan().window, Duration::from_millis(500));
        assert!(quick.limit.is_some_and(|limit| limit < Duration::from_secs(120)) && full.limit.is_none());
        assert_eq!(args("--quick --runs 3").unwrap().plan().limit, None);
    }

    #[test]
    fn a_quick_router_loads_no_full_table_unless_told() {
        let counts = |line: &str| {
            let words = ["netvm-bench", "router"].into_iter().chain(line.split_whitespace());
            match Cli::try_parse_from(words).unwrap().command {
                Bench::Router(args) => args.route_counts(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(counts(""), [1, 512, ALL]);
        assert_eq!(counts("--quick"), [1, 512]);
        assert_eq!(counts("--quick --routes 1,full"), [1, ALL]);
    }

    #[test]
    fn wrong_options_are_refused() {
        assert!(args("--runs 0").is_err());
        assert!(args("--seconds 0").is_err() && args("--seconds soon").is_err());
        assert!(args("--cores 1,1").unwrap().cores().is_err());
        let cores = args("--cores 3,1").unwrap().cores().unwrap();
        assert_eq!((cores.engine, cores.nf), (3, 1));
    }
}
