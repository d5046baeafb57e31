// SPDX-License-Identifier: Apache-2.0
//! The segments that the proxy sends: SYN and ACK to the client, SYN to the server, ACK to the server. Each is made
//! from a packet of the other end, or of the same one, and has its layers below IP.

use netvm_wire::{FlowKey, IpProto, TcpFlags, checksum};

use crate::Packet;
use crate::packet::headers::{layers, u32_at};
use crate::packet::options::{MSS, NOTHING, SACK_PERMITTED, TIMESTAMPS, WINDOW_SCALE, option};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;

/// The hop limit of answers.
const HOP_LIMIT: u8 = 64;

/// Options of a TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) mss: Option<u16>,
    pub(super) scale: Option<u8>,
    pub(super) permits_sack: bool,
    /// The sender's time, and the one that it echoes.
    pub(super) times: Option<[u32; 2]>,
}

impl Options {
    /// Those of a TCP header.
    pub(super) fn of(header: &[u8]) -> Self {
        let length = header.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
        let bytes = header.get(TCP..length.min(header.len())).unwrap_or_default();
        let times = |times: [u8; 8]| Some([u32_at(&times, 0)?, u32_at(&times, 4)?]);
        Self {
            mss: option(bytes, MSS).map(u16::from_be_bytes),
            scale: option(bytes, WINDOW_SCALE).map(|[shift]| shift.min(14)),
            permits_sack: option::<0>(bytes, SACK_PERMITTED).is_some(),
            times: option(bytes, TIMESTAMPS).and_then(times),
        }
    }

    /// Writes them; returns their length, a multiple of 4.
    fn write(&self, out: &mut [u8; TCP]) -> usize {
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            if let Some(place) = out.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        if let Some(mss) = self.mss {
            push(&[MSS, 4]);
            push(&mss.to_be_bytes());
        }
        match (self.permits_sack, self.times) {
            (true, _) => push(&[SACK_PERMITTED, 2]),
            (false, Some(_)) => push(&[NOTHING; 2]),
            (false, None) => {}
        }
        if let Some([own, echo]) = self.times {
            push(&[TIMESTAMPS, 10]);
            push(&own.to_be_bytes());
            push(&echo.to_be_bytes());
        } else if self.permits_sack {
            push(&[NOTHING; 2]);
        }
        if let Some(shift) = self.scale {
            push(&[NOTHING, WINDOW_SCALE, 3, shift]);
        }
        at
    }
}

/// A segment without data.
pub(super) struct Frame {
    /// It goes back to the sender of the packet that it is made from.
    pub(super) is_answer: bool,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) flags: TcpFlags,
    pub(super) window: u16,
    pub(super) options: Options,
}

impl Frame {
    /// Writes the frame, which is made from a packet; returns its length. `None`: `out` is too short for it.
    pub(super) fn write(&self, packet: &Packet<'_>, out: &mut [u8]) -> Option<usize> {
        let (key, network) = (packet.key, layers(packet.front, packet.length)?.network);
        let mut tcp = [0; 2 * TCP];
        let length = self.tcp(key, &mut tcp);
        let ip = if key.source.is_v4() { IPV4 } else { IPV6 };
        let frame = out.get_mut(..network + ip + length)?;
        let (below, rest) = frame.split_at_mut_checked(network)?;
        below.copy_from_slice(packet.front.get(..network)?);
        if self.is_answer {
            let macs = below.first_chunk_mut::<ETHERNET>()?;
            let (destination, source) = macs[..12].split_at_mut(6);
            destination.swap_with_slice(source);
        }
        let (header, segment) = rest.split_at_mut_checked(ip)?;
        self.ip(packet, packet.front.get(network..network + ip)?, header, length);
        segment.copy_from_slice(&tcp[..length]);
        Some(network + ip + length)
    }

    /// Writes the IP header of a segment of `length` bytes, from that of a packet.
    fn ip(&self, packet: &Packet<'_>, from: &[u8], header: &mut [u8], length: usize) {
        header.copy_from_slice(from);
        let key = packet.key;
        let (source, destination) = self.ends(key.source, key.destination);
        if let (Some(source), Some(destination)) = (source.v4_bits(), destination.v4_bits()) {
            // No congestion notification (RFC 3168), no identifier, not to be fragmented.
            let traffic = from[1] & 0xfc;
            header[..4].copy_from_slice(&[0x45, traffic, 0, (IPV4 + length) as u8]);
            header[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            header[8] = if self.is_answer { HOP_LIMIT } else { from[8] };
            header[9..12].copy_from_slice(&[IpProto::TCP.0, 0, 0]);
            header[12..16].copy_from_slice(&source.to_be_bytes());
            header[16..20].copy_from_slice(&destination.to_be_bytes());
            let sum = checksum::internet_checksum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            header[1] &= 0xcf;
            header[4..7].copy_from_slice(&[0, length as u8, IpProto::TCP.0]);
            header[7] = if self.is_answer { HOP_LIMIT } else { from[7] };
            header[8..24].copy_from_slice(&source.v6_bits().to_be_bytes());
            header[24..40].copy_from_slice(&destination.v6_bits().to_be_bytes());
        }
    }

    /// Writes the TCP header; returns its length.
    fn tcp(&self, key: &FlowKey, tcp: &mut [u8; 2 * TCP]) -> usize {
        let mut options = [0; TCP];
        let length = TCP + self.options.write(&mut options);
        let ports = self.ends(key.source_port, key.destination_port);
        tcp[..2].copy_from_slice(&ports.0.to_be_bytes());
        tcp[2..4].copy_from_slice(&ports.1.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        (tcp[12], tcp[13]) = ((length as u8) << 2, self.flags.bits());
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        tcp[TCP..].copy_from_slice(&options);
        let (source, destination) = self.ends(key.source, key.destination);
        let sum = checksum::transport_checksum(source, destination, IpProto::TCP, &tcp[..length]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        length
    }

    /// The ends, from those of the packet.
    const fn ends<T: Copy>(&self, source: T, destination: T) -> (T, T) {
        if self.is_answer { (destination, source) } else { (source, destination) }
    }
}
