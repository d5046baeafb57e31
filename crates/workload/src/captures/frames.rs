// SPDX-License-Identifier: Apache-2.0
//! Frames of conversations between two hosts, and the times at which they come.
#![allow(clippy::panic, reason = "a frame that cannot be built is a bug of the generator")]

use std::net::{IpAddr, SocketAddr};

use netvm_wire::{FrameBuilder, IpProto, MacAddr, TcpFlags};

use super::file::Packet;

/// MAC addresses of the two hosts.
pub(super) const CLIENT: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0a]);
pub(super) const SERVER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0b]);
/// Time of the first packet of each file: 2025-01-01.
const EPOCH: u64 = 1_735_689_600_000_000_000;
/// Time between packets, in nanoseconds; not a round number of microseconds.
const STEP: u64 = 113_017;
/// Bytes of a full TCP segment with timestamps.
pub(super) const SEGMENT: usize = 1448;

/// The frame of a builder.
pub(super) fn built(builder: &FrameBuilder<'_>) -> Vec<u8> {
    builder.to_vec().unwrap_or_else(|error| panic!("{error}"))
}

/// An address of the tests' networks.
pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is not an address"))
}

/// Frames with times.
pub(super) fn timed(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Packet> {
    let packet =
        |(n, data): (u64, Vec<u8>)| Packet { at: EPOCH + n * STEP, original: data.len() as u32, data };
    (0..).zip(frames).map(packet).collect()
}

/// Two endpoints; frames of `from_client` go to the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
}

impl Flow {
    /// Between endpoints `ADDRESS:PORT`.
    pub(super) fn new(client: &str, server: &str) -> Self {
        let endpoint = |text: &str| text.parse().unwrap_or_else(|_| panic!("`{text}` is not ADDRESS:PORT"));
        Self { client: endpoint(client), server: endpoint(server) }
    }

    pub(super) fn base<'a>(self, from_client: bool) -> (FrameBuilder<'a>, u16, u16) {
        let (macs, [from, to]) = if from_client {
            ((CLIENT, SERVER), [self.client, self.server])
        } else {
            ((SERVER, CLIENT), [self.server, self.client])
        };
        (FrameBuilder::new(macs.0, macs.1).ip(from.ip(), to.ip()), from.port(), to.port())
    }

    pub(super) fn udp(self, from_client: bool, payload: &[u8]) -> Vec<u8> {
        let (base, from, to) = self.base(from_client);
        built(&base.udp(from, to).payload(payload))
    }

    /// A packet of another IP protocol.
    pub(super) fn other(self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        built(&self.base(true).0.protocol(IpProto(protocol)).payload(payload))
    }

    /// The fragments of a UDP datagram, each with at most `room` bytes of its data (a multiple of 8).
    pub(super) fn fragments(self, from_client: bool, payload: &[u8], room: usize) -> Vec<Vec<u8>> {
        let whole = self.udp(from_client, payload);
        let header = whole.len() - payload.len() - 8;
        let datagram = &whole[header..];
        let (base, ..) = self.base(from_client);
        let pieces = datagram.chunks(room).enumerate().map(|(n, piece)| {
            let more = (n + 1) * room < datagram.len();
            let offset = (n * room / 8) as u16;
            built(&base.protocol(IpProto::UDP).payload(piece).fragment(0x1234, offset, more))
        });
        pieces.collect()
    }

    /// A whole TCP connection: handshake, what each side says in turn (the client first), and the end.
    pub(super) fn tcp(self, says: &[Vec<u8>], segment: usize) -> Vec<Vec<u8>> {
        let mut talk = Tcp { flow: self, next: [1000, 50_000], frames: Vec::new() };
        talk.say(true, TcpFlags::SYN, b"");
        talk.say(false, TcpFlags::SYN | TcpFlags::ACK, b"");
        talk.say(true, TcpFlags::ACK, b"");
        for (n, bytes) in says.iter().enumerate() {
            let from_client = n % 2 == 0;
            for (n, piece) in bytes.chunks(segment).enumerate() {
                talk.say(from_client, TcpFlags::ACK | TcpFlags::PSH, piece);
                // Every second segment is acknowledged.
                if n % 2 == 1 {
                    talk.say(!from_client, TcpFlags::ACK, b"");
                }
            }
        }
        for from_client in [true, false] {
            talk.say(from_client, TcpFlags::FIN | TcpFlags::ACK, b"");
        }
        talk.say(true, TcpFlags::ACK, b"");
        talk.frames
    }
}

struct Tcp {
    flow: Flow,
    /// Sequence numbers of the client and of the server.
    next: [u32; 2],
    frames: Vec<Vec<u8>>,
}

impl Tcp {
    fn say(&mut self, from_client: bool, flags: TcpFlags, payload: &[u8]) {
        let (own, other) = (usize::from(!from_client), usize::from(from_client));
        let (base, from, to) = self.flow.base(from_client);
        let acknowledged = if flags.contains(TcpFlags::ACK) { self.next[other] } else { 0 };
        let segment = base.tcp(from, to, flags).numbers(self.next[own], acknowledged).payload(payload);
        self.frames.push(built(&segment));
        let counts = flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
        self.next[own] += payload.len() as u32 + u32::from(counts);
    }
}
