//! `routers`: packets from one interface to another through virtual routers, of netvm or of the kernel.
//!
//! ```text
//!  core A              core B
//!  sender ── far veth ── near ── macvlan ── namespace of a router ── macvlan ── out ── sink       kernel-macvlan
//!                        near ── bridge ── veth ── namespace ── veth ── bridge ── out ── sink     kernel-veth
//!                        near ── netvm's router, one of N by MAC address ────────── out ── sink   netvm
//! ```
//!
//! With `--beside`, a second router has its own pair of interfaces and its own stream, at a rate of its own (section 4.4, table 1).
//!
//! Every router has an interface on `near` and one on `out`, each with its own MAC address, and the sender takes the
//! routers in turn, burst by burst (Rathore, Hidell and Sjödin, sections 3 and 4.3). Packets count once they leave by
//! `out`. The kernel's own namespaces, routes and neighbours are configured; netvm's routers have a table without a
//! kernel behind it, since nothing of the traffic is for a kernel.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use netvm_config::model::{
    Action, Actions, Host, Idle, Match, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId, RouterInterface,
    Rule, RuleId, RuleParts, SourceConfig,
};
use netvm_engine::DropReason;
use netvm_policy::{Masked, mac_bits};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, Ipv4Net, MacAddr};
use rustix::mount::{MountFlags, mount};

use super::network;
use super::trial::{self, Counts, Sink, TrialArgs};
use super::way::two_cores;
use crate::error::BenchError;
use crate::measure::probe::ip;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::routes::{IpFamily, RouteTable, Size, destinations};
use crate::setup::sender::{BURST, Sender, Stream};

/// Interfaces that packets leave by: of the routers, and of the one beside.
const OUT: [&str; 2] = ["out", "out1"];
/// The MAC address of the packets' next hop, which takes no packet: it only has to be known.
const SINK: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// A router's: it forwards, takes packets from any source, and sends nothing of its own.
const SETTINGS: &str = "cd /proc/sys/net
    echo 1 >ipv4/ip_forward
    for which in all default; do
        echo 0 >ipv4/conf/$which/rp_filter
        [ ! -e ipv6 ] || echo 1 >ipv6/conf/$which/disable_ipv6
    done";

/// What routes.
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
    /// Routes of each router; more than one are of the full table, and packets go to random addresses of them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), default_value = "1")]
    pub routes: u32,
    /// The full table: one prefix on each line [default: routes/prefixes.txt.gz of the shared data beside this source tree]
    #[arg(long)]
    pub prefixes: Option<PathBuf>,
    /// Bytes of a frame, FCS included
    #[arg(long, value_parser = clap::value_parser!(u16).range(64..=1518), default_value = "64")]
    pub size: u16,
    /// Packets per second at the same time through a second router with interfaces of its own; with one of --routers
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub beside: Option<u64>,
    /// The trials.
    #[command(flatten)]
    pub trials: TrialArgs,
}

/// A router's MAC address at `near` (0) or `out` (1).
const fn mac(router: u8, side: u8) -> MacAddr {
    MacAddr([2, 0, 0, 1, side, router])
}

/// The destination behind a router.
const fn destination(router: u8) -> [u8; 4] {
    [10, 200, router, 1]
}

/// Runs the trials.
///
/// # Errors
/// [`BenchError`] if the routers cannot be set up.
pub fn measure(args: &RoutersArgs) -> Result<(), BenchError> {
    let [sending, receiving] = two_cores(&args.trials)?;
    let pairs = if args.beside.is_some() { 2 } else { 1 };
    // The router beside comes last.
    let all = if args.beside.is_some() { 2 } else { args.routers };
    network::enter()?;
    let near: Vec<String> = (0..pairs).map(network::interface).collect();
    let table = table(args)?;
    let is_spread = table.is_some();
    let to = |routers: std::ops::Range<u8>| match &table {
        Some(table) => spread(table, routers),
        None => routers.map(|n| (mac(n, 0), destination(n))).collect(),
    };
    let stream = |(n, interface): (u8, &String)| Stream {
        interface: interface.clone(),
        size: args.size,
        is_multi: true,
        is_spread,
        destinations: if args.beside.is_some() { to(n..n + 1) } else { to(0..all) },
    };
    let sender = Sender::start((0..).zip(&near).map(stream).collect(), sending)?;
    namespaces()?;
    // The sink's namespace does not have the destination address: packets end in its interface.
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
        Kind::Netvm => Some(netvm(&near, (all, table.as_ref()), receiving)?),
        Kind::KernelMacvlan | Kind::KernelVeth => {
            kernel(args.kind, &near, all)?;
            (0..all).try_for_each(|n| load(n, table.as_ref()))?;
            None
        }
    };
    near.iter().for_each(|near| network::pin_threads(near, receiving));
    let mut routers = Routers { near, core: receiving, rig };
    trial::run(&args.trials, (args.size, args.beside), &sender, &mut routers)
}

/// The routes of each router, if there is more than one.
fn table(args: &RoutersArgs) -> Result<Option<RouteTable>, BenchError> {
    if args.routes == 1 {
        return Ok(None);
    }
    let table = RouteTable::load(IpFamily::V4, Size::Full, args.prefixes.as_deref())?;
    Ok(Some(table.some(args.routes)))
}

/// Random addresses of the table, each burst at the next router.
fn spread(table: &RouteTable, routers: std::ops::Range<u8>) -> Vec<(MacAddr, [u8; 4])> {
    const COUNT: usize = 1 << 16;
    let addresses = destinations(table, COUNT).into_iter().map(u32::to_ne_bytes);
    let router = routers.cycle().flat_map(|n| std::iter::repeat_n(mac(n, 0), BURST));
    router.zip(addresses).collect()
}

/// Gives a router of the kernel the table.
fn load(router: u8, table: Option<&RouteTable>) -> Result<(), BenchError> {
    let Some(table) = table else { return Ok(()) };
    let file = format!("/run/netns/.routes{router}");
    let lines: String = table
        .possible()
        .map(|(net, _)| net)
        .map(|net| format!("route replace {net} via 10.101.{router}.2\n"))
        .collect();
    std::fs::write(&file, lines).map_err(BenchError::system(format!("cannot write {file}")))?;
    run(&format!("-n router{router} -batch {file}"))
}

/// Names of namespaces that end with this process, however it ends.
fn namespaces() -> Result<(), BenchError> {
    let folder = "/run/netns";
    std::fs::create_dir_all(folder).map_err(BenchError::system(format!("cannot create {folder}")))?;
    mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID, None::<&CStr>)
        .map_err(BenchError::system(format!("cannot mount {folder}")))
}

fn run(words: &str) -> Result<(), BenchError> {
    ip(&words.split_whitespace().collect::<Vec<_>>())
}

/// What forwards the packets.
struct Routers {
    /// The interfaces that packets come in by, one or two.
    near: Vec<String>,
    core: u32,
    rig: Option<Rig>,
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

    fn pause(&mut self, time: Duration) -> Result<(), BenchError> {
        match &mut self.rig {
            Some(rig) => rig.run(time),
            None => {
                std::thread::sleep(time);
                Ok(())
            }
        }
    }
}

/// Which of so many pairs of interfaces a router has.
fn pair_of(router: u8, pairs: usize) -> usize {
    usize::from(router) % pairs
}

/// Namespaces that route in the kernel.
fn kernel(kind: Kind, near: &[String], routers: u8) -> Result<(), BenchError> {
    if kind == Kind::KernelVeth {
        for (n, (near, out)) in near.iter().zip(OUT).enumerate() {
            for (interface, side) in [(near.as_str(), "in"), (out, "out")] {
                let bridge = format!("bridge-{side}{n}");
                run(&format!("link add {bridge} type bridge mcast_snooping 0"))?;
                run(&format!("link set {bridge} arp off up"))?;
                run(&format!("link set {interface} master {bridge}"))?;
            }
            // Nobody answers from there.
            bridge(&format!("fdb replace {SINK} dev {out} master static"))?;
        }
    }
    for n in 0..routers {
        let name = format!("router{n}");
        run(&format!("netns add {name}"))?;
        ip(&["netns", "exec", &name, "sh", "-c", SETTINGS])?;
        let pair = pair_of(n, near.len());
        for (side, (interface, end)) in (0..).zip([(near[pair].as_str(), "in"), (OUT[pair], "out")]) {
            let (mac, network) = (mac(n, side), 100 + side);
            match kind {
                Kind::KernelVeth => {
                    let outer = format!("{end}{n}x");
                    run(&format!("link add {outer} type veth peer name {end} netns {name} address {mac}"))?;
                    run(&format!("link set {outer} master bridge-{end}{pair} up"))?;
                    bridge(&format!("fdb replace {mac} dev {outer} master static"))?;
                }
                _ => run(&format!(
                    "link add link {interface} name {end} netns {name} address {mac} type macvlan mode private"
                ))?,
            }
            run(&format!("-n {name} address add 10.{network}.{n}.1/24 dev {end}"))?;
            run(&format!("-n {name} link set {end} up"))?;
        }
        let via = format!("10.101.{n}.2");
        run(&format!("-n {name} neighbour replace {via} lladdr {SINK} dev out nud permanent"))?;
        run(&format!("-n {name} route add 10.200.{n}.0/24 via {via}"))?;
    }
    Ok(())
}

/// Runs `bridge`, which comes with `ip`.
fn bridge(words: &str) -> Result<(), BenchError> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let status =
        std::process::Command::new("bridge").env("PATH", path).args(words.split_whitespace()).status();
    let status = status.map_err(BenchError::system("cannot run bridge (package iproute2)"))?;
    if status.success() {
        return Ok(());
    }
    Err(BenchError::system(format!("bridge {words}"))(std::io::Error::other(status.to_string())))
}

/// An engine with the routers.
fn netvm(near: &[String], (routers, table): (u8, Option<&RouteTable>), core: u32) -> Result<Rig, BenchError> {
    let mut rig = Rig::start(&host(near, routers, core), &[])?;
    for n in 0..routers {
        let id = NextHopId(1);
        let network = IpNet::from(Ipv4Net::host(destination(n).into()));
        let more = table.into_iter().flat_map(|table| table.routes.iter().map(|(net, _)| *net));
        let update = Update {
            next_hops: vec![(id, NextHop::Via(Hop { interface: 1, mac: SINK }))],
            routes: std::iter::once(network).chain(more).map(|net| (net, Some(id))).collect(),
        };
        rig.load_routes_of(RouterId(n.into()), &update)?;
    }
    Ok(rig)
}

fn host(near: &[String], routers: u8, core: u32) -> Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    for (near, out) in near.iter().zip(OUT) {
        for interface in [near.as_str(), out] {
            layout.port(interface, PortKind::AfXdp { interface: interface.to_owned(), generic: false }, 1500);
        }
    }
    // In place of the ports to the routers' kernels: packets sent to them are counted and freed.
    let once = SourceConfig { count: Some(1), ..SourceConfig::default() };
    for n in 0..routers {
        for side in ["in", "out"] {
            layout.port(&format!("kernel-{side}{n}"), PortKind::Source(once.clone()), 1500);
        }
    }
    let mut host = layout.build();
    let pairs = near.len();
    for n in 0..routers {
        let port = |side: u8| PortId(2 * pair_of(n, pairs) as u16 + u16::from(side));
        let interface = |(side, name): (u8, &str)| RouterInterface {
            name: name.to_owned(),
            port: port(side),
            vlan: None,
            mac: mac(n, side),
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            punt: PortId(2 * (pairs as u16 + u16::from(n)) + u16::from(side)),
            host_end: RouterInterface::host_end_of(&format!("study{n}"), name),
        };
        let id = RouterId(n.into());
        let interfaces = (0..).zip(["in", "out"]).map(interface).collect();
        // Routers with interfaces of their own have a share each, and the same.
        let weight = if pairs > 1 { 2 } else { 1 };
        let name = format!("study{n}");
        host.routers.push(RouterConfig { id, name, interfaces, routes: Vec::new(), weight, reserve: 0 });
        let to_router = Masked::<u64>::new(mac_bits(mac(n, 0)), (1 << 48) - 1);
        host.rules.push(Rule::from(RuleParts {
            id: RuleId(n.into()),
            name: format!("study{n}"),
            matches: Match { from: vec![port(0)], destination_mac: vec![to_router], ..Match::default() },
            actions: Actions { terminal: Some(Action::Router(id)), ..Actions::default() },
        }));
    }
    host
}
