//! `way`: packets from a sender in a namespace into a program, by one of the ways that Linux and netvm offer.
//!
//! ```text
//!  core A                core B
//!  sender ── far veth ── near: libpcap, TPACKET_V3, AF_XDP or XDP, and netvm-bench-way     platform host
//!                        near: netvm's AF_XDP port ── rule that drops                      host, netvm-port
//!                        near: netvm's AF_XDP port ── NF process                           host, netvm-nf
//!                        near: netvm's AF_XDP port ── vhost-user ── guest: the same ways   platform guest
//!                        near: netvm's AF_XDP port ── e1000 ── guest: the same ways        platform guest-e1000
//!                        near: netvm's AF_XDP port ── ivshmem ── NF in a VM                guest, netvm-nf
//! ```
//!
//! All that receives has one core, the kernel's share too (Schultz and Crowley, section IV). Every way has a buffer of
//! about 2 MB or 2,048 packets, so that none does better by a queue.

use std::io::{BufRead, BufReader, PipeReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, ValueEnum};
use netvm_config::model::{Action, CardModel, Idle, Output, PortId, PortKind, VhostDma, VhostMode};
use netvm_engine::DropReason;
use netvm_vm::{Accel, Card, CardKind};
use netvm_wire::MacAddr;
use serde::Deserialize;

use super::network;
use super::trial::{self, Counts, Sink, TrialArgs};
use crate::error::BenchError;
use crate::machine::allowed_cores;
use crate::setup::guest::{Guest, Running, beside, pinned};
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::sender::{Sender, Stream};

const PROGRAM: &str = "netvm-bench-way";
/// The NF's, as the program has it.
const ROLE: &str = "way";
/// Buffers of the NF's group.
const BUFFERS: u32 = 8192;
const GUEST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const DESTINATION: [u8; 4] = [10, 255, 0, 1];

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// In a process of the host
    Host,
    /// In a virtual machine, with a card on a vhost-user port
    Guest,
    /// In a virtual machine, with an e1000 card
    #[value(name = "guest-e1000")]
    GuestE1000,
}

/// The way into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// libpcap
    Libpcap,
    /// The mapped ring of a packet socket, version 3
    TpacketV3,
    /// An AF_XDP socket
    AfXdp,
    /// Counted in the kernel by an XDP program
    Xdp,
    /// Counted by netvm's engine at its AF_XDP port
    NetvmPort,
    /// An NF of netvm
    NetvmNf,
}

/// What is done with each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Monitor {
    /// Counts packets and bytes
    Null,
    /// Also enters each into a table of flows
    Flow,
}

/// The flows of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flows {
    /// All packets are of one flow
    Single,
    /// Each packet is of a flow of its own
    Multi,
}

/// Options of `way`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct WayArgs {
    /// Where the program runs
    #[arg(long, default_value = "host")]
    pub platform: Platform,
    /// The way of packets into it
    #[arg(long)]
    pub way: Way,
    /// What it does with each packet
    #[arg(long, default_value = "null")]
    pub monitor: Monitor,
    /// The flows of the traffic
    #[arg(long, default_value = "single")]
    pub flows: Flows,
    /// Bytes of a frame, FCS included
    #[arg(long, value_parser = clap::value_parser!(u16).range(64..=1518), default_value = "64")]
    pub size: u16,
    /// QEMU's accelerator: emulation or KVM
    #[arg(long, value_parser = ["tcg", "kvm"], default_value = "tcg")]
    pub accel: String,
    /// The trials.
    #[command(flatten)]
    pub trials: TrialArgs,
}

/// Runs the trials.
///
/// # Errors
/// [`BenchError`] if the way cannot be set up.
pub fn measure(args: &WayArgs) -> Result<(), BenchError> {
    let [sending, receiving] = two_cores(&args.trials)?;
    // Outside the namespace, as its kernel may have to be downloaded.
    let guest = image(args, receiving)?;
    network::enter()?;
    let interface = network::interface(0);
    let stream = Stream {
        interface: interface.clone(),
        size: args.size,
        is_multi: args.flows == Flows::Multi,
        is_spread: false,
        destinations: vec![(GUEST_MAC, DESTINATION)],
    };
    let sender = Sender::start(vec![stream], sending)?;
    network::bring_up(&interface, receiving)?;
    let mut receiver = Receiver::start(args, &interface, (receiving, guest))?;
    network::pin_threads(&interface, receiving);
    trial::run(&args.trials, (args.size, None), &sender, &mut receiver)
}

/// The sender's core, and that of all that receives.
///
/// # Errors
/// [`BenchError::Cores`] without two cores.
pub fn two_cores(args: &TrialArgs) -> Result<[u32; 2], BenchError> {
    let list = if args.cores.is_empty() { allowed_cores() } else { args.cores.clone() };
    match list.as_slice() {
        [sending, receiving, ..] if sending != receiving => Ok([*sending, *receiving]),
        _ => Err(BenchError::Cores { wanted: 2, have: list.len().min(1) }),
    }
}

/// A line of the program's output (`crates/bench-way/src/report.rs`).
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Report {
    received: u64,
    flows: u64,
    dropped: u64,
}

/// What receives the packets.
struct Receiver {
    interface: String,
    core: u32,
    /// The engine, if netvm takes part.
    rig: Option<Rig>,
    /// The port whose packets have arrived once the engine has them, if there is no program.
    port: Option<PortId>,
    /// The program's last report.
    report: Arc<Mutex<Report>>,
    _process: Option<Process>,
    _running: Option<Running>,
    /// Its image and sockets.
    _guest: Option<Guest>,
}

/// A process that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Receiver {
    /// `place`: the core, and the guest if the program runs in one.
    fn start(args: &WayArgs, interface: &str, place: (u32, Option<Guest>)) -> Result<Self, BenchError> {
        let (core, guest) = place;
        let (console, output) = std::io::pipe().map_err(BenchError::system("cannot create a pipe"))?;
        let mut receiver = Self {
            interface: interface.to_owned(),
            core,
            rig: None,
            port: None,
            report: follow(console)?,
            _process: None,
            _running: None,
            _guest: None,
        };
        let words = arguments(args, interface);
        if let Some(guest) = guest {
            let guest = guest.with_console(output);
            if args.way == Way::NetvmNf {
                let mut rig = nf_rig(interface, core)?;
                rig.launch_guest(ROLE, &guest)?;
                receiver.rig = Some(rig);
            } else {
                let (rig, running) = guest_rig(interface, core, (&guest, card(args.platform)))?;
                (receiver.rig, receiver._running) = (Some(rig), Some(running));
            }
            receiver._guest = Some(guest);
            return Ok(receiver);
        }
        match args.way {
            Way::NetvmPort => {
                let (mut layout, port) = port(interface, core);
                if args.monitor == Monitor::Flow {
                    layout.monitor_flows();
                }
                layout.rule(port, Action::Drop);
                receiver.rig = Some(Rig::start(&layout.build(), &[])?);
                receiver.port = Some(port);
            }
            Way::NetvmNf => {
                let mut command = pinned(core, &program()?);
                command.args(words).stdout(output);
                let mut rig = nf_rig(interface, core)?;
                rig.launch_program(ROLE, command)?;
                receiver.rig = Some(rig);
            }
            _ => {
                let mut command = Command::new(program()?);
                command.args(words).arg(format!("--core={core}")).stdin(Stdio::null()).stdout(output);
                let child = command.spawn().map_err(BenchError::system(format!("cannot start {PROGRAM}")))?;
                receiver._process = Some(Process(child));
                receiver.wait_until_ready()?;
            }
        }
        Ok(receiver)
    }

    /// Waits for the first report of a process of the host.
    fn wait_until_ready(&mut self) -> Result<(), BenchError> {
        let start = std::time::Instant::now();
        while Arc::strong_count(&self.report) > 1 && start.elapsed() < Duration::from_secs(10) {
            if self.reported().is_some() {
                return Ok(());
            }
            std::thread::sleep(trial::TICK);
        }
        let problem = "did not begin to receive; its message is above".to_owned();
        Err(BenchError::Peer { peer: PROGRAM, problem })
    }

    fn reported(&self) -> Option<Report> {
        let report = *self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (report.received != u64::MAX).then_some(report)
    }
}

impl Sink for Receiver {
    fn counts(&mut self) -> Result<Counts, BenchError> {
        let mut counts = Counts::default();
        let report = self.reported().unwrap_or_default();
        (counts.received, counts.flows) = (report.received, report.flows);
        counts.drops.insert("socket", report.dropped);
        counts.drops.insert("backlog", network::backlog_drops(self.core));
        counts.drops.insert("interface", network::counter(&self.interface, "rx_dropped"));
        if let Some(rig) = &mut self.rig {
            let views = rig.engine().ports();
            counts.drops.insert("port", views.first().map_or(0, |view| view.rx_dropped));
            let sample = rig.sample();
            // Every NF drops what it has counted.
            let engine = DropReason::ALL.into_iter().filter(|reason| *reason != DropReason::Verdict);
            let dropped = engine.map(|reason| sample.dropped(reason)).sum();
            match self.port {
                Some(port) => {
                    let view = views.iter().find(|view| view.id == port);
                    counts.received = view.map_or(0, |view| view.rx_packets);
                    let monitors = rig.engine().workers().map(|worker| worker.counters);
                    let flows = monitors.map(|it| it.monitor.flows.get() + it.monitor.evicted.get());
                    counts.flows = flows.sum();
                }
                None => {
                    counts.drops.insert("engine", dropped);
                }
            }
        }
        Ok(counts)
    }

    fn pause(&mut self, time: Duration) -> Result<(), BenchError> {
        match &mut self.rig {
            Some(rig) => rig.run(time),
            None if Arc::strong_count(&self.report) < 2 => {
                let problem = "ended during the measurement; its message is above".to_owned();
                Err(BenchError::Peer { peer: PROGRAM, problem })
            }
            None => {
                std::thread::sleep(time);
                Ok(())
            }
        }
    }
}

fn program() -> Result<PathBuf, BenchError> {
    beside(PROGRAM, PROGRAM)
}

/// Options of the program.
fn arguments(args: &WayArgs, interface: &str) -> Vec<String> {
    let word = |value: Option<clap::builder::PossibleValue>| {
        value.map_or(String::new(), |value| value.get_name().to_owned())
    };
    vec![
        format!("--way={}", word(args.way.to_possible_value())),
        format!("--monitor={}", word(args.monitor.to_possible_value())),
        format!("--interface={interface}"),
    ]
}

/// The guest in which the program is to run; `None` if it is to run here.
fn image(args: &WayArgs, core: u32) -> Result<Option<Guest>, BenchError> {
    let accel = if args.accel == "kvm" { Accel::Kvm } else { Accel::Tcg };
    let words = arguments(args, "eth0");
    match (args.platform, args.way) {
        (Platform::Host, _) => Ok(None),
        (Platform::Guest | Platform::GuestE1000, Way::NetvmPort) => {
            let problem = "the engine does not run in a guest: choose the platform host".to_owned();
            Err(BenchError::Guest { problem })
        }
        (Platform::GuestE1000, Way::NetvmNf) => {
            let problem = "an NF in a VM has no network card: choose the platform guest".to_owned();
            Err(BenchError::Guest { problem })
        }
        (Platform::Guest, Way::NetvmNf) => {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            Guest::nf(&program()?, &words, accel, core).map(Some)
        }
        (platform, _) => {
            let command = format!("program {}", words.join(" "));
            Guest::with_interface(&program()?, (&command, card(platform)), accel, core).map(Some)
        }
    }
}

/// The card of an ordinary guest.
const fn card(platform: Platform) -> CardKind {
    match platform {
        Platform::GuestE1000 => CardKind::VfioUser,
        Platform::Host | Platform::Guest => CardKind::VhostUser,
    }
}

/// A thread that keeps the last report of an output, until its end.
fn follow(output: PipeReader) -> Result<Arc<Mutex<Report>>, BenchError> {
    let last = Arc::new(Mutex::new(Report { received: u64::MAX, ..Report::default() }));
    let shared = Arc::clone(&last);
    let read = move || {
        // A guest's console may print anything.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let Some(start) = line.iter().position(|byte| *byte == b'{') else {
                if line.starts_with(PROGRAM.as_bytes()) {
                    eprintln!("{}", String::from_utf8_lossy(&line).trim());
                }
                continue;
            };
            let text = String::from_utf8_lossy(&line[start..]);
            if let Ok(report) = serde_json::from_str(text.trim()) {
                *shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = report;
            }
        }
    };
    let thread = std::thread::Builder::new().name("reports".to_owned()).spawn(read);
    thread.map_err(BenchError::system("cannot start a thread"))?;
    Ok(last)
}

/// A host with netvm's port on the interface.
fn port(interface: &str, core: u32) -> (Layout, PortId) {
    let mut layout = Layout::new(core, Idle::Adaptive);
    let kind = PortKind::AfXdp { interface: interface.to_owned(), generic: false };
    let port = layout.port("near", kind, 1500);
    (layout, port)
}

fn nf_rig(interface: &str, core: u32) -> Result<Rig, BenchError> {
    let (mut layout, port) = port(interface, core);
    let group = layout.group("study", BUFFERS, 2048);
    let nf = layout.nf(ROLE, group);
    layout.chain("study", port, &[nf], Output::Port(port));
    Rig::start(&layout.build(), &[])
}

fn guest_rig(
    interface: &str,
    core: u32,
    (guest, card): (&Guest, CardKind),
) -> Result<(Rig, Running), BenchError> {
    let (mut layout, near) = port(interface, core);
    let path = guest.socket();
    let kind = match card {
        CardKind::VhostUser => {
            PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off }
        }
        CardKind::VfioUser => {
            PortKind::E1000 { path: path.clone(), mac: Some(GUEST_MAC), model: CardModel::default() }
        }
    };
    let port = layout.port("guest", kind, 1500);
    layout.rule(near, Action::Port(port));
    let rig = Rig::start(&layout.build(), &[])?;
    let card = Card {
        name: "guest".to_owned(),
        kind: card,
        socket: path,
        connects: true,
        mac: GUEST_MAC.to_string(),
        queues: 1,
    };
    Ok((rig, guest.start_with(card)?))
}
