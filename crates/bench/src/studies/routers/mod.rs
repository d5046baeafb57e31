// SPDX-License-Identifier: Apache-2.0
//! `routers`: packets from one interface to another through virtual routers, of netvm or of the kernel.
//!
//! ```text
//!  core A              core B
//!  sender ── far veth ── near ── macvlan ── namespace of a router ── macvlan ── out ── sink       kernel-macvlan
//!                        near ── bridge ── veth ── namespace ── veth ── bridge ── out ── sink     kernel-veth
//!                        near ── netvm's router, one of N by MAC address ────────── out ── sink   netvm
//! ```
//!
//! With `--beside`, a second router has its own pair of interfaces and its own stream at its own rate (section 4.4,
//! table 1).
//!
//! Every router has an interface on `near` and one on `out`, each with its own MAC address (an interface pair). The
//! sender sends a burst to each router in turn (Rathore, Hidell and Sjödin, sections 3 and 4.3). With `--interfaces`, a
//! single router has that many interfaces, half of them on each side. Each packet then enters by the next interface and
//! leaves by a random one (figure 8). netvm distinguishes the interfaces of a router by VLAN, so its packets are tagged
//! in this case. A packet counts when it leaves by `out`. The kernel's routers have static routes and neighbours.
//! netvm's routers have a forwarding table without a kernel behind it, because no packet is addressed to the router
//! itself.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use netvm_engine::DropReason;
use netvm_wire::MacAddr;
use rustix::mount::{MountFlags, mount};

use super::delays::{Delays, Summary};
use super::receive::two_cores;
use super::trial::{self, Counts, Sink, Streams, TrialArgs};
use crate::error::BenchError;
use crate::measure::probe::ip;
use crate::setup::network;
use crate::setup::rig::Rig;
use crate::setup::routes::{IpFamily, RouteTable, Size, destinations};
use crate::setup::sender::{BURST, Destination, Sender, Stream};

mod kernel;
mod netvm;

/// Egress interfaces: of the routers, and of the second router of `--beside`.
const OUT: [&str; 2] = ["out", "out1"];
/// The MAC address of the packets' next hop. It only has to be resolved: nothing receives the packets.
const SINK: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Settings of a namespace that routes: it forwards, accepts any source address, and sends no packets itself.
const SETTINGS: &str = "cd /proc/sys/net
    echo 1 >ipv4/ip_forward
    for which in all default; do
        echo 0 >ipv4/conf/$which/rp_filter
        [ ! -e ipv6 ] || echo 1 >ipv6/conf/$which/disable_ipv6
    done";

/// The kind of the routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Namespaces with veth pairs and the kernel's bridge
    KernelVeth,
    /// Namespaces with macvlan interfaces
    KernelMacvlan,
    /// Virtual routers of netvm
    Netvm,
}

/// Options of `routers`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct RoutersArgs {
    /// What routes
    #[arg(long)]
    pub kind: Kind,
    /// Virtual routers
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64), default_value = "1")]
    pub routers: u8,
    /// Interfaces of a single router, an even number; packets enter by half of them [default: two for each router]
    #[arg(long, value_parser = interface_count, conflicts_with_all = ["routers", "beside"])]
    pub interfaces: Option<u16>,
    /// Routes of each router. With 1, each pair has one route; more routes come from the full table, and packets go to
    /// random addresses in them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), default_value = "1")]
    pub routes: u32,
    /// The full table: one prefix on each line [default: generated]
    #[arg(long)]
    pub prefixes: Option<PathBuf>,
    /// Bytes of a frame, FCS included
    #[arg(long, value_parser = clap::value_parser!(u16).range(64..=1518), default_value = "64")]
    pub size: u16,
    /// Also measure how long packets take from the sender to the sink, in microseconds
    #[arg(long, conflicts_with = "interfaces")]
    pub delays: bool,
    /// Packets per second through a second router with its own interfaces, at the same time; only with one of --routers
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub beside: Option<u64>,
    /// The trials.
    #[command(flatten)]
    pub trials: TrialArgs,
}

fn interface_count(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(count @ 2..=512) if count % 2 == 0 => Ok(count),
        Ok(_) => Err("give an even number from 2 to 512".to_owned()),
        Err(error) => Err(format!("{error}: give an even number from 2 to 512")),
    }
}

/// Pairs of interfaces, and the routers that they belong to. A pair has one on `near` and one on `out`.
#[derive(Clone, Copy, Debug)]
struct InterfacePairs {
    count: u16,
    /// All pairs belong to one router, instead of one router each.
    are_of_one: bool,
    /// Pairs of host interfaces that they share.
    host_pairs: usize,
}

impl InterfacePairs {
    fn of(args: &RoutersArgs) -> Self {
        let host_pairs = if args.beside.is_some() { 2 } else { 1 };
        match args.interfaces {
            Some(interfaces) => Self { count: interfaces / 2, are_of_one: true, host_pairs },
            // The router beside comes last.
            None => {
                let count = if host_pairs > 1 { 2 } else { args.routers.into() };
                Self { count, are_of_one: false, host_pairs }
            }
        }
    }

    /// All pairs, by number.
    fn all(self) -> impl Iterator<Item = u8> + Clone {
        (0..=u8::MAX).take(self.count.into())
    }

    /// The router that a pair belongs to.
    const fn router_of(self, pair: u8) -> u8 {
        if self.are_of_one { 0 } else { pair }
    }

    /// The pairs of each router.
    fn by_router(self) -> Vec<Vec<u8>> {
        if self.are_of_one { vec![self.all().collect()] } else { self.all().map(|pair| vec![pair]).collect() }
    }

    /// The pair of host interfaces that a pair uses.
    const fn host_pair_of(self, pair: u8) -> usize {
        pair as usize % self.host_pairs
    }

    /// The VLAN of a pair's interfaces, if netvm routes.
    const fn vlan_of(self, pair: u8) -> Option<u16> {
        if self.are_of_one { Some(pair as u16 + 1) } else { None }
    }
}

/// The MAC address of a pair's interface at `near` (0) or `out` (1).
const fn mac(pair: u8, side: u8) -> MacAddr {
    MacAddr([2, 0, 0, 1, side, pair])
}

/// The destination behind the second interface of a pair.
const fn destination(pair: u8) -> [u8; 4] {
    [10, 200, pair, 1]
}

/// Runs the trials.
///
/// # Errors
/// [`BenchError`] if the routers cannot be set up.
pub fn measure(args: &RoutersArgs) -> Result<(), BenchError> {
    let [sending, receiving] = two_cores(&args.trials)?;
    let pairs = InterfacePairs::of(args);
    network::enter()?;
    let near: Vec<String> = (0..pairs.host_pairs as u32).map(network::interface).collect();
    let table = table(args)?;
    let stream = |(n, interface): (u8, &String)| Stream {
        interface: interface.clone(),
        size: args.size,
        is_multi: true,
        is_spread: pairs.are_of_one || table.is_some(),
        is_timed: args.delays,
        destinations: match args.beside {
            Some(_) => to(args.kind, pairs, table.as_ref(), &[n]),
            None => to(args.kind, pairs, table.as_ref(), &pairs.all().collect::<Vec<_>>()),
        },
    };
    let sender = Sender::start((0..).zip(&near).map(stream).collect(), sending)?;
    namespaces()?;
    // The sink's namespace does not have the destination address, so its kernel drops the packets.
    run("netns add sink")?;
    ip(&["netns", "exec", "sink", "sh", "-c", SETTINGS])?;
    let queues = "numtxqueues 1 numrxqueues 1";
    for (near, out) in near.iter().zip(OUT) {
        run(&format!("link add {out} {queues} type veth peer name end-{out} netns sink {queues}"))?;
        run(&format!("-n sink link set end-{out} arp off up"))?;
        run(&format!("link set {out} arp off up"))?;
        network::bring_up(near, receiving)?;
    }
    let rig = match args.kind {
        Kind::Netvm => Some(netvm::start(&near, pairs, table.as_ref(), receiving)?),
        Kind::KernelMacvlan | Kind::KernelVeth => {
            kernel::start(args.kind, &near, pairs, table.as_ref())?;
            None
        }
    };
    near.iter().for_each(|near| network::pin_threads(near, receiving));
    let delays = args.delays.then(|| Delays::open("sink", &format!("end-{}", OUT[0]))).transpose()?;
    let mut routers = Routers { near, core: receiving, rig, delays };
    let streams = Streams { size: args.size, beside: args.beside };
    trial::run(&args.trials, streams, &sender, &mut routers)
}

/// The routes of each router, if there is more than one.
fn table(args: &RoutersArgs) -> Result<Option<RouteTable>, BenchError> {
    if args.routes == 1 {
        return Ok(None);
    }
    let table = RouteTable::load(IpFamily::V4, Size::Full, args.prefixes.as_deref())?;
    Ok(Some(table.some(args.routes)))
}

/// Destinations of packets that enter by these pairs in turn: one burst for each router, or one packet for each
/// interface of a single router.
fn to(kind: Kind, pairs: InterfacePairs, table: Option<&RouteTable>, by: &[u8]) -> Vec<Destination> {
    const COUNT: usize = 1 << 16;
    let by = by.iter().copied();
    let vlan = |pair: u8| pairs.vlan_of(pair).filter(|_| kind == Kind::Netvm);
    let to = |pair: u8, address| Destination { mac: mac(pair, 0), vlan: vlan(pair), address };
    let in_turn = if pairs.are_of_one { 1 } else { BURST };
    let enter = by.clone().cycle().flat_map(|pair| std::iter::repeat_n(pair, in_turn));
    match table {
        Some(table) => {
            let addresses = destinations(table, COUNT).into_iter().map(u32::to_ne_bytes);
            enter.zip(addresses).map(|(pair, address)| to(pair, address)).collect()
        }
        None if pairs.are_of_one => {
            // Pseudo-random order (Fibonacci hashing: Knuth volume 3, section 6.4).
            let leaves = (0..COUNT).map(|n| ((n * 0x9e37_79b1) >> 16) % usize::from(pairs.count));
            enter.zip(leaves).map(|(pair, out)| to(pair, destination(out as u8))).collect()
        }
        None => by.map(|pair| to(pair, destination(pair))).collect(),
    }
}

/// Mounts a folder for the names of namespaces, so that the names disappear with this process.
fn namespaces() -> Result<(), BenchError> {
    let folder = "/run/netns";
    std::fs::create_dir_all(folder).map_err(BenchError::system(format!("cannot create {folder}")))?;
    mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID, None::<&CStr>)
        .map_err(BenchError::system(format!("cannot mount {folder}")))
}

fn run(words: &str) -> Result<(), BenchError> {
    ip(&words.split_whitespace().collect::<Vec<_>>())
}

/// Running routers.
struct Routers {
    /// The interfaces by which packets enter, one or two.
    near: Vec<String>,
    core: u32,
    rig: Option<Rig>,
    delays: Option<Delays>,
}

impl Sink for Routers {
    fn counts(&mut self) -> Result<Counts, BenchError> {
        let [received, beside] = OUT.map(|out| network::counter(out, "tx_packets"));
        let mut counts = Counts { received, beside, ..Counts::default() };
        counts.drops.insert("backlog", network::backlog_drops(self.core));
        let near = self.near.iter().map(|near| network::counter(near, "rx_dropped")).sum();
        counts.drops.insert("interface", near);
        counts.drops.insert("out", OUT.map(|out| network::counter(out, "tx_dropped")).iter().sum());
        if let Some(rig) = &mut self.rig {
            let ports = rig.engine().ports();
            counts.drops.insert("port", ports.iter().map(|view| view.rx_dropped).sum());
            let sample = rig.sample();
            counts
                .drops
                .insert("engine", DropReason::ALL.into_iter().map(|reason| sample.dropped(reason)).sum());
        }
        Ok(counts)
    }

    fn delays(&mut self) -> Option<Summary> {
        self.delays.as_mut()?.take()
    }

    fn pause(&mut self, time: Duration) -> Result<(), BenchError> {
        match &mut self.rig {
            Some(rig) => rig.run(time)?,
            None => std::thread::sleep(time),
        }
        self.delays.as_mut().map_or(Ok(()), Delays::read)
    }
}
