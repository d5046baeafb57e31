// SPDX-License-Identifier: Apache-2.0
//! TCP and UDP through the sockets of the kernel, as netperf measures them.
//!
//! ```text
//! address MAC ADDRESS on|off        gives the interface an IPv4 address (/24), and TCP segmentation offload (TSO) or
//!                                   none                                       -> configured ADDRESS, TSO on|off
//! tcp-receive PORT MILLIS           takes one connection, for this time after the first byte
//!                                   -> listening -> received BYTES in MICROS
//! tcp-send ADDRESS PORT BYTES MILLIS   writes BYTES at once, for this time     -> sent BYTES in MICROS
//! tcp-respond PORT                  takes one connection, returns every byte   -> listening -> responded BYTES
//! tcp-request ADDRESS PORT MILLIS   sends a byte and waits for its return      -> requested TIMES in MICROS
//! udp-receive PORT MILLIS           receives for this time after the first datagram
//!                                   -> listening -> received DATAGRAMS in MICROS
//! udp-send ADDRESS PORT BYTES MILLIS   -> sent DATAGRAMS in MICROS
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for a peer's connection, and for its first byte or datagram.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which a receiver looks at the clock.
const LOOK: Duration = Duration::from_millis(100);
const MAX_WRITE: usize = 1 << 16;
/// Bytes of a receiving socket's queue; the kernel's limit applies.
const QUEUE: libc::c_int = 4 << 20;

/// Runs a command; `None` if it is not one of these.
pub fn handle(words: &[&str]) -> Option<io::Result<String>> {
    Some(match words {
        ["address", mac, address, tso] => configure(mac, address, *tso == "on"),
        ["tcp-receive", port, millis] => time(millis).and_then(|time| tcp_receive(&listen(port)?, time)),
        ["tcp-send", address, port, bytes, millis] => to(address, port)
            .and_then(|to| tcp_send(TcpStream::connect(to)?, number(bytes)? as usize, time(millis)?)),
        ["tcp-respond", port] => listen(port).and_then(|listener| tcp_respond(&listener)),
        ["tcp-request", address, port, millis] => {
            to(address, port).and_then(|to| tcp_request(TcpStream::connect(to)?, time(millis)?))
        }
        ["udp-receive", port, millis] => time(millis).and_then(|time| udp_receive(port, time)),
        ["udp-send", address, port, bytes, millis] => {
            to(address, port).and_then(|to| udp_send(to, number(bytes)? as usize, time(millis)?))
        }
        _ => return None,
    })
}

fn number(word: &str) -> io::Result<u64> {
    word.parse().map_err(io::Error::other)
}

fn time(millis: &str) -> io::Result<Duration> {
    Ok(Duration::from_millis(number(millis)?))
}

fn to(address: &str, port: &str) -> io::Result<SocketAddrV4> {
    Ok(SocketAddrV4::new(address.parse().map_err(io::Error::other)?, number(port)? as u16))
}

fn configure(mac: &str, address: &str, tso: bool) -> io::Result<String> {
    let name = super::interface(mac)?;
    let script = format!("ip addr add {address}/24 dev {name} && ip link set {name} up");
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let status = Command::new("sh").env("PATH", path).args(["-c", &script]).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("{script}: {status}")));
    }
    let tso = set_tso(&name, tso)?;
    Ok(format!("configured {address}, TSO {}", if tso { "on" } else { "off" }))
}

/// Switches TSO of an interface; returns whether it is on, as a device may not have it.
fn set_tso(name: &str, is_wanted: bool) -> io::Result<bool> {
    /// `ETHTOOL_GTSO` and `ETHTOOL_STSO` of `linux/ethtool.h`, and `SIOCETHTOOL` of `linux/sockios.h`.
    const GET: u32 = 0x1e;
    const SET: u32 = 0x1f;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut value = [SET, u32::from(is_wanted)];
    for command in [SET, GET] {
        value[0] = command;
        // SAFETY: all zeros are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request and the value that it points to, which the kernel reads and writes, outlive the call.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        // A device without TSO refuses to switch it.
        if result < 0 && command == GET {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(value[1] != 0)
}

fn listen(port: &str) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, number(port)? as u16))
}

/// Accepts one connection.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    println!("listening");
    let asked = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && asked.elapsed() < PEER_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether nothing has come yet, which is no error.
fn is_quiet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn tcp_receive(listener: &TcpListener, time: Duration) -> io::Result<String> {
    let mut stream = accept(listener)?;
    stream.set_read_timeout(Some(LOOK))?;
    receive(time, |buffer| stream.read(buffer))
}

/// Calls `read` for a time that begins with the first data; adds up what it returns.
fn receive(time: Duration, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<String> {
    let mut buffer = vec![0; MAX_WRITE];
    let (asked, mut start, mut received) = (Instant::now(), None, 0);
    while start.map_or(asked.elapsed() < PEER_TIMEOUT, |start: Instant| start.elapsed() < time) {
        match read(&mut buffer) {
            // The peer has closed the connection.
            Ok(0) => break,
            Ok(count) => {
                start.get_or_insert_with(Instant::now);
                received += count;
            }
            Err(error) if is_quiet(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(format!("received {received} in {}", start.unwrap_or(asked).elapsed().as_micros()))
}

fn tcp_send(mut stream: TcpStream, bytes: usize, time: Duration) -> io::Result<String> {
    let buffer = vec![0; bytes.clamp(1, MAX_WRITE)];
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        match stream.write(&buffer) {
            Ok(count) => sent += count,
            // The receiver ends first.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(format!("sent {sent} in {}", start.elapsed().as_micros()))
}

fn tcp_respond(listener: &TcpListener) -> io::Result<String> {
    let mut stream = accept(listener)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    let (mut byte, mut responded) = ([0; 1], 0);
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
        responded += 1;
    }
    Ok(format!("responded {responded}"))
}

fn tcp_request(mut stream: TcpStream, time: Duration) -> io::Result<String> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    let (start, mut requested, mut byte) = (Instant::now(), 0, [1; 1]);
    while start.elapsed() < time {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        requested += 1;
    }
    Ok(format!("requested {requested} in {}", start.elapsed().as_micros()))
}

fn udp_receive(port: &str, time: Duration) -> io::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, number(port)? as u16))?;
    super::option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE)?;
    socket.set_read_timeout(Some(LOOK))?;
    println!("listening");
    receive(time, |buffer| socket.recv(buffer).map(|_| 1))
}

fn udp_send(to: SocketAddrV4, bytes: usize, time: Duration) -> io::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    let buffer = vec![0; bytes.clamp(1, 1472)];
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        match socket.send(&buffer) {
            Ok(_) => sent += 1,
            // The interface's queue is full, or the receiver has ended.
            Err(error) if is_quiet(&error) || error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(format!("sent {sent} in {}", start.elapsed().as_micros()))
}
