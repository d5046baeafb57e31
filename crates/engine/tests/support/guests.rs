// SPDX-License-Identifier: Apache-2.0
//! Ports for guests, and guests that send to one another.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::Duration;

use netvm_engine::{Engine, PortView};
use netvm_model::{Forward, Host, PortConfig, PortKind, VhostDma, VhostMode};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};

use super::guest::{Guest, Running, quit, socket, turn};
use super::pcap::{Scratch, read, write};
use super::{Rig, all_is_free, group, port};

pub const TIMEOUT: Duration = Duration::from_secs(60);

pub fn vhost(id: u16, path: &Path, mode: VhostMode) -> PortConfig {
    let mut port = port(
        id,
        &format!("guest{id}"),
        PortKind::VhostUser { path: path.to_owned(), mode, dma: VhostDma::Off },
    );
    port.policy.forward = Forward::Normal;
    port.group = Some(netvm_engine::GroupId(0));
    port
}

/// Ports for guests with these sockets.
pub fn host(paths: &[&Path]) -> Host {
    let ports = (0..).zip(paths).map(|(id, path)| vhost(id, path, VhostMode::Server)).collect();
    Host { groups: vec![group(0, 4096, 2048)], ports, ..Host::default() }
}

pub fn view(engine: &Engine, id: u16) -> PortView {
    engine.ports().into_iter().find(|port| port.id.0 == id).unwrap()
}

pub fn connected(rig: &mut Rig, id: u16) {
    assert!(rig.until(TIMEOUT, |engine| view(engine, id).link == Some(true)), "{}", rig.describe());
}

/// All buffers come back to the pool once all traffic has stopped.
pub fn no_buffer_is_lost(rig: &mut Rig) {
    assert!(rig.until(TIMEOUT, all_is_free), "{}", rig.describe());
}

pub fn frames(count: u16) -> Vec<Vec<u8>> {
    let of = |n: u16| {
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let builder = builder.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        builder.udp(1000 + n, 53).payload(&vec![n as u8; usize::from(n) * 7 % 1400]).to_vec().unwrap()
    };
    (0..count).map(of).collect()
}

/// The guests of a transfer.
pub struct Guests<'a> {
    /// The folder of their captures.
    pub scratch: &'a Scratch,
    pub sender: Guest<'a>,
    pub receiver: Guest<'a>,
}

/// A guest that sends the frames, and one that records what it receives, which is to be `expected` packets.
pub fn transfer(rig: &mut Rig, guests: Guests<'_>, frames: &[Vec<u8>], expected: u64) -> Vec<Vec<u8>> {
    let Guests { scratch, sender, receiver } = guests;
    let (nothing, input, output) =
        (scratch.file("none.pcap"), scratch.file("sent.pcap"), scratch.file("got.pcap"));
    let empty = scratch.file("empty.pcap");
    write(&empty, &[]);
    write(&input, frames);
    let receiver = receiver.capture(&empty, &output).start();
    connected(rig, 1);
    let sender = sender.capture(&input, &nothing).start();
    let came = rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets >= expected);
    assert!(came, "{}", rig.describe());
    // What is in the guest's ring is taken within a few milliseconds.
    std::thread::sleep(Duration::from_millis(300));
    quit(vec![sender, receiver]);
    read(&output)
}

/// What a guest with one long TCP segment and a checksum to be computed sends.
pub fn leaves_work(socket: &Path) -> Guest<'_> {
    let mut guest = Guest::new(socket);
    guest.arguments = vec!["--mbuf-size=10240", "--max-pkt-len=9728"];
    guest.commands = "set fwd csum\nport stop all\ncsum set ip sw 1\ncsum set tcp hw 1\ncsum set udp hw 1\n\
                      tso set 700 1\nport start all\nstart\n";
    guest
}

/// A segment of 5000 bytes of payload, and a short packet, over IPv4 and IPv6.
pub fn segments() -> Vec<Vec<u8>> {
    let payload: Vec<u8> = (0..5000u32).map(|n| (n * n / 7) as u8).collect();
    let mut frames = Vec::new();
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")] {
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let builder = builder.ip(from.parse().unwrap(), to.parse().unwrap());
        let tcp = builder.tcp(1, 2, TcpFlags::ACK | TcpFlags::PSH).numbers(u32::MAX - 1000, 5);
        frames.push(tcp.payload(&payload).to_vec().unwrap());
        frames.push(
            builder.udp(3, 4).payload(b"a datagram whose checksum is computed by others").to_vec().unwrap(),
        );
    }
    frames
}

/// A guest that sends all it can.
pub fn flood(path: &Path) -> Running {
    let mut guest = Guest::new(path);
    guest.arguments = vec!["--forward-mode=txonly", "--port-topology=loop"];
    guest.start()
}

/// One that discards all packets.
pub fn swallow(path: &Path) -> Running {
    swallow_by(path, "")
}

/// The same with such rings (`Guest::device`).
pub fn swallow_by(path: &Path, rings: &str) -> Running {
    let mut guest = Guest::new(path);
    guest.device = rings;
    guest.arguments = vec!["--forward-mode=rxonly", "--port-topology=loop"];
    guest.start()
}

/// More packets leave by port 1.
pub fn goes_on(rig: &mut Rig) {
    let before = rig.sent(1);
    assert!(rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets > before + 1000), "{}", rig.describe());
}

/// The lock of guests, a folder, and sockets in it for two of them.
pub fn two_guests() -> Option<(MutexGuard<'static, ()>, Scratch, PathBuf, PathBuf)> {
    let (turn, scratch) = (turn()?, Scratch::new());
    let (a, b) = (socket(scratch.path(), "a"), socket(scratch.path(), "b"));
    Some((turn, scratch, a, b))
}
