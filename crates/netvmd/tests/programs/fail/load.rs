// SPDX-License-Identifier: Apache-2.0
//! Programs of each kind that fail under load: packets go past them in time, each is counted, none overtakes another
//! one of its flow, and no buffer is lost.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use netvm_api::{CaptureRequest, NfState};
use netvm_capture_client::{Limits, Output, Session, Target, compile, run};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::Daemon;
use crate::common::captured::read;
use crate::common::hosts::run as run_command;
use crate::foreign::{KINDS, transparent, used};
use crate::seen::{client, runtime};
use crate::site::Site;

const FLOWS: u32 = 4;
const PORT: u16 = 9000;
/// From notice to the first packet that goes past the program.
const BYPASS: Duration = Duration::from_millis(100);
/// The longest time until the engine notices that nothing comes through: five probes, and two looks.
const NOTICE: Duration = Duration::from_millis(280);
/// Buffers of caches and queues, which may be elsewhere afterwards.
pub(super) const SPARE: u32 = 256;

/// Numbered datagrams from the client to the server.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Vec<(u32, u32)>>,
}

impl Load {
    pub(super) fn start(site: &Site) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let ended = Arc::clone(&stop);
        let receiver = site.server.inside(move || {
            let socket = UdpSocket::bind((Site::SERVER, PORT)).unwrap();
            // The receiver may get no core for a while.
            set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            ready.send(()).unwrap();
            let (mut all, mut datagram) = (Vec::new(), [0; 8]);
            loop {
                match socket.recv(&mut datagram) {
                    Ok(_) => {
                        let [a, b, c, d, e, f, g, h] = datagram;
                        all.push((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
                    }
                    Err(_) if ended.load(Ordering::Relaxed) => return all,
                    Err(_) => {}
                }
            }
        });
        is_ready.recv().unwrap();
        let ended = Arc::clone(&stop);
        let sender = site.client.inside(move || {
            let socket = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect((Site::SERVER, PORT)).unwrap();
                socket
            };
            let flows: Vec<UdpSocket> = (0..FLOWS).map(|_| socket()).collect();
            let mut sent = 0;
            for number in 0u32.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                for (flow, socket) in (0u32..).zip(&flows) {
                    let datagram = [flow.to_be_bytes(), number.to_be_bytes()].concat();
                    sent += u64::from(socket.send(&datagram).is_ok());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        Self { stop, sender, receiver }
    }

    /// Ends it. Returns how many datagrams were lost; fails if one has overtaken another one of its flow.
    pub(super) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, received) = (self.sender.join().unwrap(), self.receiver.join().unwrap());
        for flow in 0..FLOWS {
            let numbers = received.iter().filter(|(of, _)| *of == flow).map(|(_, number)| *number);
            let numbers: Vec<u32> = numbers.collect();
            assert!(!numbers.is_empty(), "flow {flow}");
            let turned = numbers.windows(2).find(|pair| pair[0] >= pair[1]);
            assert_eq!(turned, None, "flow {flow}");
        }
        sent - received.len() as u64
    }
}

/// What leaves by the server's port, until told to end.
pub(super) struct Watched {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    file: PathBuf,
}

impl Watched {
    pub(super) fn start(daemon: &Daemon, folder: &Path) -> Self {
        let file = folder.join("server.pcapng");
        let request = CaptureRequest {
            at: vec!["server".to_owned()],
            filter: compile("udp").unwrap(),
            ..CaptureRequest::default()
        };
        let session = runtime().block_on(Session::start(&client(daemon), &request)).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (flag, path) = (Arc::clone(&ended), file.clone());
        let thread = std::thread::spawn(move || {
            let mut output = Output::open(Target::File(path, None)).unwrap();
            run(session, &mut output, Limits { packets: None, stop: Some(&flag) }).unwrap();
        });
        Self { ended, thread, file }
    }

    /// The longest time without a packet, by the engine's own stamps.
    pub(super) fn longest_gap(self) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        let times: Vec<Duration> = read(&self.file).iter().map(|packet| packet.at).collect();
        let gaps = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.max().unwrap()
    }
}

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// The process ends.
    Killed,
    /// It forwards nothing, its queues fill up, and later it goes on.
    Stopped,
}

impl Fault {
    pub(super) const fn limit(self) -> Duration {
        match self {
            Self::Killed => BYPASS,
            Self::Stopped => BYPASS.saturating_add(NOTICE),
        }
    }

    fn begin(self, site: &Site, daemon: &Daemon, attach: &str) {
        match self {
            Self::Killed => signal(site, daemon, Signal::KILL),
            Self::Stopped if is_kernel(attach) => {
                run_command(&format!("ip -n nf-{}.0 link set right nomaster", site.role));
            }
            Self::Stopped => signal(site, daemon, Signal::STOP),
        }
    }

    fn end(self, site: &Site, daemon: &Daemon, attach: &str) {
        match self {
            Self::Killed => {}
            Self::Stopped if is_kernel(attach) => {
                run_command(&format!("ip -n nf-{}.0 link set right master br0", site.role));
            }
            Self::Stopped => signal(site, daemon, Signal::CONT),
        }
    }
}

/// Whether the kernel forwards, so that a stopped process changes nothing.
pub(super) fn is_kernel(attach: &str) -> bool {
    !matches!(attach, "vhost-user" | "memif")
}

fn signal(site: &Site, daemon: &Daemon, signal: Signal) {
    let group = Pid::from_raw(site.nf(daemon).pid.unwrap() as i32).unwrap();
    kill_process_group(group, signal).unwrap();
}

/// Has the program fail under load, and recover. Returns the longest time without a packet.
fn fail(site: &Site, daemon: &Daemon, attach: &str, fault: Fault) -> Duration {
    site.until(daemon, NfState::Running);
    daemon.until_flowing("out");
    let folder = tempfile::tempdir().unwrap();
    let watched = Watched::start(daemon, folder.path());
    // Packets before and after the fault, between which the gap is.
    std::thread::sleep(Duration::from_millis(200));
    let restarts = site.nf(daemon).restarts;
    fault.begin(site, daemon, attach);
    daemon.until("it is noticed", |daemon| {
        let nf = site.nf(daemon);
        nf.state != NfState::Running || nf.restarts > restarts
    });
    daemon.until_flowing("out");
    std::thread::sleep(Duration::from_millis(300));
    let gap = watched.longest_gap();
    fault.end(site, daemon, attach);
    site.until(daemon, NfState::Running);
    daemon.until_flowing("out");
    gap
}

/// The packets of chain `out` that have gone into the program and that it has returned, with its own ones.
fn passed(daemon: &Daemon, site: &Site) -> [u64; 2] {
    let counters = site.nf(daemon).counters;
    ["left_in", "right_out"].map(|key| counters[key])
}

/// Waits until what has entered the chain has left it, or has gone into the program and not come back. Then no more
/// datagrams are lost than that.
pub(super) fn each_is_counted(daemon: &Daemon, site: &Site, attach: &str, lost: u64) {
    daemon.until("each packet is counted", |daemon| {
        let stats = daemon.stats();
        let chain = stats.chains.iter().find(|chain| chain.name == "out").unwrap();
        let [into, back] = passed(daemon, site);
        chain.entered + back == chain.left + into
    });
    let [into, back] = passed(daemon, site);
    // The kernel's bridge sends some frames of its own.
    let own = if is_kernel(attach) { 16 } else { 0 };
    let kernel = site.dropped_by_kernel();
    let drops = daemon.stats().drops;
    assert!(
        lost + back <= into + own + kernel,
        "{attach}: {lost} lost, {kernel} by the kernel, {into} in, {back} back: {drops:#?}"
    );
}

fn fails_under_load(fault: Fault) {
    for attach in KINDS {
        let name = if fault == Fault::Killed { "lk" } else { "lo" };
        let Some(site) = Site::new(name) else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        let daemon = site.start(&program, "on_failure = \"bypass\"");
        site.until(&daemon, NfState::Running);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let before = used(&daemon);
        let load = Load::start(&site);
        // Another program may have the cores for longer than the limit, but not each time.
        let mut gaps = Vec::new();
        while gaps.len() < 4 && gaps.iter().all(|gap| *gap > fault.limit()) {
            gaps.push(fail(&site, &daemon, attach, fault));
        }
        let lost = load.stop();
        assert!(gaps.iter().any(|gap| *gap <= fault.limit()), "{attach}: {gaps:?}: {}", daemon.log());
        each_is_counted(&daemon, &site, attach, lost);
        daemon.until("all buffers are back", |daemon| used(daemon) <= before + SPARE);
    }
}

#[test]
fn a_program_that_is_killed_under_load_is_passed_by_in_time() {
    fails_under_load(Fault::Killed);
}

#[test]
fn a_program_that_stops_under_load_is_passed_by_in_time() {
    fails_under_load(Fault::Stopped);
}

#[test]
fn a_restart_under_load_loses_only_what_the_program_has() {
    for attach in KINDS {
        let Some(site) = Site::new("lr") else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        let daemon = site.start(&program, "on_failure = \"bypass\"");
        site.until(&daemon, NfState::Running);
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let before = used(&daemon);
        let load = Load::start(&site);
        daemon.until_flowing("out");
        for restarts in 1..3 {
            let path = netvm_api::path::RESTART.replace("{role}", &site.role);
            let _: serde_json::Value = daemon.post(&path, "");
            daemon.until("it has started again", |daemon| {
                let nf = site.nf(daemon);
                nf.restarts >= restarts && nf.state == NfState::Running
            });
            daemon.until_flowing("out");
        }
        let lost = load.stop();
        each_is_counted(&daemon, &site, attach, lost);
        daemon.until("all buffers are back", |daemon| used(daemon) <= before + SPARE);
    }
}

#[test]
fn traffic_does_not_wait_for_a_slow_start_and_none_is_lost() {
    for attach in KINDS {
        let Some(site) = Site::new("ls") else { return };
        let Some(program) = transparent(&site, attach) else { continue };
        // The same command, a second later.
        let command = program.lines().find(|line| line.starts_with("command = ")).unwrap();
        let list = command.strip_prefix("command = [").unwrap();
        let later = format!("command = [\"sh\", \"-c\", \"sleep 1; exec \\\"$@\\\"\", \"later\", {list}");
        let program = format!("{}while_starting = \"bypass\"\n", program.replace(command, &later));
        let daemon = site.start(&program, "on_failure = \"drop\"");
        assert!(site.pings(), "{attach}: {}", daemon.log());
        let load = Load::start(&site);
        site.until(&daemon, NfState::Running);
        daemon.until("it gets packets", |daemon| site.nf(daemon).counters["left_in"] > 20);
        let lost = load.stop();
        each_is_counted(&daemon, &site, attach, lost);
        assert_eq!(site.nf(&daemon).restarts, 0, "{attach}: {}", daemon.log());
    }
}
