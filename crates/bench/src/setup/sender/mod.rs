// SPDX-License-Identifier: Apache-2.0
//! Sends UDP at chosen rates from a network namespace of its own, over veth pairs.

mod frames;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender as Channel, channel};
use std::thread;
use std::time::{Duration, Instant};

use netvm_wire::MacAddr;

use crate::error::BenchError;
use crate::machine::pin;
use crate::measure::probe::{bind, ip, leave_network};
use frames::Frames;

/// Packets sent at once.
pub const BURST: usize = 32;
/// Bytes of the frame check sequence, which network interfaces do not pass on.
pub const FCS: u16 = 4;
/// Send buffer of the socket in bytes. The kernel charges a packet on a veth pair to the sender's socket until it is
/// received. With the default of 200 KB, the sender would wait for a slow receiver and never lose a packet.
const SEND_BUFFER: libc::c_int = 64 << 20;
/// Where a packet without a tag has the time at which it was sent, in nanoseconds since 1970, big-endian; 0 without
/// one.
pub const STAMP: usize = frames::ETHERNET + frames::IP + frames::UDP;
/// If no burst is due within this time, the sender sleeps.
const SLEEP_ABOVE: Duration = Duration::from_micros(100);

/// A destination of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its VLAN. Either all destinations of a stream have one, or none.
    pub vlan: Option<u16>,
    /// Its IPv4 address.
    pub address: [u8; 4],
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The other end of the veth pair, in the caller's namespace.
    pub interface: String,
    /// Queues of both ends; packets are spread over them by flow.
    pub queues: u16,
    /// Bytes of a frame, FCS included.
    pub size: u16,
    /// Each packet is a new flow (Schultz and Crowley, section III-E).
    pub is_multi: bool,
    /// The destination changes after each packet instead of each burst.
    pub is_spread: bool,
    /// The first packet of each burst carries the time at which it is sent ([`STAMP`]); only without VLANs.
    pub is_timed: bool,
    /// Destinations, in turn.
    pub destinations: Vec<Destination>,
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Packets offered.
    pub packets: u64,
    /// Of these, packets that the interface refused because the ring at the other end was full.
    pub refused: u64,
    /// The duration.
    pub seconds: f64,
}

/// A sending thread. Its namespace ends with it.
#[derive(Debug)]
pub struct Sender {
    commands: Channel<(Vec<f64>, Duration)>,
    results: Receiver<Result<Vec<Sent>, BenchError>>,
}

impl Sender {
    /// Starts the thread on a core. It creates a veth pair for each stream, with the near end in this process's
    /// namespace.
    ///
    /// # Errors
    /// The thread could not create its namespace, interfaces or sockets.
    pub fn start(streams: Vec<Stream>, core: u32) -> Result<Self, BenchError> {
        let (commands, inbox) = channel::<(Vec<f64>, Duration)>();
        let (outbox, results) = channel();
        let work = move || match set_up(&streams, core) {
            Ok(mut sockets) => {
                let _ = outbox.send(Ok(Vec::new()));
                while let Ok((rates, time)) = inbox.recv() {
                    let _ = outbox.send(send(&mut sockets, &rates, time));
                }
            }
            Err(error) => drop(outbox.send(Err(error))),
        };
        thread::Builder::new()
            .name("sender".to_owned())
            .spawn(work)
            .map_err(BenchError::system("cannot start a thread"))?;
        let sender = Self { commands, results };
        sender.result(Duration::from_secs(30)).map(|_| sender)
    }

    /// Starts to send, each stream at its rate in packets per second.
    pub fn send(&self, rates: &[f64], time: Duration) {
        // If the thread has ended, `result` reports it.
        let _ = self.commands.send((rates.to_vec(), time));
    }

    /// Waits up to `timeout` for the thread to finish sending; returns what it sent.
    fn result(&self, timeout: Duration) -> Result<Vec<Sent>, BenchError> {
        let ended = |_| BenchError::system("the sending thread")(io::Error::other("it ended or hangs"));
        self.results.recv_timeout(timeout).map_err(ended)?
    }

    /// What the thread has sent of each stream; `None` while it is still sending.
    ///
    /// # Errors
    /// The kernel refused a packet, or the thread has ended.
    pub fn poll(&self) -> Result<Option<Vec<Sent>>, BenchError> {
        match self.results.try_recv() {
            Ok(result) => result.map(Some),
            Err(std::sync::mpsc::TryRecvError::Empty) => Ok(None),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => self.result(Duration::ZERO).map(Some),
        }
    }
}

/// A stream and its socket.
struct StreamSocket {
    socket: OwnedFd,
    frames: Frames,
}

fn set_up(streams: &[Stream], core: u32) -> Result<Vec<StreamSocket>, BenchError> {
    pin(core).map_err(BenchError::system(format!("cannot pin to core {core}")))?;
    leave_network()?;
    // Turns off router solicitations, so that the kernel sends no packets. A kernel without IPv6 lacks the file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let home = std::process::id();
    let open_stream = |(n, stream): (usize, &Stream)| -> Result<StreamSocket, BenchError> {
        let (far, near) = (format!("far{n}"), &stream.interface);
        let queues = format!("numtxqueues {0} numrxqueues {0}", stream.queues);
        let add = format!("link add {far} {queues} type veth peer name {near} {queues} netns {home}");
        ip(&add.split_whitespace().collect::<Vec<_>>())?;
        ip(&["link", "set", &far, "arp", "off", "up"])?;
        let socket = open(&far).map_err(BenchError::system("a packet socket to send"))?;
        Ok(StreamSocket { socket, frames: Frames::new(stream) })
    };
    streams.iter().enumerate().map(open_stream).collect()
}

/// Sends each stream at its rate for a time. The streams take turns: one burst of each stream that has a burst due.
fn send(sockets: &mut [StreamSocket], rates: &[f64], time: Duration) -> Result<Vec<Sent>, BenchError> {
    let (start, mut sent) = (Instant::now(), vec![Sent::default(); sockets.len()]);
    loop {
        let elapsed = start.elapsed();
        if elapsed >= time {
            sent.iter_mut().for_each(|sent| sent.seconds = elapsed.as_secs_f64());
            return Ok(sent);
        }
        let mut next = Some(time);
        for ((StreamSocket { socket, frames }, rate), sent) in sockets.iter_mut().zip(rates).zip(&mut sent) {
            let due = (elapsed.as_secs_f64() * rate) as u64;
            let count = due.saturating_sub(sent.packets).min(BURST as u64) as usize;
            if count == 0 {
                let due = Duration::from_secs_f64((sent.packets + 1) as f64 / rate);
                next = next.map(|next| next.min(due));
                continue;
            }
            frames.prepare(count);
            let passed = frames.pass(socket, count).map_err(BenchError::system("cannot send packets"))?;
            sent.packets += count as u64;
            sent.refused += (count - passed) as u64;
            next = None;
        }
        if let Some(next) = next.filter(|next| *next > elapsed + SLEEP_ABOVE) {
            thread::sleep(next - elapsed - SLEEP_ABOVE / 2);
        }
    }
}

fn open(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers. Protocol 0: the socket receives nothing.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    bind(&socket, 0, rustix::net::netdevice::name_to_index(&socket, name)?)?;
    let (on, room): (libc::c_int, libc::c_int) = (1, SEND_BUFFER);
    // SAFETY: each call passes a pointer to a local value and the size of its type; the value lives until the call
    // returns.
    unsafe {
        let size = size_of::<libc::c_int>() as u32;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE);
        check(libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const room).cast(), size))?;
        let option = libc::PACKET_QDISC_BYPASS;
        check(libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const on).cast(), size))?;
    }
    Ok(socket)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
