// SPDX-License-Identifier: Apache-2.0
//! Floods beside established connections: for 5 seconds, or as many as NETVM_TEST_SECONDS says.
//!
//! ```text
//!  attacker: SYNs, UDP, fragments from invented sources; own UDP ports ──┐
//!  client: 1,000 connections that are used in turn ──────────────────────┼── netvmd ── server
//!  other: new connections, whose set-up is timed ────────────────────────┘
//! ```

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netvm_api::{Event, EventKind, path};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::list;
use crate::common::Daemon;
use crate::common::download::word;
use crate::common::hosts::{self, Host};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 4);
const TCP_PORT: u16 = 7000;
const UDP_PORT: u16 = 7001;
const ESTABLISHED: usize = 1000;
/// Most connections: far fewer than the floods ask for.
const LIMIT: u32 = 8192;
/// Most connections of a source.
const QUOTA: u32 = 2000;
/// Packets that the attacker sends in a row, and its pause after them: some 30,000 packets a second.
const BURST: u64 = 32;
const PAUSE: Duration = Duration::from_millis(1);
/// Time between new connections.
const INTERVAL: Duration = Duration::from_millis(20);
/// New connections before the floods.
const BEFORE: usize = 100;

/// The hosts on the switch; all ports track. A connection that was lost is not picked up again.
fn config(hosts: &[Host; 4]) -> String {
    let mut text = format!(
        "{}\n[engine.connections]\nlimit = {LIMIT}\nper_source = {QUOTA}\npick_up = false\n\
         timeouts = {{ tcp_time_wait = 5 }}\n",
        *crate::common::ENGINE
    );
    text += "\n[[rule]]\nmatch = { state = \"invalid\" }\ndrop = true\n";
    for (n, host) in (1..).zip(hosts) {
        text += &format!(
            "\n[[port]]\nname = \"p{n}\"\nkind = \"container\"\nnamespace = {:?}\naddresses = [\"10.0.0.{n}/24\"]\n\
             forward = {{ normal = true }}\ntrack = true\n",
            host.namespace()
        );
    }
    text
}

/// Every end of the connections is in this process.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Echoes what it receives on TCP connections.
fn echo(server: &Host) {
    let (bound, is_bound) = std::sync::mpsc::channel();
    server.inside(move || {
        let listener = TcpListener::bind((SERVER, TCP_PORT)).unwrap();
        bound.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let answer = move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            };
            std::thread::Builder::new().stack_size(1 << 16).spawn(answer).unwrap();
        }
    });
    is_bound.recv().unwrap();
}

fn connect() -> TcpStream {
    let to = SocketAddr::from((SERVER, TCP_PORT));
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether a byte comes back.
fn answers(stream: &mut TcpStream, byte: u8) -> bool {
    let mut answer = [0];
    stream.write_all(&[byte]).is_ok() && stream.read_exact(&mut answer).is_ok() && answer == [byte]
}

/// Uses the connections in turn until the end; returns how often each was used, and the connections.
fn use_established(client: &Host, over: &Arc<AtomicBool>) -> (JoinHandle<(usize, Vec<TcpStream>)>, Instant) {
    let (over, (ready, is_ready)) = (Arc::clone(over), std::sync::mpsc::channel());
    let user = client.inside(move || {
        let mut streams: Vec<_> = (0..ESTABLISHED).map(|_| connect()).collect();
        let mut rounds = 0;
        loop {
            // The last round is after the floods.
            let is_last = over.load(Ordering::Relaxed);
            for (n, stream) in streams.iter_mut().enumerate() {
                assert!(
                    answers(stream, rounds as u8),
                    "connection {n} of {ESTABLISHED} was lost, round {rounds}"
                );
            }
            rounds += 1;
            if rounds == 1 {
                ready.send(()).unwrap();
            }
            if is_last {
                return (rounds, streams);
            }
        }
    });
    is_ready.recv().unwrap();
    (user, Instant::now())
}

/// The median time to set up a connection, one in each interval: so many of them, or until `over`.
fn set_up_time(other: &Host, most: usize, over: &Arc<AtomicBool>) -> JoinHandle<(Duration, usize)> {
    let over = Arc::clone(over);
    other.inside(move || {
        let mut times = Vec::new();
        while times.len() < most && !over.load(Ordering::Relaxed) {
            std::thread::sleep(INTERVAL);
            let begin = Instant::now();
            let mut stream = connect();
            times.push(begin.elapsed());
            assert!(answers(&mut stream, 1), "new connection {} was lost", times.len());
        }
        times.sort_unstable();
        (times[times.len() / 2], times.len())
    })
}

/// An IPv4 packet of the flood. The kernel computes the header's checksum.
fn packet(n: u64) -> Vec<u8> {
    let random = word(n);
    let [a, b, c, d, e, f, ..] = random.to_le_bytes();
    let invented = Ipv4Addr::new(10, 66, a, b);
    // Below the ports that listen.
    let closed = 1 + u16::from_le_bytes([c, d]) % 4000;
    let source_port = u16::from_le_bytes([e, f]) | 1024;
    let (from, protocol, offset, payload) = match n % 4 {
        0 => (invented, 6, 0, syn(source_port, closed)),
        1 => (invented, 17, 0, datagram(source_port, closed)),
        // A first fragment or a later one, of one packet in 65,536.
        2 => (invented, 17, u16::from_le_bytes([c, d]) & 0x3fff, datagram(source_port, closed)),
        // As fast as it can, through its own ports, and with answers.
        _ => (ATTACKER, 17, 0, datagram(1024 + (n / 4 % 60_000) as u16, UDP_PORT)),
    };
    let length = 20 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&[e, f]);
    packet.extend_from_slice(&offset.to_be_bytes());
    packet.extend_from_slice(&[64, protocol, 0, 0]);
    packet.extend_from_slice(&from.octets());
    packet.extend_from_slice(&SERVER.octets());
    packet.extend_from_slice(&payload);
    packet
}

fn syn(from: u16, to: u16) -> Vec<u8> {
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    [ports, vec![0; 8], vec![0x50, 2, 0xff, 0xff, 0, 0, 0, 0]].concat()
}

/// Eight bytes, so that it may be a fragment; no checksum.
fn datagram(from: u16, to: u16) -> Vec<u8> {
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    [ports, vec![0, 16, 0, 0], vec![0; 8]].concat()
}

/// Floods the server until the end; returns the number of packets.
fn flood(attacker: &Host, over: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let over = Arc::clone(over);
    attacker.inside(move || {
        let socket: OwnedFd = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(ipproto::RAW),
        )
        .unwrap();
        let mut sent = 0;
        while !over.load(Ordering::Relaxed) {
            for _ in 0..BURST {
                // The kernel refuses some while its queue is full.
                let to = std::net::SocketAddrV4::new(SERVER, 0);
                let _ = rustix::net::sendto(&socket, &packet(sent), SendFlags::empty(), &to);
                sent += 1;
            }
            std::thread::sleep(PAUSE);
        }
        sent
    })
}

#[test]
fn a_flood_takes_no_connection_and_lets_others_begin() {
    if !hosts::are_possible() {
        return;
    }
    let wanted = std::env::var("NETVM_TEST_SECONDS").ok().map(|text| text.parse().unwrap());
    let length = Duration::from_secs(wanted.unwrap_or(5));
    allow_many_files();
    let hosts = ["fs", "fc", "fo", "fa"].map(Host::bare);
    let daemon = Daemon::start(&config(&hosts));
    let [server, client, other, attacker] = &hosts;
    assert!([client, other, attacker].iter().all(|host| host.pings("10.0.0.1")), "{}", daemon.log());
    echo(server);
    server.echo(SERVER, UDP_PORT);

    let over = Arc::new(AtomicBool::new(false));
    let (user, begun) = use_established(client, &over);
    let (before, _) = set_up_time(other, BEFORE, &over).join().unwrap();
    let attack = flood(attacker, &over);
    let beside = set_up_time(other, usize::MAX, &over);
    // The flood lasts so long.
    std::thread::sleep(length);
    let age = begun.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let ((rounds, _streams), sent) = (user.join().unwrap(), attack.join().unwrap());
    let (during, count) = beside.join().unwrap();

    let of_client = list(&daemon, "protocol=tcp&address=10.0.0.2");
    let lost: Vec<_> = of_client.iter().filter(|one| one.state != "established" || one.age_s < age).collect();
    let kept = of_client.iter().filter(|one| one.state == "established" && one.age_s >= age).count();
    let (counts, drops) = (daemon.stats().connections.unwrap(), daemon.stats().drops);
    println!(
        "{sent} packets of the attacker; {kept} connections kept, each used {rounds} times; {count} new ones, set up in \
         {during:?} (before: {before:?})\n{counts:?}"
    );
    assert_eq!(kept, ESTABLISHED, "{} of {}: {:?}", lost.len(), of_client.len(), &lost[..lost.len().min(5)]);
    assert!(rounds >= 3 && count >= 10, "{rounds} rounds, {count} new connections");
    // The floods did fill the table, and the attacker's own connections reached their quota.
    assert!(
        counts.evicted > u64::from(LIMIT) && format!("{drops:?}").contains("conn-quota"),
        "{counts:?} {drops:?}"
    );
    // Events name the attacker's port alone, and are few.
    let events: Vec<Event> = daemon.get(path::EVENTS);
    let of_kind = |kind: EventKind| events.iter().filter(move |event| event.kind == kind);
    let refused: Vec<_> = of_kind(EventKind::ConnectionsRefused).collect();
    let names_it = |event: &&Event| event.subject == "p4" && event.message.contains("conn-quota");
    assert!(!refused.is_empty() && refused.iter().all(names_it), "{refused:?}");
    let most = 2 + length.as_secs() as usize / 30;
    assert!(refused.len() <= most, "{refused:?}");
    assert!((1..=most).contains(&of_kind(EventKind::ConnectionsEvicted).count()), "{events:?}");
    // A promise of a release, taken on a machine with nothing else to do.
    assert!(wanted.is_none() || during <= 2 * before, "set up in {during:?}, before: {before:?}");
}
