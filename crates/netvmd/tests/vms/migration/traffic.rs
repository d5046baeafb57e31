// SPDX-License-Identifier: Apache-2.0
//! Traffic of a guest that moves: the guest's echo server, which is this test binary in the guest, and its clients.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::hosts::Host;

/// Time between two datagrams.
const DATAGRAM_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of a message of a TCP connection.
const MESSAGE: usize = 16;
/// A connection whose echo does not come for so long is broken.
const BROKEN: Duration = Duration::from_secs(60);

pub const GUEST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)), 7);

/// In the guest: echoes TCP and UDP to port 7. To a datagram it adds how many datagrams it got twice.
pub fn serve() {
    let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7)).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 7)).unwrap();
    udp.set_nonblocking(true).unwrap();
    listener.set_nonblocking(true).unwrap();
    println!("the guest serves");
    let (mut seen, mut twice) = (HashSet::new(), 0u64);
    let mut connections: Vec<TcpStream> = Vec::new();
    let mut bytes = [0; 65_536];
    loop {
        let mut fds = vec![PollFd::new(&udp, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
        fds.extend(connections.iter().map(|connection| PollFd::new(connection, PollFlags::IN)));
        poll(&mut fds, None).unwrap();
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        while let Ok((length, from)) = udp.recv_from(&mut bytes) {
            twice += u64::from(!seen.insert(bytes[..length].to_vec()));
            let answer = [&bytes[..length], &twice.to_be_bytes()].concat();
            let _ = udp.send_to(&answer, from);
        }
        let mut ready = ready.into_iter().skip(2);
        connections.retain_mut(|connection| !ready.next().unwrap() || echo(connection, &mut bytes));
        while let Ok((connection, _)) = listener.accept() {
            connection.set_nodelay(true).unwrap();
            connections.push(connection);
        }
    }
}

/// Whether a connection goes on.
fn echo(connection: &mut TcpStream, bytes: &mut [u8]) -> bool {
    matches!(connection.read(bytes), Ok(length) if length > 0 && connection.write_all(&bytes[..length]).is_ok())
}

/// What a client of datagrams saw.
#[derive(Debug, Default)]
pub struct Datagrams {
    pub sent: u64,
    pub lost: u64,
    /// Answers that came twice, and datagrams that the guest got twice.
    pub twice: u64,
    /// The longest time without an answer.
    pub pause: Duration,
}

/// Sends datagrams until `stop`.
pub fn send_datagrams(client: &Host, stop: Arc<AtomicBool>) -> JoinHandle<Datagrams> {
    client.inside(move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect(GUEST).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut found, mut answered) = (Datagrams::default(), HashSet::new());
        let (mut last_answer, mut next) = (Instant::now(), Instant::now());
        let mut end = None;
        // What is under way at the end arrives within a second.
        while end.is_none_or(|end: Instant| end.elapsed() < Duration::from_secs(1)) {
            if end.is_none() && stop.load(Ordering::Relaxed) {
                end = Some(Instant::now());
            }
            if end.is_none() && Instant::now() >= next {
                next += DATAGRAM_INTERVAL;
                // The network may be away.
                let _ = socket.send(&found.sent.to_be_bytes());
                found.sent += 1;
            }
            let mut answer = [0; 64];
            while let Ok(16) = socket.recv(&mut answer) {
                let (number, twice) = (&answer[..8], u64::from_be_bytes(answer[8..16].try_into().unwrap()));
                found.twice += u64::from(!answered.insert(number.to_vec()));
                found.twice = found.twice.max(twice);
                if end.is_none() {
                    found.pause = found.pause.max(last_answer.elapsed());
                }
                last_answer = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        found.lost = found.sent - answered.len() as u64;
        found
    })
}

/// Connections to the guest that exchange numbered messages, and one that sends all it can.
pub struct Connections {
    stop: Arc<AtomicBool>,
    /// Messages that came back.
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<u64>>,
}

/// A connection that waits for the echo of a message, or is to send the next one.
struct Exchange {
    stream: TcpStream,
    number: u64,
    got: Vec<u8>,
    sent: Option<Instant>,
}

impl Exchange {
    fn message(&self, connection: u64) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&connection.to_be_bytes());
        message[8..].copy_from_slice(&self.number.to_be_bytes());
        message
    }

    /// Sends what is due, and reads what came; returns whether a message came back.
    fn step(&mut self, connection: u64, is_due: bool) -> bool {
        let message = self.message(connection);
        if is_due && self.sent.is_none() {
            self.stream.write_all(&message).unwrap();
            self.sent = Some(Instant::now());
        }
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("connection {connection} has ended"),
            Ok(length) => self.got.extend_from_slice(&bytes[..length]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "connection {connection}: {error}"),
        }
        if self.got.len() < MESSAGE {
            let since = self.sent.map(|sent| sent.elapsed());
            assert!(since.is_none_or(|since| since < BROKEN), "connection {connection}: no echo");
            return false;
        }
        // Neither something else, nor anything twice.
        assert_eq!(self.got, message, "connection {connection}");
        self.got.clear();
        (self.number, self.sent) = (self.number + 1, None);
        true
    }
}

impl Connections {
    /// Opens so many, each of which sends a message in `interval`.
    pub fn open(client: &Host, count: usize, interval: Duration) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop_exchange, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let exchange = client.inside(move || {
            let mut exchanges: Vec<Exchange> = (0..count)
                .map(|_| {
                    let stream = TcpStream::connect(GUEST).unwrap();
                    stream.set_nodelay(true).unwrap();
                    stream.set_nonblocking(true).unwrap();
                    Exchange { stream, number: 0, got: Vec::new(), sent: None }
                })
                .collect();
            let mut total = 0;
            while !stop_exchange.load(Ordering::Relaxed) {
                let start = Instant::now();
                for (number, exchange) in (0..).zip(&mut exchanges) {
                    let came = u64::from(exchange.step(number, true));
                    counted.fetch_add(came, Ordering::Relaxed);
                    total += came;
                }
                while start.elapsed() < interval && !stop_exchange.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            total
        });
        let stop_bulk = Arc::clone(&stop);
        let bulk = client.inside(move || send_all_it_can(&stop_bulk));
        Self { stop, rounds, threads: vec![exchange, bulk] }
    }

    /// Messages that have come back.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Ends them; returns the messages, and the bytes of the one that sends all it can, all of them verified.
    pub fn end(mut self) -> [u64; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let mut ended = std::mem::take(&mut self.threads).into_iter().map(|thread| thread.join().unwrap());
        [ended.next().unwrap(), ended.next().unwrap()]
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The byte at a place of a stream that does not repeat soon.
fn byte_at(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends a stream and reads its echo; returns how many bytes came back, as they were sent.
fn send_all_it_can(stop: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect(GUEST).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut got, mut last) = (0u64, 0u64, Instant::now());
    let mut bytes = [0; 16_384];
    while !stop.load(Ordering::Relaxed) || got < sent {
        assert!(last.elapsed() < BROKEN, "the stream stands still at {got} of {sent} bytes");
        // The guest echoes what fits into its socket.
        if sent - got < 32_768 && !stop.load(Ordering::Relaxed) {
            let block: Vec<u8> = (sent..sent + 4096).map(byte_at).collect();
            if let Ok(length) = stream.write(&block) {
                sent += length as u64;
            }
        }
        let wanted = if sent - got < 32_768 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let limit = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = poll(&mut [PollFd::new(&stream, wanted)], Some(&limit));
        match stream.read(&mut bytes) {
            Ok(0) => panic!("the stream has ended"),
            Ok(length) => {
                for byte in &bytes[..length] {
                    assert_eq!(*byte, byte_at(got), "at {got}");
                    got += 1;
                }
                last = Instant::now();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
    got
}
