// SPDX-License-Identifier: Apache-2.0
//! Generic receive offload (GRO): TCP segments and UDP datagrams of one flow that follow each other become one long
//! packet, which [`crate::segment`] can split again.
//!
//! It must be right in this direction: splitting the long packet yields the received packets, byte by byte. So packets
//! are coalesced only if they differ in nothing but lengths, checksums and PSH, their identifications (IPv4) count up
//! by one, their sequence numbers (TCP) continue each other, and all but the last have payloads of one length. The
//! checks are those of Linux (`tcp_gro_receive`, `inet_gro_receive`), except that Linux also accepts a constant
//! identification. Checksums are verified first, because splitting writes new ones.
//!
//! Not coalesced: fragments, IPv4 options and IPv6 extension headers, frames with padding, TCP with any flag except ACK
//! and PSH, UDP without a checksum, and tunnels by their inner headers.

use crate::TcpFlags;
use crate::checksum::{fold, internet_checksum};
use crate::partial::{Transport, transport};
use crate::segment::{GsoType, HeaderLengths, MAX_DATAGRAMS, MIN_SIZE};

/// Most bytes of headers of a packet that is coalesced: Ethernet with two tags, IPv6, TCP with options.
pub const MAX_HEADERS: usize = 14 + 2 * 4 + 40 + 60;
/// Longest IP packet, without the fixed header in IPv6.
const MAX_LENGTH: usize = 65_535;

/// What GRO reads of a received packet with TCP or UDP.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its headers, with zeros where packets of one run differ.
    headers: [u8; MAX_HEADERS],
    lengths: HeaderLengths,
    gso_type: GsoType,
    payload: usize,
    /// Addresses and ports, hashed.
    flow: u64,
    id: u16,
    sequence: u32,
    is_push: bool,
    may_coalesce: bool,
    /// The sum of what the checksum of TCP or UDP covers, without the payload.
    sum: u16,
}

impl Packet {
    /// Reads a frame of `length` bytes that begins with `front`. `None` if it has no TCP or UDP header that GRO
    /// understands.
    #[must_use]
    pub fn read(front: &[u8], length: usize) -> Option<Self> {
        let Transport { l2, l3, v6, udp, length: l4_length, pseudo_sum } = transport(front)?;
        let (l2, l3, l4_length) = (usize::from(l2), usize::from(l3), usize::from(l4_length));
        let from = l2 + l3;
        let l4 = if udp { 8 } else { usize::from(*front.get(from + 12)? >> 4) * 4 };
        let payload = l4_length.checked_sub(l4).filter(|_| udp || l4 >= 20)?;
        let bytes = front.get(..from + l4)?;
        let mut headers = [0; MAX_HEADERS];
        headers.get_mut(..bytes.len())?.copy_from_slice(bytes);

        let (ip, transport) = headers[l2..from + l4].split_at_mut(l3);
        let flow = flow_of(if v6 { &ip[8..40] } else { &ip[12..20] }, transport);
        let sum = fold(u64::from(pseudo_sum) + u64::from(!internet_checksum(transport)));
        let is_plain_ip = l3 == if v6 { 40 } else { 20 } && (v6 || internet_checksum(ip) == 0);
        let mut id = 0;
        if v6 {
            ip[4..6].fill(0);
        } else {
            id = u16::from_be_bytes([ip[4], ip[5]]);
            ip[2..6].fill(0);
            ip[10..12].fill(0);
        }
        let (mut sequence, mut is_push) = (0, false);
        let is_plain_transport = if udp {
            let datagram = usize::from(u16::from_be_bytes([transport[4], transport[5]]));
            let has_checksum = transport[6..8] != [0; 2];
            transport[4..8].fill(0);
            has_checksum && datagram == l4_length
        } else {
            let flags = TcpFlags::from_bits_retain(transport[13]);
            sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            is_push = flags.contains(TcpFlags::PSH);
            transport[4..8].fill(0);
            transport[13] &= !TcpFlags::PSH.bits();
            transport[16..18].fill(0);
            flags - TcpFlags::PSH == TcpFlags::ACK && transport[12] & 0xf == 0
        };
        let may_coalesce = is_plain_ip && is_plain_transport && payload > 0 && from + l4_length == length;
        let lengths = HeaderLengths { l2, l3, l4 };
        let gso_type = GsoType { v6, udp };
        Some(Self { headers, lengths, gso_type, payload, flow, id, sequence, is_push, may_coalesce, sum })
    }

    /// Bytes of its headers.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        let HeaderLengths { l2, l3, l4 } = self.lengths;
        l2 + l3 + l4
    }

    /// Bytes of its payload.
    #[must_use]
    pub const fn payload(&self) -> usize {
        self.payload
    }

    /// Whether both may be of one flow: packets of a flow always are, packets of two flows hardly ever.
    #[must_use]
    pub const fn is_in_flow_of(&self, other: &Self) -> bool {
        self.flow == other.flow
    }

    /// Whether its checksum is right. `sum` is the sum of its payload (RFC 1071) over words in network order.
    #[must_use]
    pub fn is_right(&self, sum: u16) -> bool {
        fold(u64::from(self.sum) + u64::from(sum)) == 0xffff
    }
}

/// Packets that are coalesced, from the first on.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced {
    first: Packet,
    count: usize,
    payload: usize,
    /// No packet can follow the last: it is shorter, or the sender pushes.
    is_complete: bool,
    is_push: bool,
}

impl Coalesced {
    /// Begins with a packet. `None` if no other can follow it.
    #[must_use]
    pub fn begin(first: Packet) -> Option<Self> {
        let is_long_enough = first.gso_type.udp || first.payload >= usize::from(MIN_SIZE);
        let begins = first.may_coalesce && is_long_enough && !first.is_push;
        let Packet { payload, .. } = first;
        begins.then_some(Self { first, count: 1, payload, is_complete: false, is_push: false })
    }

    /// The first packet.
    #[must_use]
    pub const fn first(&self) -> &Packet {
        &self.first
    }

    /// Packets so far.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Whether the packet follows the last one so that splitting yields both again.
    #[must_use]
    pub fn accepts(&self, next: &Packet) -> bool {
        let first = &self.first;
        let HeaderLengths { l3, l4, .. } = first.lengths;
        let fixed = if first.gso_type.v6 { 0 } else { l3 };
        let follows = if first.gso_type.udp {
            self.count < MAX_DATAGRAMS
        } else {
            next.sequence == first.sequence.wrapping_add(self.payload as u32)
        };
        let counts_up = first.gso_type.v6 || next.id == first.id.wrapping_add(self.count as u16);
        !self.is_complete
            && next.may_coalesce
            && follows
            && counts_up
            && next.payload <= first.payload
            && fixed + l4 + self.payload + next.payload <= MAX_LENGTH
            && (next.lengths, next.gso_type) == (first.lengths, first.gso_type)
            && next.headers == first.headers
    }

    /// Adds a packet that it accepts, whose checksum is right.
    pub const fn add(&mut self, next: &Packet) {
        self.count += 1;
        self.payload += next.payload;
        self.is_push = next.is_push;
        self.is_complete = next.is_push || next.payload < self.first.payload;
    }

    /// Header lengths of the long packet.
    #[must_use]
    pub const fn lengths(&self) -> HeaderLengths {
        self.first.lengths
    }

    /// Its GSO type.
    #[must_use]
    pub const fn gso_type(&self) -> GsoType {
        self.first.gso_type
    }

    /// Bytes of payload of each packet when it is split.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.first.payload
    }

    /// The headers of the long packet, and their bytes. The checksum of TCP or UDP is unfinished: the sum of the pseudo
    /// header.
    #[must_use]
    pub fn headers(&self) -> ([u8; MAX_HEADERS], usize) {
        let Packet { mut headers, lengths: HeaderLengths { l2, l3, l4 }, gso_type, .. } = self.first;
        let (ip, transport) = headers[l2..l2 + l3 + l4].split_at_mut(l3);
        let length = l4 + self.payload;
        if gso_type.v6 {
            ip[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&((l3 + length) as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&self.first.id.to_be_bytes());
            let sum = internet_checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        if gso_type.udp {
            transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        } else {
            transport[4..8].copy_from_slice(&self.first.sequence.to_be_bytes());
            if self.is_push {
                transport[13] |= TcpFlags::PSH.bits();
            }
        }
        if let Some(Transport { pseudo_sum, .. }) = crate::partial::transport(&headers) {
            let at = l2 + l3 + if gso_type.udp { 6 } else { 16 };
            headers[at..at + 2].copy_from_slice(&pseudo_sum.to_be_bytes());
        }
        (headers, l2 + l3 + l4)
    }
}

/// A hash of addresses and ports.
fn flow_of(addresses: &[u8], transport: &[u8]) -> u64 {
    let (words, _) = addresses.as_chunks::<4>();
    let ports = u32::from_be_bytes([transport[0], transport[1], transport[2], transport[3]]);
    let mix =
        |hash: u64, word: u32| (hash ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(mix(0, ports), |hash, word| mix(hash, u32::from_be_bytes(*word)))
}

#[cfg(test)]
mod tests;
