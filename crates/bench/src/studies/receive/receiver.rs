// SPDX-License-Identifier: Apache-2.0
//! The receiver of `receive`: a program, netvm's engine or an NF, on the host or in a guest.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netvm_engine::DropReason;
use netvm_model::{Action, CardModel, Doorbells, Idle, Output, PortId, PortKind, VhostDma, VhostMode};
use netvm_vm::{Card, CardKind};
use serde::Deserialize;

use super::{GUEST_MAC, Method, MonitorKind, PROGRAM, ReceiveArgs, arguments, card, program};
use crate::error::BenchError;
use crate::setup::guest::{Guest, Running, pinned};
use crate::setup::layout::Layout;
use crate::setup::network;
use crate::setup::rig::Rig;
use crate::studies::trial::{self, Counts, Place, Sink};

/// The NF's role, as in the program.
const ROLE: &str = "receive";
/// Buffers of the NF's group.
const BUFFERS: u32 = 8192;

/// A line of the program's output (`crates/bench-receive/src/report.rs`).
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Report {
    received: u64,
    flows: u64,
    dropped: u64,
}

/// The receiver of the packets.
pub(super) struct Receiver {
    interface: String,
    core: u32,
    /// The engine, if netvm takes part.
    rig: Option<Rig>,
    /// The port that counts arrived packets, if no program receives them.
    port: Option<PortId>,
    /// The program's last report.
    report: Arc<Mutex<Report>>,
    _process: Option<Process>,
    _running: Option<Running>,
    /// The guest's image and sockets.
    _guest: Option<Guest>,
}

/// A process; killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Receiver {
    /// With a guest, the program runs in it.
    pub(super) fn start(
        args: &ReceiveArgs,
        interface: &str,
        core: u32,
        guest: Option<Guest>,
    ) -> Result<Self, BenchError> {
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
            if args.method == Method::NETVM_NF {
                let mut rig = nf_rig(interface, core)?;
                rig.launch_guest(ROLE, &guest)?;
                receiver.rig = Some(rig);
            } else {
                let (rig, running) = guest_rig(interface, core, &guest, card(args.platform))?;
                (receiver.rig, receiver._running) = (Some(rig), Some(running));
            }
            receiver._guest = Some(guest);
            return Ok(receiver);
        }
        match args.method {
            Method::NetvmPort => {
                let (mut layout, port) = port(interface, core);
                if args.monitor == MonitorKind::Flow {
                    layout.monitor_flows();
                }
                layout.rule(port, Action::Drop);
                receiver.rig = Some(Rig::start(&layout.build(), &[])?);
                receiver.port = Some(port);
            }
            Method::NETVM_NF => {
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

    /// Waits for the first report of a process on the host.
    fn wait_until_ready(&mut self) -> Result<(), BenchError> {
        let start = Instant::now();
        while Arc::strong_count(&self.report) > 1 && start.elapsed() < Duration::from_secs(10) {
            if self.reported().is_some() {
                return Ok(());
            }
            std::thread::sleep(trial::POLL_INTERVAL);
        }
        let problem = "did not begin to receive; its message is above".to_owned();
        Err(BenchError::Peer { peer: PROGRAM, problem })
    }

    fn reported(&self) -> Option<Report> {
        let report = *self.report.lock().unwrap_or_else(PoisonError::into_inner);
        (report.received != u64::MAX).then_some(report)
    }
}

impl Sink for Receiver {
    fn counts(&mut self) -> Result<Counts, BenchError> {
        let mut counts = Counts::default();
        let report = self.reported().unwrap_or_default();
        (counts.received, counts.flows) = (report.received, report.flows);
        counts.drops.insert(Place::Socket, report.dropped);
        counts.drops.insert(Place::Backlog, network::backlog_drops(self.core));
        counts.drops.insert(Place::Interface, network::counter(&self.interface, "rx_dropped"));
        if let Some(rig) = &mut self.rig {
            let views = rig.engine().ports();
            counts.drops.insert(Place::Port, views.first().map_or(0, |view| view.rx_dropped));
            let sample = rig.sample();
            // The NF itself drops every packet that it has counted.
            let nf = sample.dropped(DropReason::ChainFull);
            let by_itself =
                |reason: &DropReason| ![DropReason::Verdict, DropReason::ChainFull].contains(reason);
            let engine = DropReason::ALL.into_iter().filter(by_itself);
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
                    counts.drops.extend([(Place::Engine, dropped), (Place::Nf, nf)]);
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

/// Starts a thread that stores the last report in an output, until the output ends.
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
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = report;
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
    guest: &Guest,
    card: CardKind,
) -> Result<(Rig, Running), BenchError> {
    let (mut layout, near) = port(interface, core);
    let path = guest.socket();
    let kind = match card {
        CardKind::VhostUser => {
            PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off }
        }
        CardKind::VfioUser => PortKind::E1000 {
            path: path.clone(),
            mac: Some(GUEST_MAC),
            model: CardModel::default(),
            doorbells: Doorbells::default(),
        },
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
        mtu: None,
    };
    Ok((rig, guest.start_with(card)?))
}
