// SPDX-License-Identifier: Apache-2.0
//! What two hosts say to each other through a router that translates: each end sees addresses and ports of its own.

use std::net::IpAddr;

use netvm_wire::{Address, FrameBuilder, IpProto, TcpFlags, checksum, parse};

use super::super::conversation::seal;
use super::super::router::mac;

/// An address and a port, or the identifier of an echo.
pub type End = (Address, u16);

/// What one end sees: its own end, and that of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub own: End,
    pub peer: End,
}

/// What one of the ends sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saying {
    /// A datagram, an echo, or a segment with these flags and data.
    Next(TcpFlags, u16),
    /// A segment that no state allows.
    Impossible(TcpFlags),
    /// An ICMP error about the last packet that the end got.
    Error,
}

/// A conversation, as one router sees it.
#[derive(Clone, Debug)]
pub struct Talk {
    pub protocol: IpProto,
    /// The side of the end that begins.
    pub side: usize,
    /// What the ends see; the second learns it from the first packet.
    pub views: [Option<View>; 2],
    /// The last packet that each end got.
    got: [Option<Vec<u8>>; 2],
    next: [u32; 2],
}

impl Talk {
    pub fn new(protocol: IpProto, side: usize, view: View) -> Self {
        let next = [u32::from(view.own.1) << 12, u32::from(view.own.1) << 8];
        Self { protocol, side, views: [Some(view), None], got: [None, None], next }
    }

    /// The side of an end.
    pub const fn side_of(&self, end: usize) -> usize {
        if end == 0 { self.side } else { 1 - self.side }
    }

    /// Whether an end has got a packet.
    pub const fn has_got(&self, end: usize) -> bool {
        self.got[end].is_some()
    }

    /// The frame of what an end says.
    pub fn frame(&self, end: usize, saying: Saying, identification: u16) -> Vec<u8> {
        let View { own, peer } = self.views[end].unwrap();
        let side = self.side_of(end);
        let ip = |address: Address| IpAddr::from(address);
        let builder = FrameBuilder::new(mac(side, false), mac(side, true)).ip(ip(own.0), ip(peer.0));
        let mut frame = match (saying, self.protocol) {
            (Saying::Error, _) => {
                let about = self.got[end].as_ref().unwrap();
                let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
                message.extend(&about[14..about.len().min(14 + 28)]);
                let sum = checksum::internet_checksum(&message);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                builder.protocol(IpProto::ICMP).payload(&message).to_vec()
            }
            (Saying::Next(flags, data), IpProto::TCP) => {
                let acknowledgment = if flags.contains(TcpFlags::ACK) { self.next[1 - end] } else { 0 };
                let payload = vec![7; usize::from(data)];
                builder
                    .tcp(own.1, peer.1, flags)
                    .numbers(self.next[end], acknowledgment)
                    .payload(&payload)
                    .to_vec()
            }
            (Saying::Impossible(flags), _) => builder.tcp(own.1, peer.1, flags).numbers(1, 1).to_vec(),
            (Saying::Next(..), IpProto::ICMP) => builder.echo(end == 1, own.1, 1).to_vec(),
            (Saying::Next(..), _) => builder.udp(own.1, peer.1).payload(b"datagram").to_vec(),
        }
        .unwrap();
        seal(&mut frame, identification);
        frame
    }

    /// Whether a frame that the other end gets is as it must be, once both ends see each other; then remembers it.
    pub fn gets(&mut self, from: usize, saying: Saying, frame: &[u8]) -> bool {
        let to = 1 - from;
        let [source, destination] = if saying == Saying::Error { quoted(frame) } else { ends_of(frame) };
        // An error quotes what its receiver has sent.
        let seen = match saying {
            Saying::Error => View { own: source, peer: destination },
            _ => View { own: destination, peer: source },
        };
        if let Saying::Next(flags, data) = saying {
            let control = flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::FIN);
            self.next[from] = self.next[from].wrapping_add(u32::from(data) + u32::from(control));
            self.got[to] = Some(frame.to_vec());
            self.views[to].get_or_insert(seen);
        }
        // What has no connection is not translated.
        matches!(saying, Saying::Impossible(_)) || self.views[to].is_none_or(|view| view == seen)
    }
}

/// Source and destination of a frame.
pub fn ends_of(frame: &[u8]) -> [End; 2] {
    let headers = parse(frame).unwrap();
    let key = headers.key();
    let identifier = || {
        let at = headers.l4_offset().unwrap() + 4;
        u16::from_be_bytes([frame[at], frame[at + 1]])
    };
    let ports = match key.protocol {
        IpProto::ICMP => [identifier(), identifier()],
        _ => [key.source_port, key.destination_port],
    };
    [(key.source, ports[0]), (key.destination, ports[1])]
}

/// Source and destination of the packet that an ICMP error is about.
fn quoted(frame: &[u8]) -> [End; 2] {
    let inner = &frame[14 + 20 + 8..];
    let word = |at: usize| u16::from_be_bytes([inner[at], inner[at + 1]]);
    let address = |at: usize| Address::from_v4_bits(u32::from(word(at)) << 16 | u32::from(word(at + 2)));
    let ports = if inner[9] == IpProto::ICMP.0 { [word(24), word(24)] } else { [word(20), word(22)] };
    [(address(12), ports[0]), (address(16), ports[1])]
}
