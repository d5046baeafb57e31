//! Sends UDP at chosen rates from a network namespace of its own, over veth pairs.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender as Channel, channel};
use std::thread;
use std::time::{Duration, Instant};

use netvm_wire::MacAddr;

use crate::error::BenchError;
use crate::machine::pin;
use crate::measure::probe::{ip, leave_network};

/// Packets sent at once.
pub const BURST: usize = 32;
/// Bytes of the frame check sequence, which network interfaces do not pass on.
pub const FCS: u16 = 4;
/// Send buffer of the socket in bytes. The kernel charges a packet on a veth pair to the sender's socket until it is
/// received. With the default of 200 KB, the sender would wait for a slow receiver and never lose a packet.
const SEND_BUFFER: libc::c_int = 64 << 20;
/// If no burst is due within this time, the sender sleeps.
const NAP: Duration = Duration::from_micros(100);
/// Bytes of headers.
const ETHERNET: usize = 14;
const TAG: usize = 4;
const IP: usize = 20;

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
    /// Bytes of a frame, FCS included.
    pub size: u16,
    /// Each packet is a new flow (Schultz and Crowley, section III-E).
    pub is_multi: bool,
    /// The destination changes after each packet instead of each burst.
    pub is_spread: bool,
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
    /// Starts the thread on a core. It creates a veth pair for each stream, with the near end in this process's namespace.
    ///
    /// # Errors
    /// The thread could not create its namespace, interfaces or sockets.
    pub fn start(streams: Vec<Stream>, core: u32) -> Result<Self, BenchError> {
        let (commands, inbox) = channel::<(Vec<f64>, Duration)>();
        let (outbox, results) = channel();
        let work = move || match set_up(&streams, core) {
            Ok(mut lanes) => {
                let _ = outbox.send(Ok(Vec::new()));
                while let Ok((rates, time)) = inbox.recv() {
                    let _ = outbox.send(send(&mut lanes, &rates, time));
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

    /// Waits up to `patience` for the thread to finish sending; returns what it sent.
    fn result(&self, patience: Duration) -> Result<Vec<Sent>, BenchError> {
        let ended = |_| BenchError::system("the sending thread")(io::Error::other("it ended or hangs"));
        self.results.recv_timeout(patience).map_err(ended)?
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
struct Lane {
    socket: OwnedFd,
    frames: Frames,
}

fn set_up(streams: &[Stream], core: u32) -> Result<Vec<Lane>, BenchError> {
    pin(core).map_err(BenchError::system(format!("cannot pin to core {core}")))?;
    leave_network()?;
    // Turns off router solicitations, so that the kernel sends no packets. A kernel without IPv6 lacks the file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let (home, queues) = (std::process::id(), "numtxqueues 1 numrxqueues 1");
    let lane = |(n, stream): (usize, &Stream)| -> Result<Lane, BenchError> {
        let (far, near) = (format!("far{n}"), &stream.interface);
        let add = format!("link add {far} {queues} type veth peer name {near} {queues} netns {home}");
        ip(&add.split_whitespace().collect::<Vec<_>>())?;
        ip(&["link", "set", &far, "arp", "off", "up"])?;
        let socket = open(&far).map_err(BenchError::system("a packet socket to send"))?;
        Ok(Lane { socket, frames: Frames::new(stream) })
    };
    streams.iter().enumerate().map(lane).collect()
}

/// Sends each stream at its rate for a time. The streams take turns: one burst of each stream that has a burst due.
fn send(lanes: &mut [Lane], rates: &[f64], time: Duration) -> Result<Vec<Sent>, BenchError> {
    let (start, mut sent) = (Instant::now(), vec![Sent::default(); lanes.len()]);
    loop {
        let elapsed = start.elapsed();
        if elapsed >= time {
            sent.iter_mut().for_each(|sent| sent.seconds = elapsed.as_secs_f64());
            return Ok(sent);
        }
        let mut next = Some(time);
        for ((Lane { socket, frames }, rate), sent) in lanes.iter_mut().zip(rates).zip(&mut sent) {
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
        if let Some(next) = next.filter(|next| *next > elapsed + NAP) {
            thread::sleep(next - elapsed - NAP / 2);
        }
    }
}

fn open(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: the call takes integers. Protocol 0: the socket receives nothing.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let text = CString::new(name)?;
    // SAFETY: all zeros are a valid address of integers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    // SAFETY: the string ends with NUL.
    address.sll_ifindex = unsafe { libc::if_nametoindex(text.as_ptr()) } as i32;
    let (on, room): (libc::c_int, libc::c_int) = (1, SEND_BUFFER);
    // SAFETY: each call passes a pointer to a local value and the size of its type; the value lives until the call returns.
    unsafe {
        let size = size_of::<libc::sockaddr_ll>() as u32;
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
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

/// The frames of a burst.
struct Frames {
    bytes: Vec<Vec<u8>>,
    /// Bytes in front of the IP header.
    l2: usize,
    destinations: Vec<Destination>,
    is_multi: bool,
    is_spread: bool,
    /// The next destination.
    next: usize,
    /// Flows so far.
    flow: u32,
}

impl Frames {
    fn new(stream: &Stream) -> Self {
        let is_tagged = stream.destinations.iter().any(|to| to.vlan.is_some());
        let l2 = if is_tagged { ETHERNET + TAG } else { ETHERNET };
        Self {
            bytes: vec![frame(usize::from(stream.size - FCS), l2); BURST],
            l2,
            destinations: stream.destinations.clone(),
            is_multi: stream.is_multi,
            is_spread: stream.is_spread,
            next: 0,
            flow: 0,
        }
    }

    /// Writes the destinations and flows of the next burst.
    fn prepare(&mut self, count: usize) {
        let (ip, udp) = (self.l2, self.l2 + IP);
        for (n, frame) in self.bytes[..count].iter_mut().enumerate() {
            let Destination { mac, vlan, address } = self.destinations[self.next];
            if self.is_spread || n + 1 == count {
                self.next = (self.next + 1) % self.destinations.len();
            }
            frame[..6].copy_from_slice(&mac.0);
            if let Some(vlan) = vlan {
                frame[ETHERNET..ETHERNET + 2].copy_from_slice(&vlan.to_be_bytes());
            }
            frame[ip + 16..udp].copy_from_slice(&address);
            if self.is_multi {
                // Four billion flows before one repeats: 24 bits of the source address, 8 of the port.
                self.flow = self.flow.wrapping_add(1);
                let [port, host @ ..] = self.flow.to_be_bytes();
                frame[ip + 13..ip + 16].copy_from_slice(&host);
                frame[udp + 1] = port;
            }
            let sum = checksum(&frame[ip..udp]);
            frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Sends the first `count` frames; returns how many the interface took.
    fn pass(&mut self, socket: &OwnedFd, count: usize) -> io::Result<usize> {
        // SAFETY: all zeros are valid structures of numbers and null pointers.
        let (mut parts, mut messages): ([libc::iovec; BURST], [libc::mmsghdr; BURST]) = unsafe { zeroed() };
        for ((part, message), frame) in parts.iter_mut().zip(&mut messages).zip(&mut self.bytes) {
            *part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        }
        let (mut done, mut refused) = (0, 0);
        while done < count {
            let left = &mut messages[done..count];
            // SAFETY: every message has one part, a frame's memory; all outlive the call.
            let result =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), left.as_mut_ptr(), left.len() as u32, 0) };
            match check(result) {
                Ok(passed) => done += passed as usize,
                // The packet is dropped, as on a link that is too slow.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {
                    (done, refused) = (done + 1, refused + 1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count - refused)
    }
}

/// A UDP packet in a frame of `length` bytes, without FCS. `l2`: bytes of the Ethernet header, VLAN tag included.
fn frame(length: usize, l2: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    if l2 > ETHERNET {
        frame[12..14].copy_from_slice(&[0x81, 0]);
    }
    frame[l2 - 2..l2].copy_from_slice(&[8, 0]);
    let (ip, udp) = frame[l2..].split_at_mut(IP);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((length - l2) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, 17);
    ip[12..16].copy_from_slice(&[10, 0, 0, 1]);
    // Ports 4096 and 9 (discard); no checksum.
    udp[..4].copy_from_slice(&[16, 0, 0, 9]);
    udp[4..6].copy_from_slice(&((length - l2 - IP) as u16).to_be_bytes());
    frame
}

/// The checksum of an IPv4 header (RFC 1071); the field itself is ignored.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).enumerate().filter(|(index, _)| *index != 5);
    let sum: u32 = words.map(|(_, word)| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(folded + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn to(n: u8, vlan: Option<u16>) -> Destination {
        Destination { mac: MacAddr([2, 0, 0, 0, 0, n]), vlan, address: [10, 1, 0, n] }
    }

    fn frames(is_multi: bool) -> Frames {
        let destinations = vec![to(1, None)];
        Frames::new(&Stream {
            interface: "near".to_owned(),
            size: 64,
            is_multi,
            is_spread: false,
            destinations,
        })
    }

    #[test]
    fn the_checksum_is_that_of_the_header() {
        // A header whose checksum is known, with another in its place.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xff, 0xff, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0xb861);
    }

    #[test]
    fn destinations_take_turns_by_burst_or_by_packet() {
        let destinations: Vec<_> = (0..3).map(|n| to(n, None)).collect();
        for is_spread in [false, true] {
            let destinations = destinations.clone();
            let stream =
                Stream { interface: "near".to_owned(), size: 64, is_multi: true, is_spread, destinations };
            let mut frames = Frames::new(&stream);
            let mut seen = Vec::new();
            for _ in 0..2 {
                frames.prepare(2);
                seen.extend(frames.bytes[..2].iter().map(|frame| (frame[5], frame[33])));
            }
            let expected = if is_spread { [0, 1, 2, 0] } else { [0, 0, 1, 1] };
            assert_eq!(seen, expected.map(|n| (n, n)));
        }
    }

    #[test]
    fn tagged_packets_are_those_without_a_tag_but_for_it() {
        let frames = |vlan: Option<u16>| {
            let stream = Stream {
                interface: "near".to_owned(),
                size: if vlan.is_some() { 68 } else { 64 },
                is_multi: true,
                is_spread: true,
                destinations: vec![to(7, vlan)],
            };
            let mut frames = Frames::new(&stream);
            frames.prepare(BURST);
            frames.bytes
        };
        for (plain, mut tagged) in frames(None).into_iter().zip(frames(Some(0x0123))) {
            assert_eq!(tagged.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0x01, 0x23]);
            assert_eq!(tagged, plain);
        }
    }

    #[test]
    fn every_packet_is_a_flow_or_none_is() {
        let mut multi = frames(true);
        let mut seen = HashSet::new();
        for _ in 0..10_000 {
            multi.prepare(BURST);
            seen.extend(multi.bytes.iter().map(|frame| frame[26..38].to_vec()));
        }
        assert_eq!(seen.len(), 10_000 * BURST);
        let mut single = frames(false);
        single.prepare(BURST);
        assert_eq!(single.bytes.iter().collect::<HashSet<_>>().len(), 1);
        assert_eq!(single.bytes[0].len(), 60);
    }
}
