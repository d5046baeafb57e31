// SPDX-License-Identifier: Apache-2.0
//! Edits header fields, and the checksums that cover them.

use netvm_wire::{Address, IpProto, checksum};

use super::ends::End;
use crate::packet::headers::Layers;
use crate::packet::tuple::Tuple;

/// Which part of a packet is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The destination: before routing.
    Destination,
    /// The source: after routing.
    Source,
}

impl Half {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Destination => Self::Source,
            Self::Source => Self::Destination,
        }
    }

    /// This end of a tuple.
    pub(super) const fn end_of(self, tuple: &Tuple) -> End {
        match self {
            Self::Destination => End { address: tuple.destination, port: tuple.destination_port },
            Self::Source => End { address: tuple.source, port: tuple.source_port },
        }
    }
}

/// The checksum of a protocol over IP.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    /// Where it is.
    pub(super) at: usize,
    /// It covers addresses.
    has_pseudo_header: bool,
    /// It covers ports: it is more than the sum of a pseudo header, which is not inverted.
    is_whole: bool,
    /// 0 means that there is none.
    is_optional: bool,
}

/// The bytes of a packet, or of one in an ICMP error.
pub(crate) struct Edit<'a> {
    pub(super) front: &'a mut [u8],
    /// Where the checksum of the error is.
    pub(super) outer: Option<usize>,
}

impl<'a> Edit<'a> {
    /// Those of a packet.
    pub(crate) const fn new(front: &'a mut [u8]) -> Self {
        Self { front, outer: None }
    }

    /// Those of the packet that an ICMP error with these layers is about.
    pub(crate) fn of_error(front: &'a mut [u8], error: &Layers) -> Option<Self> {
        let mut edit = Self::new(front);
        edit.outer = Some(edit.sum_of(error, false)?.at);
        Some(edit)
    }

    /// Replaces the first bytes of the protocol over IP, without its checksum, which is adjusted.
    pub(crate) fn header(&mut self, layers: &Layers, new: &[u8], is_partial: bool) -> Option<()> {
        let sum = self.sum_of(layers, is_partial);
        let change = self.put(layers.transport?, new)?;
        sum.map_or(Some(()), |sum| self.adjust(sum, change.of(sum.is_whole)))
    }

    /// The checksum of the protocol over IP, if it is in the bytes at hand. Errors need not have it.
    pub(super) fn sum_of(&self, layers: &Layers, is_partial: bool) -> Option<Sum> {
        let transport = layers.transport?;
        let is_udp = layers.protocol == IpProto::UDP;
        let place = match layers.protocol {
            IpProto::TCP => 16,
            IpProto::UDP => 6,
            IpProto::ICMP | IpProto::ICMPV6 => 2,
            _ => return None,
        };
        let (at, is_icmp) = (transport + place, layers.protocol == IpProto::ICMP);
        let is_whole = !is_partial || place == 2;
        let sum = Sum { at, has_pseudo_header: !is_icmp, is_whole, is_optional: is_udp && is_whole };
        (at + 2 <= layers.end.min(self.front.len())).then_some(sum)
    }

    /// Sets an address and its port.
    pub(super) fn end(&mut self, half: Half, layers: &Layers, end: End, sum: Option<Sum>) -> Option<()> {
        let by_address = self.put_address(half, layers, end.address)?;
        let mut change = by_address.of(sum.is_some_and(|sum| sum.has_pseudo_header));
        let place = match (layers.protocol, half) {
            (IpProto::ICMP | IpProto::ICMPV6, _) => Some(4),
            (protocol, Half::Source) if protocol.has_ports() => Some(0),
            (protocol, Half::Destination) if protocol.has_ports() => Some(2),
            _ => None,
        };
        if let (Some(transport), Some(place)) = (layers.transport, place) {
            let by_port = self.put(transport + place, &end.port.to_be_bytes())?;
            change = change.and(by_port.of(sum.is_some_and(|sum| sum.is_whole)));
        }
        sum.map_or(Some(()), |sum| self.adjust(sum, change))
    }

    /// Sets an address.
    pub(super) fn address(
        &mut self,
        half: Half,
        layers: &Layers,
        address: Address,
        sum: Option<Sum>,
    ) -> Option<()> {
        let change = self.put_address(half, layers, address)?;
        sum.filter(|sum| sum.has_pseudo_header).map_or(Some(()), |sum| self.adjust(sum, change))
    }

    /// Sets an address, and adjusts the checksum of an IPv4 header.
    fn put_address(&mut self, half: Half, layers: &Layers, address: Address) -> Option<Change> {
        let network = layers.network;
        let Some(bits) = address.v4_bits() else {
            let place = if half == Half::Source { 8 } else { 24 };
            return self.put(network + place, &address.v6_bits().to_be_bytes());
        };
        let place = if half == Half::Source { 12 } else { 16 };
        let change = self.put(network + place, &bits.to_be_bytes())?;
        let header = Sum { at: network + 10, has_pseudo_header: false, is_whole: true, is_optional: false };
        self.adjust(header, change)?;
        Some(change)
    }

    fn get(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(*self.front.get(at..)?.first_chunk()?))
    }

    /// Sets bytes at an even distance from where checksums begin.
    fn put(&mut self, at: usize, new: &[u8]) -> Option<Change> {
        let old = self.front.get_mut(at..at + new.len())?;
        let words = |bytes: &[u8]| -> u32 {
            bytes.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
        };
        let all_ones = new.len() as u32 / 2 * 0xffff;
        let change = Change(all_ones - words(old) + words(new));
        old.copy_from_slice(new);
        self.adjust_outer(change)?;
        Some(change)
    }

    /// Adjusts the checksum of the error around.
    fn adjust_outer(&mut self, change: Change) -> Option<()> {
        let Some(outer) = self.outer else { return Some(()) };
        let sum = change.applied_to(self.get(outer)?);
        self.front.get_mut(outer..outer + 2)?.copy_from_slice(&sum.to_be_bytes());
        Some(())
    }

    /// Adjusts a checksum after a change of what it covers.
    fn adjust(&mut self, sum: Sum, change: Change) -> Option<()> {
        let field = self.get(sum.at)?;
        if field == 0 && sum.is_optional {
            return Some(());
        }
        let adjusted = match change.applied_to(if sum.is_whole { field } else { !field }) {
            adjusted if !sum.is_whole => !adjusted,
            0 if sum.is_optional => 0xffff,
            adjusted => adjusted,
        };
        self.put(sum.at, &adjusted.to_be_bytes()).map(drop)
    }
}

/// By how much a one's complement sum changes: the new words, and the complements of the old ones (RFC 1624).
#[derive(Clone, Copy)]
struct Change(u32);

impl Change {
    const NONE: Self = Self(0);

    /// This change, or none.
    const fn of(self, is_covered: bool) -> Self {
        if is_covered { self } else { Self::NONE }
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// A checksum after this change.
    const fn applied_to(self, checksum: u16) -> u16 {
        let folded = (self.0 & 0xffff) + (self.0 >> 16);
        // As if a word that is no part of the sum, all ones, became the change.
        checksum::updated(checksum, 0xffff, ((folded & 0xffff) + (folded >> 16)) as u16)
    }
}
