// SPDX-License-Identifier: Apache-2.0
//! `routers`: packets from one interface to another through virtual routers, of netvm or of the kernel.
//!
//! ```text
//!  core A              core B
//!  sender ── far veth ── near ── macvlan ── namespace of a router ── macvlan ── out ── sink       kernel-macvlan
//!                        near ── bridge ── veth ── namespace ── veth ── bridge ── out ── sink     kernel-veth
//!                        near ── netvm's router, one of N by MAC address ────────── out ── sink   netvm
//!                        near ── this namespace, without virtual routers ────────── out ── sink   kernel-forward
//! ```
//!
//! With `--ingress=N` there are N times `near`, into which the sender sends in turn (section 4.2, cases II and III).
//! With `--directions=2` the sender has the other end of `out`, too, and half of the packets go from `out` to `near`
//! (section 4.3).
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
use super::trial::{self, Counts, Place, Sink, Streams, TrialArgs};
use crate::error::BenchError;
use crate::machine::allowed_cores;
use crate::measure::probe::ip;
use crate::setup::network;
use crate::setup::rig::Rig;
use crate::setup::sender::Sender;
use pairs::{InterfacePairs, Side};
use traffic::Halves;

mod kernel;
mod netvm;
mod pairs;
mod traffic;

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
    /// The kernel's forwarding between the host's own interfaces, without virtual routers
    KernelForward,
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
    /// Interfaces of the host by which packets enter, one after the other; each router has an interface on each
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=3), default_value = "1",
          conflicts_with_all = ["interfaces", "beside"])]
    pub ingress: u8,
    /// Directions of the packets: with 2, half of them go the other way, from the interface out to the interface in
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2), default_value = "1",
          conflicts_with_all = ["beside", "delays"])]
    pub directions: u8,
    /// Cores of the routers: netvm's workers, or those among which the kernel spreads what it receives
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16), default_value = "1")]
    pub workers: u8,
    /// Queues of the host's interfaces
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16), default_value = "1")]
    pub queues: u16,
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

impl RoutersArgs {
    const fn is_both_ways(&self) -> bool {
        self.directions > 1
    }
}

fn interface_count(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(count @ 2..=512) if count % 2 == 0 => Ok(count),
        Ok(_) => Err("give an even number from 2 to 512".to_owned()),
        Err(error) => Err(format!("{error}: give an even number from 2 to 512")),
    }
}

/// The host's interfaces.
#[derive(Debug)]
struct HostInterfaces {
    /// Those by which packets enter.
    near: Vec<String>,
    /// Those by which they leave. With `--directions=2` they also enter by these, and leave by the others.
    out: Vec<String>,
    /// Queues of each.
    queues: u16,
}

impl HostInterfaces {
    fn of(&self, side: Side) -> &[String] {
        match side {
            Side::In => &self.near,
            Side::Out => &self.out,
        }
    }
}

/// Runs the trials.
///
/// # Errors
/// [`BenchError`] if the routers cannot be set up.
pub fn measure(args: &RoutersArgs) -> Result<(), BenchError> {
    let (sending, receiving) = cores(args)?;
    let pairs = InterfacePairs::of(args);
    if args.kind == Kind::KernelForward && pairs.are_tagged {
        let problem = "has no interfaces but the host's: leave --interfaces out".to_owned();
        return Err(BenchError::Peer { peer: "kernel-forward", problem });
    }
    network::enter()?;
    if args.kind == Kind::KernelForward {
        network::allow_routing()?;
    }
    let out = |n: usize| {
        if args.is_both_ways() { network::interface((pairs.ingress + n) as u32) } else { format!("out{n}") }
    };
    let host = HostInterfaces {
        near: (0..pairs.ingress as u32).map(network::interface).collect(),
        out: (0..pairs.egress).map(out).collect(),
        queues: args.queues,
    };
    let table = Halves::of(args)?;
    let streams = traffic::streams(args, pairs, &host, table.as_ref());
    let count = if args.beside.is_some() { 1 } else { streams.len() };
    let sender = Sender::start(streams, sending)?;
    namespaces()?;
    if !args.is_both_ways() {
        add_sink(&host)?;
    }
    for interface in host.near.iter().chain(host.out.iter().filter(|_| args.is_both_ways())) {
        network::bring_up(interface, &receiving)?;
    }
    let rig = match args.kind {
        Kind::Netvm => Some(netvm::start(&host, pairs, table.as_ref(), &receiving)?),
        kind => {
            kernel::start(kind, &host, pairs, table.as_ref())?;
            None
        }
    };
    for interface in host.near.iter().chain(host.out.iter().filter(|_| args.is_both_ways())) {
        network::pin_threads(interface, &receiving);
    }
    let delays = args.delays.then(|| Delays::open("sink", "end-out0")).transpose()?;
    let mut routers = Routers { host, are_both_ways: args.is_both_ways(), cores: receiving, rig, delays };
    let streams = Streams { size: args.size, count, beside: args.beside };
    trial::run(&args.trials, streams, &sender, &mut routers)
}

/// The sender's core, and those of the routers. Without enough cores, the last of them is the sender's, too.
fn cores(args: &RoutersArgs) -> Result<(u32, Vec<u32>), BenchError> {
    let [sending, _] = two_cores(&args.trials)?;
    let list = if args.trials.cores.is_empty() { allowed_cores() } else { args.trials.cores.clone() };
    let mut receiving: Vec<u32> = list.iter().skip(1).copied().chain([sending]).collect();
    receiving.truncate(args.workers.into());
    if receiving.len() < usize::from(args.workers) {
        return Err(BenchError::Cores { required: usize::from(args.workers), available: list.len() });
    }
    if receiving.contains(&sending) {
        eprintln!("too few cores: a worker shares that of the sender, core {sending}");
    }
    Ok((sending, receiving))
}

/// A namespace into which packets leave. It does not have the destination address, so its kernel drops the packets.
fn add_sink(host: &HostInterfaces) -> Result<(), BenchError> {
    run("netns add sink")?;
    ip(&["netns", "exec", "sink", "sh", "-c", SETTINGS])?;
    let queues = format!("numtxqueues {0} numrxqueues {0}", host.queues);
    for out in &host.out {
        run(&format!("link add {out} {queues} type veth peer name end-{out} netns sink {queues}"))?;
        run(&format!("-n sink link set end-{out} arp off up"))?;
        run(&format!("link set {out} arp off up"))?;
    }
    Ok(())
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
    host: HostInterfaces,
    are_both_ways: bool,
    cores: Vec<u32>,
    rig: Option<Rig>,
    delays: Option<Delays>,
}

impl Sink for Routers {
    fn counts(&mut self) -> Result<Counts, BenchError> {
        let sum = |side, name| -> u64 {
            self.host.of(side).iter().map(|interface| network::counter(interface, name)).sum()
        };
        let left = |n: usize| self.host.out.get(n).map_or(0, |out| network::counter(out, "tx_packets"));
        let back = if self.are_both_ways { sum(Side::In, "tx_packets") } else { 0 };
        let mut counts = Counts { received: left(0) + back, beside: left(1), ..Counts::default() };
        counts
            .drops
            .insert(Place::Backlog, self.cores.iter().map(|core| network::backlog_drops(*core)).sum());
        counts.drops.insert(Place::Interface, sum(Side::In, "rx_dropped") + sum(Side::Out, "rx_dropped"));
        counts.drops.insert(Place::Out, sum(Side::In, "tx_dropped") + sum(Side::Out, "tx_dropped"));
        if let Some(rig) = &mut self.rig {
            let ports = rig.engine().ports();
            counts.drops.insert(Place::Port, ports.iter().map(|view| view.rx_dropped).sum());
            let sample = rig.sample();
            counts.drops.insert(
                Place::Engine,
                DropReason::ALL.into_iter().map(|reason| sample.dropped(reason)).sum(),
            );
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
