// SPDX-License-Identifier: Apache-2.0
//! Frames of 60 bytes, the shortest of Ethernet without FCS, from a packet socket in one namespace to the other, where
//! a socket that nobody reads drops them; and round trips of datagrams between sockets. In: how the namespaces are
//! connected. Out: packets that arrive for each second of the machine's CPU time, and round-trip times.

use std::fs::File;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netvm_wire::{FrameBuilder, MacAddr};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, netdevice};
use rustix::thread::LinkNameSpaceType;
use serde_json::Value;

use super::hosts::{End, Hosts};
use crate::error::BenchError;
use crate::measure::harness::{Figure, Measured, Plan};
use crate::measure::probe::bind;
use crate::measure::report::Unit;

/// Interval at which the engine's manager runs during a measurement.
pub(super) const MANAGER_INTERVAL: Duration = Duration::from_millis(5);
/// Time limit for interfaces to come up and for address resolution.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a frame.
const FRAME: usize = 60;
/// Frames of one system call.
const BATCH: usize = 64;
/// Flows in random order; fewer if the measurements are shorter than a second.
const FLOWS: u16 = 65_000;
const FEW_FLOWS: u16 = 4_096;
/// Flows that the kernel's table learns in a second at least.
const LEARNED_PER_SECOND: u16 = 4_000;
/// Ports of the frames and of the echo (RFC 863, RFC 862).
const DISCARD: u16 = 9;
const ECHO: u16 = 7;
/// The source port of a single flow.
const SOURCE: u16 = 40_000;
/// Time without an answer after which a datagram is lost.
const LOST: Duration = Duration::from_millis(100);
/// The protocol of a packet socket that receives nothing.
const NOTHING: u16 = 0;
/// Bytes that the socket which nobody reads keeps: the kernel's least.
const KEPT: usize = 1;

/// Lets the engine run for some time.
pub type Pause<'a> = &'a mut dyn FnMut(Duration) -> Result<(), BenchError>;

/// What is measured.
pub struct Trial<'a> {
    /// The namespaces.
    pub hosts: &'a Hosts,
    /// The case.
    pub case: String,
    /// Its flows are many, in random order.
    pub many: bool,
    /// The kernel's table learns them first.
    pub learns: bool,
}

/// Frames that arrive.
///
/// # Errors
/// What does not work.
pub fn frames(trial: &Trial<'_>, plan: &Plan, pause: Pause<'_>) -> Measured {
    let [from, to] = trial.hosts.all();
    let many = if plan.window >= Duration::from_secs(1) { FLOWS } else { FEW_FLOWS };
    let flows = if trial.many { many } else { 1 };
    let mac = {
        let _echo = Echo::start(to)?;
        await_echo(from, to, pause)?;
        next_hop(from, to)?
    };
    let _sink = sink(to)?;
    let all = made(from, to, mac, flows)?;
    let stop = Arc::new(AtomicBool::new(false));
    let sender = {
        let stop = Arc::clone(&stop);
        inside(from, move || {
            let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None)?;
            bind(&socket, NOTHING, netdevice::name_to_index(&socket, "eth0")?)?;
            Ok(std::thread::spawn(move || send(&socket, &all, &stop)))
        })?
    };
    let learning =
        if trial.learns { Duration::from_secs((flows / LEARNED_PER_SECOND).into()) } else { Duration::ZERO };
    let mut measured = || -> Result<[f64; 2], BenchError> {
        pause(plan.warm_up + learning)?;
        let (before, spent, began) = (received(to)?, busy()?, Instant::now());
        pause(plan.window)?;
        let (packets, spent) = (received(to)?.saturating_sub(before), busy()?.saturating_sub(spent));
        Ok([spent, began.elapsed()].map(|time| packets as f64 / time.as_secs_f64().max(1e-3) / 1e6))
    };
    let outcome = measured();
    stop.store(true, Ordering::Relaxed);
    let sent = sender.join().map_err(|_| io::Error::other("a thread panicked")).flatten();
    sent.map_err(BenchError::system("cannot send frames"))?;
    let [by_cpu, by_time] = outcome?;
    let case = &trial.case;
    Ok(vec![Figure::new(case, Unit::Mpps, by_cpu), Figure::new(format!("{case}-rate"), Unit::Mpps, by_time)])
}

/// Round trips, one after the other.
///
/// # Errors
/// What does not work.
pub fn round_trips(trial: &Trial<'_>, plan: &Plan, pause: Pause<'_>) -> Measured {
    let [from, to] = trial.hosts.all();
    let _echo = Echo::start(to)?;
    await_echo(from, to, pause)?;
    let (socket, address) = (asker(from)?, (to.address.address, ECHO));
    let (warm_up, window) = (plan.warm_up, plan.window);
    let asking = std::thread::spawn(move || {
        let (began, mut times) = (Instant::now(), Vec::new());
        while began.elapsed() < warm_up + window {
            let asked = Instant::now();
            // A datagram that is lost counts as no trip.
            if socket.send_to(b"trip", address).is_ok()
                && socket.recv(&mut [0; 8]).is_ok()
                && began.elapsed() > warm_up
            {
                times.push(asked.elapsed().as_secs_f64() * 1e6);
            }
        }
        times
    });
    while !asking.is_finished() {
        pause(MANAGER_INTERVAL)?;
    }
    let mut times = asking.join().unwrap_or_default();
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times.get(times.len() * share / 100).copied();
    let (Some(median), Some(p99)) = (at(50), at(99)) else {
        let problem = format!("no round trip within {} s", window.as_secs_f64());
        return Err(BenchError::Peer { peer: "UDP", problem });
    };
    let case = &trial.case;
    Ok(vec![Figure::new(case, Unit::Micros, median), Figure::new(format!("{case}-p99"), Unit::Micros, p99)])
}

/// Runs `work` in the namespace of an end.
fn inside<T: Send + 'static>(
    end: &End,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, BenchError> {
    let path = format!("/run/netns/{}", end.namespace);
    let file = File::open(&path).map_err(BenchError::system(path))?;
    let thread = std::thread::spawn(move || {
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    });
    let outcome = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
    outcome.map_err(BenchError::system("cannot work in a network namespace"))
}

/// Sends frames until it is stopped.
fn send(socket: &OwnedFd, frames: &[[u8; FRAME]], stop: &AtomicBool) -> io::Result<()> {
    let parts: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: FRAME })
        .collect();
    // SAFETY: a structure of integers and pointers: zeros are valid.
    let none: libc::mmsghdr = unsafe { std::mem::zeroed() };
    let message = |part: &libc::iovec| {
        let mut message = none;
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (std::ptr::from_ref(part).cast_mut(), 1);
        message
    };
    let mut messages: Vec<libc::mmsghdr> = parts.iter().map(message).collect();
    // A single frame is sent again and again.
    while messages.len() < BATCH {
        messages.extend_from_within(..1);
    }
    while !stop.load(Ordering::Relaxed) {
        for batch in messages.chunks_mut(BATCH) {
            // SAFETY: messages of so many frames, which outlive the call.
            let sent =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), batch.as_mut_ptr(), batch.len() as u32, 0) };
            // The kernel drops what finds no room.
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOBUFS | libc::EAGAIN) => {}
                _ if sent >= 0 => {}
                _ => return Err(io::Error::last_os_error()),
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    Ok(())
}

/// Frames of so many flows, in random order.
fn made(from: &End, to: &End, mac: MacAddr, flows: u16) -> Result<Vec<[u8; FRAME]>, BenchError> {
    let own = link(from)?;
    let first = if flows == 1 { SOURCE } else { 1 };
    let frame = |port: u16| -> io::Result<[u8; FRAME]> {
        let frame =
            FrameBuilder::new(own, mac).ip(from.address.address, to.address.address).udp(port, DISCARD);
        let bytes = frame.payload(&[0; FRAME - 42]).to_vec().map_err(io::Error::other)?;
        bytes.first_chunk().copied().ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    let all: io::Result<Vec<_>> = (first..first + flows).map(frame).collect();
    let mut all = all.map_err(BenchError::system("cannot make frames"))?;
    // The same order in each run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for n in (1..all.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(n, (state >> 33) as usize % (n + 1));
    }
    Ok(all)
}

/// What `ip` says, as JSON.
fn ip(end: &End, words: &str) -> Result<Value, BenchError> {
    let mut command = Command::new("ip");
    let output = command.args(["-j", "-n", &end.namespace]).args(words.split(' ')).output();
    let output = output.map_err(BenchError::system(format!("ip {words}")))?;
    serde_json::from_slice(&output.stdout).map_err(BenchError::system(format!("what ip {words} says")))
}

fn mac_of(value: &Value) -> Result<MacAddr, BenchError> {
    let mac = value.as_str().and_then(|text| text.parse().ok());
    let missing = || BenchError::Peer { peer: "ip", problem: format!("no MAC address: {value}") };
    mac.ok_or_else(missing)
}

/// The MAC address of an end.
fn link(end: &End) -> Result<MacAddr, BenchError> {
    mac_of(&ip(end, "link show eth0")?[0]["address"])
}

/// The MAC address of the next hop, which the kernel knows.
fn next_hop(from: &End, to: &End) -> Result<MacAddr, BenchError> {
    let route = ip(from, &format!("route get {}", to.address.address))?;
    let address = route[0]["gateway"].as_str().map_or_else(|| to.address.address.to_string(), str::to_owned);
    mac_of(&ip(from, &format!("neighbor show to {address} dev eth0"))?[0]["lladdr"])
}

/// A socket that drops what arrives for it.
fn sink(end: &End) -> Result<UdpSocket, BenchError> {
    let address = end.address.address;
    inside(end, move || {
        let socket = UdpSocket::bind((address, DISCARD))?;
        set_socket_recv_buffer_size(&socket, KEPT)?;
        Ok(socket)
    })
}

/// IP packets that have arrived in the namespace of an end.
fn received(end: &End) -> Result<u64, BenchError> {
    inside(end, || {
        let text = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Ip:")).collect();
        let [names, numbers] = lines[..] else { return Err(io::ErrorKind::InvalidData.into()) };
        let found = names.split(' ').zip(numbers.split(' ')).find(|(name, _)| *name == "InReceives");
        found.and_then(|(_, number)| number.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    })
}

fn asker(end: &End) -> Result<UdpSocket, BenchError> {
    let address: IpAddr = end.address.address;
    inside(end, move || {
        let socket = UdpSocket::bind((address, 0))?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(socket)
    })
}

/// Waits until datagrams come back.
fn await_echo(from: &End, to: &End, pause: Pause<'_>) -> Result<(), BenchError> {
    let (socket, began) = (asker(from)?, Instant::now());
    socket.set_nonblocking(true).map_err(BenchError::system("a socket"))?;
    while began.elapsed() < SETUP_TIMEOUT {
        let _ = socket.send_to(b"first", (to.address.address, ECHO));
        pause(MANAGER_INTERVAL)?;
        if socket.recv(&mut [0; 8]).is_ok() {
            return Ok(());
        }
    }
    Err(BenchError::Peer { peer: "UDP", problem: format!("{} does not answer", to.address.address) })
}

/// CPU time that all processors together have spent on anything since the start.
pub(super) fn busy() -> Result<Duration, BenchError> {
    let text = std::fs::read_to_string("/proc/stat").map_err(BenchError::system("cannot read /proc/stat"))?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|number| number.parse().ok()).collect();
    // User, nice, system; then idle and waiting; interrupts of both kinds.
    let spent = [0, 1, 2, 5, 6].iter().filter_map(|n| ticks.get(*n)).sum::<u64>();
    Ok(Duration::from_secs_f64(spent as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// A thread that sends datagrams back; it ends when dropped.
struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start(end: &End) -> Result<Self, BenchError> {
        let address = end.address.address;
        let socket = inside(end, move || {
            let socket = UdpSocket::bind((address, ECHO))?;
            socket.set_read_timeout(Some(LOST))?;
            Ok(socket)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut bytes) {
                    let _ = socket.send_to(bytes.get(..length).unwrap_or_default(), from);
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
