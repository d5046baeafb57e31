//! `routers`: packets from one interface to another through virtual routers, of netvm or of the kernel.
//!
//! ```text
//!  core A              core B
//!  sender ── far veth ── near ── macvlan ── namespace of a router ── macvlan ── out ── sink       kernel-macvlan
//!                        near ── bridge ── veth ── namespace ── veth ── bridge ── out ── sink     kernel-veth
//!                        near ── netvm's router, one of N by MAC address ────────── out ── sink   netvm
//! ```
//!
//! Every router has an interface on `near` and one on `out`, told apart by their MAC addresses, and the sender takes the
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

const OUT: &str = "out";
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
    network::enter()?;
    let near = network::interface(0);
    let table = table(args)?;
    let is_spread = table.is_some();
    let destinations = match &table {
        Some(table) => spread(table, args.routers),
        None => (0..args.routers).map(|n| (mac(n, 0), destination(n))).collect(),
    };
    let stream = Stream { interface: near.clone(), size: args.size, is_multi: true, is_spread, destinations };
    let sender = Sender::start(stream, sending)?;
    namespaces()?;
    // The sink's namespace has an address for nobody: packets end in its interface.
    run("netns add sink")?;
    ip(&["netns", "exec", "sink", "sh", "-c", SETTINGS])?;
    let queues = "numtxqueues 1 numrxqueues 1";
    run(&format!("link add {OUT} {queues} type veth peer name eth0 netns sink {queues}"))?;
    run("-n sink link set eth0 arp off up")?;
    run(&format!("link set {OUT} arp off up"))?;
    network::bring_up(&near, receiving)?;
    let rig = match args.kind {
        Kind::Netvm => Some(netvm(&near, (args.routers, table.as_ref()), receiving)?),
        Kind::KernelMacvlan | Kind::KernelVeth => {
            kernel(args.kind, &near, args.routers)?;
            (0..args.routers).try_for_each(|n| load(n, table.as_ref()))?;
            None
        }
    };
    network::pin_threads(&near, receiving);
    let mut routers = Routers { near, core: receiving, rig };
    trial::run(&args.trials, args.size, &sender, &mut routers)
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
fn spread(table: &RouteTable, routers: u8) -> Vec<(MacAddr, [u8; 4])> {
    const COUNT: usize = 1 << 16;
    let addresses = destinations(table, COUNT).into_iter().map(u32::to_ne_bytes);
    let router = (0..routers).cycle().flat_map(|n| std::iter::repeat_n(mac(n, 0), BURST));
    router.zip(addresses).collect()
}

/// Gives a router of the kernel the table.
fn load(router: u8, table: Option<&RouteTable>) -> Result<(), BenchError> {
    let Some(table) = table else { return Ok(()) };
    let file = format!("/run/netns/.routes{router}");
    // The kernel takes no routes to these.
    let is_possible = |net: &IpNet| match net {
        IpNet::V4(net) => !matches!(net.network().octets()[0], 0 | 127 | 224..),
        IpNet::V6(_) => false,
    };
    let nets = table.routes.iter().map(|(net, _)| net).filter(|net| is_possible(net));
    let lines: String = nets.map(|net| format!("route replace {net} via 10.101.{router}.2\n")).collect();
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
    near: String,
    core: u32,
    rig: Option<Rig>,
}

impl Sink for Routers {
    fn counts(&mut self) -> Result<Counts, BenchError> {
        let mut counts = Counts { received: network::counter(OUT, "tx_packets"), ..Counts::default() };
        counts.drops.insert("backlog", network::backlog_drops(self.core));
        counts.drops.insert("interface", network::counter(&self.near, "rx_dropped"));
        counts.drops.insert("out", network::counter(OUT, "tx_dropped"));
        if let Some(rig) = &mut self.rig {
            counts.drops.insert("port", rig.engine().ports().first().map_or(0, |view| view.rx_dropped));
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

/// Namespaces that route in the kernel.
fn kernel(kind: Kind, near: &str, routers: u8) -> Result<(), BenchError> {
    let sides = [(near, "in", "bridge-in"), (OUT, "out", "bridge-out")];
    if kind == Kind::KernelVeth {
        for (interface, _, bridge) in sides {
            run(&format!("link add {bridge} type bridge mcast_snooping 0"))?;
            run(&format!("link set {bridge} arp off up"))?;
            run(&format!("link set {interface} master {bridge}"))?;
        }
        // Nobody answers from there.
        bridge(&format!("fdb replace {SINK} dev {OUT} master static"))?;
    }
    for n in 0..routers {
        let name = format!("router{n}");
        run(&format!("netns add {name}"))?;
        ip(&["netns", "exec", &name, "sh", "-c", SETTINGS])?;
        for (side, (interface, end, bridge_name)) in (0..).zip(sides) {
            let (mac, network) = (mac(n, side), 100 + side);
            match kind {
                Kind::KernelVeth => {
                    let outer = format!("{end}{n}");
                    run(&format!("link add {outer} type veth peer name {end} netns {name} address {mac}"))?;
                    run(&format!("link set {outer} master {bridge_name} up"))?;
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
fn netvm(near: &str, (routers, table): (u8, Option<&RouteTable>), core: u32) -> Result<Rig, BenchError> {
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

fn host(near: &str, routers: u8, core: u32) -> Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    for interface in [near, OUT] {
        layout.port(interface, PortKind::AfXdp { interface: interface.to_owned(), generic: false }, 1500);
    }
    // In place of the ports to the routers' kernels: packets sent to them are counted and freed.
    let once = SourceConfig { count: Some(1), ..SourceConfig::default() };
    for n in 0..routers {
        for side in ["in", "out"] {
            layout.port(&format!("kernel-{side}{n}"), PortKind::Source(once.clone()), 1500);
        }
    }
    let mut host = layout.build();
    for n in 0..routers {
        let interface = |(side, name): (u8, &str)| RouterInterface {
            name: name.to_owned(),
            port: PortId(side.into()),
            vlan: None,
            mac: mac(n, side),
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            punt: PortId(2 + 2 * u16::from(n) + u16::from(side)),
            host_end: RouterInterface::host_end_of(&format!("study{n}"), name),
        };
        let id = RouterId(n.into());
        let interfaces = (0..).zip(["in", "out"]).map(interface).collect();
        let name = format!("study{n}");
        host.routers.push(RouterConfig { id, name, interfaces, routes: Vec::new(), weight: 1, reserve: 0 });
        let to_router = Masked::<u64>::new(mac_bits(mac(n, 0)), (1 << 48) - 1);
        host.rules.push(Rule::from(RuleParts {
            id: RuleId(n.into()),
            name: format!("study{n}"),
            matches: Match { from: vec![PortId(0)], destination_mac: vec![to_router], ..Match::default() },
            actions: Actions { terminal: Some(Action::Router(id)), ..Actions::default() },
        }));
    }
    host
}
