// SPDX-License-Identifier: Apache-2.0
//! The program that runs in ordinary guests: it sends and receives packets on an interface by AF_PACKET, up to 32 for
//! each system call, without queueing disciplines.
//!
//! `netvm-bench-packet INTERFACE` sends back what it receives (`bench vm`). Without arguments it reads commands from
//! standard input (`bench e1000`), one per line, and answers each with a line. MAC selects the interface:
//!
//! ```text
//! send MAC TO BYTES MILLIS [RATE]   sends frames of this length to MAC address TO, RATE per second or at full speed
//!                                   -> sent PACKETS in MICROS
//! receive MAC MILLIS                receives for this time after the first packet
//!                                   -> received PACKETS in MICROS, dropped PACKETS (because the socket was full)
//! echo MAC MILLIS                   sends back what it receives, for this time       -> echoed PACKETS
//! driver FILE [PARAMETER]...        replaces the e1000 driver that is loaded      -> driver FILE works
//! ```
//!
//! `sockets.rs` has those of TCP and UDP. On the host the program is the guest's peer (`./dev study e1000`).

mod sockets;

use std::ffi::CString;
use std::io::{self, BufRead};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const BURST: usize = 32;
const MAX_FRAME: usize = 2048;
/// Time limit for the first packet.
const FIRST_PACKET_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a receiving socket's queue. The default, 208 KiB, has room for fewer packets of 64 bytes than a ring and a
/// poll of it, so that a guest with time to spare would lose some.
const QUEUE: libc::c_int = 4 << 20;
/// For local experiments (IEEE 802, 88-B5).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

fn main() -> io::Result<()> {
    if let Some(name) = std::env::args().nth(1) {
        return forward(&name);
    }
    println!("ready for commands");
    for line in io::stdin().lock().lines() {
        let line = line?;
        match handle(&line) {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("failed: {line}: {error}"),
        }
    }
    Ok(())
}

fn handle(line: &str) -> io::Result<String> {
    let number = |word: &str| word.parse::<u64>().map_err(io::Error::other);
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["send", mac, to, bytes, millis, rate @ ..] => {
            let rate = rate.first().map(|rate| number(rate)).transpose()?;
            send([to, mac], number(bytes)? as usize, Duration::from_millis(number(millis)?), rate)
        }
        ["driver", file, parameters @ ..] => load_driver(file, &parameters.join(" ")),
        ["receive", mac, millis] => receive(mac, Duration::from_millis(number(millis)?)),
        ["echo", mac, millis] => echo(mac, Duration::from_millis(number(millis)?)),
        words => sockets::handle(words).unwrap_or_else(|| Err(io::Error::other("unknown command"))),
    }
}

/// Sends for a time, at a rate; `addresses`: destination and source. Does not count packets that the interface refuses
/// because its ring is full.
fn send(addresses: [&str; 2], bytes: usize, time: Duration, rate: Option<u64>) -> io::Result<String> {
    let (socket, mut burst) = (bind_to(&interface(addresses[1])?)?, Burst::new());
    let addresses = addresses.iter().flat_map(|mac| mac.split(':'));
    let addresses = addresses.map(|byte| u8::from_str_radix(byte, 16).unwrap_or(0));
    let header: Vec<u8> = addresses.chain(ETHERTYPE).collect();
    for (frame, part) in burst.frames.iter_mut().zip(&mut *burst.parts) {
        frame[..header.len()].copy_from_slice(&header);
        part.iov_len = bytes.clamp(header.len(), MAX_FRAME);
    }
    let (start, mut sent, mut offered) = (Instant::now(), 0, 0);
    while start.elapsed() < time {
        let due = rate.map_or(BURST, |rate| {
            let due = (start.elapsed().as_secs_f64() * rate as f64) as usize;
            due.saturating_sub(offered).min(BURST)
        });
        if due == 0 {
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        offered += due;
        sent += burst.send(&socket, due);
    }
    Ok(format!("sent {sent} in {}", start.elapsed().as_micros()))
}

/// Receives for a time that begins with the first packet.
fn receive(mac: &str, time: Duration) -> io::Result<String> {
    let (socket, mut burst) = (bind_to(&interface(mac)?)?, Burst::new());
    let wait = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
    option(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)?;
    option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE)?;
    println!("receiving");
    let (asked, mut start, mut received) = (Instant::now(), None, 0);
    while start.map_or(asked.elapsed() < FIRST_PACKET_TIMEOUT, |start: Instant| start.elapsed() < time) {
        match burst.receive(&socket) {
            Ok(count) => {
                start.get_or_insert_with(Instant::now);
                received += count;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let micros = start.unwrap_or(asked).elapsed().as_micros();
    Ok(format!("received {received} in {micros}, dropped {}", dropped(&socket)?))
}

/// Sends back what it receives for a time.
fn echo(mac: &str, time: Duration) -> io::Result<String> {
    let (socket, mut burst) = (bind_to(&interface(mac)?)?, Burst::new());
    let wait = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
    option(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)?;
    println!("echoing");
    let (start, mut echoed) = (Instant::now(), 0);
    while start.elapsed() < time {
        match burst.send_back(&socket) {
            Ok(sent) => echoed += sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(format!("echoed {echoed}"))
}

/// Packets that the kernel dropped because the socket was full.
fn dropped(socket: &OwnedFd) -> io::Result<u32> {
    // SAFETY: all zeros are valid numbers.
    let mut statistics: libc::tpacket_stats = unsafe { zeroed() };
    let mut size = size_of::<libc::tpacket_stats>() as u32;
    // SAFETY: the structure and its size outlive the call.
    check(unsafe {
        let place = (&raw mut statistics).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, place, &raw mut size)
    })?;
    Ok(statistics.tp_drops)
}

/// Loads a module in place of the e1000 driver; all interfaces are up when this returns.
fn load_driver(file: &str, parameters: &str) -> io::Result<String> {
    let script = format!(
        "rmmod e1000; insmod /modules/{file} {parameters} || exit 1; cd /sys/class/net; for name in eth*; do \
         echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6; ip link set $name promisc on up; done"
    );
    let status = std::process::Command::new("/bin/sh").args(["-c", &script]).status()?;
    let asked = Instant::now();
    while !status.success() || !are_up()? {
        if !status.success() || asked.elapsed() > FIRST_PACKET_TIMEOUT {
            return Err(io::Error::other(format!("{status}; its interfaces are not up")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(format!("driver {file} works"))
}

/// Whether all interfaces have a link.
fn are_up() -> io::Result<bool> {
    for entry in std::fs::read_dir("/sys/class/net")? {
        // The file cannot be read while the interface is down.
        if !std::fs::read_to_string(entry?.path().join("carrier")).is_ok_and(|carrier| carrier.trim() == "1")
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sends back what is received.
fn forward(name: &str) -> io::Result<()> {
    let (socket, mut burst) = (bind_to(name)?, Burst::new());
    println!("forwarding on {name}");
    loop {
        burst.send_back(&socket)?;
    }
}

/// Packets of one system call. The messages point to the `iovec`s, and these to the frames, whose addresses never
/// change.
struct Burst {
    frames: Vec<[u8; MAX_FRAME]>,
    parts: Box<[libc::iovec; BURST]>,
    messages: Box<[libc::mmsghdr; BURST]>,
}

impl Burst {
    fn new() -> Self {
        let mut frames = vec![[0u8; MAX_FRAME]; BURST];
        // SAFETY: all zeros are valid structures of numbers and null pointers.
        let mut parts: Box<[libc::iovec; BURST]> = Box::new(unsafe { zeroed() });
        // SAFETY: as above.
        let mut messages: Box<[libc::mmsghdr; BURST]> = Box::new(unsafe { zeroed() });
        for ((part, message), frame) in parts.iter_mut().zip(&mut *messages).zip(&mut frames) {
            part.iov_base = frame.as_mut_ptr().cast();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        Self { frames, parts, messages }
    }

    /// Receives packets, at least one.
    fn receive(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        for part in &mut *self.parts {
            part.iov_len = MAX_FRAME;
        }
        let (fd, wait) = (socket.as_raw_fd(), libc::MSG_WAITFORONE);
        // SAFETY: every message has one part, a frame's memory; all live as long as `self`.
        check(unsafe {
            libc::recvmmsg(fd, self.messages.as_mut_ptr(), BURST as u32, wait, std::ptr::null_mut())
        })
    }

    /// Receives packets, at least one, and sends them back. Returns how many the interface took.
    fn send_back(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        let count = self.receive(socket)?;
        for (part, message) in self.parts.iter_mut().zip(&self.messages[..count]) {
            part.iov_len = (message.msg_len as usize).min(MAX_FRAME);
        }
        Ok(self.send(socket, count))
    }

    /// Sends `count` packets. Returns how many the interface took; the others are dropped.
    fn send(&mut self, socket: &OwnedFd, count: usize) -> usize {
        // SAFETY: as in `receive`.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), self.messages.as_mut_ptr(), count as u32, 0) };
        usize::try_from(sent).unwrap_or(0)
    }
}

/// The name of the interface with a MAC address.
fn interface(mac: &str) -> io::Result<String> {
    for entry in std::fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        if std::fs::read_to_string(entry.path().join("address")).is_ok_and(|address| address.trim() == mac) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(io::Error::other("no interface has this MAC address"))
}

fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A socket that receives packets of an interface, and sends without queueing disciplines.
fn bind_to(name: &str) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the call takes integers only.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into()) })?;
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let text = CString::new(name)?;
    // SAFETY: the string ends with NUL.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid address of numbers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    (address.sll_family, address.sll_protocol, address.sll_ifindex) =
        (libc::AF_PACKET as u16, protocol, index as i32);
    // SAFETY: the address outlives the call, and the size is right.
    check(unsafe {
        let size = size_of::<libc::sockaddr_ll>() as u32;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size)
    })?;
    let on: libc::c_int = 1;
    for name in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_QDISC_BYPASS] {
        option(&socket, libc::SOL_PACKET, name, &on)?;
    }
    Ok(socket)
}

/// Sets an option of a socket, by level and name.
fn option<T>(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call, and the size is right.
    check(unsafe {
        let size = size_of::<T>() as u32;
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size)
    })
    .map(drop)
}
