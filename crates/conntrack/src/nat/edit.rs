//! Edits header fields, and the checksums that cover them.

use netvm_wire::{Address, IpProto, checksum};

use super::mappings::End;
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
pub(super) struct Edit<'a> {
    pub(super) front: &'a mut [u8],
    /// Where the checksum of the error is.
    pub(super) outer: Option<usize>,
}

impl Edit<'_> {
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
        self.address(half, layers, end.address, sum)?;
        let Some(transport) = layers.transport else { return Some(()) };
        let place = match (layers.protocol, half) {
            (IpProto::ICMP | IpProto::ICMPV6, _) => 4,
            (protocol, Half::Source) if protocol.has_ports() => 0,
            (protocol, Half::Destination) if protocol.has_ports() => 2,
            _ => return Some(()),
        };
        self.word(transport + place, end.port, [sum.filter(|sum| sum.is_whole), None])
    }

    /// Sets an address.
    pub(super) fn address(
        &mut self,
        half: Half,
        layers: &Layers,
        address: Address,
        sum: Option<Sum>,
    ) -> Option<()> {
        let sum = sum.filter(|sum| sum.has_pseudo_header);
        let network = layers.network;
        let bytes = address.v6_bits().to_be_bytes();
        let (words, place, header) = match (address.v4_bits(), half) {
            (Some(_), half) => (&bytes[12..], if half == Half::Source { 12 } else { 16 }, Some(network + 10)),
            (None, half) => (&bytes[..], if half == Half::Source { 8 } else { 24 }, None),
        };
        let header =
            header.map(|at| Sum { at, has_pseudo_header: false, is_whole: true, is_optional: false });
        for (n, word) in words.as_chunks::<2>().0.iter().enumerate() {
            self.word(network + place + 2 * n, u16::from_be_bytes(*word), [header, sum])?;
        }
        Some(())
    }

    fn get(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(*self.front.get(at..)?.first_chunk()?))
    }

    /// Sets a word without its checksums, but for that of an error around it.
    fn set(&mut self, at: usize, new: u16) -> Option<()> {
        let old = self.get(at)?;
        self.front.get_mut(at..at + 2)?.copy_from_slice(&new.to_be_bytes());
        let Some(outer) = self.outer else { return Some(()) };
        let sum = checksum::updated(self.get(outer)?, old, new);
        self.front.get_mut(outer..outer + 2)?.copy_from_slice(&sum.to_be_bytes());
        Some(())
    }

    /// Sets a word, and the checksums that cover it.
    fn word(&mut self, at: usize, new: u16, sums: [Option<Sum>; 2]) -> Option<()> {
        let old = self.get(at)?;
        if old == new {
            return Some(());
        }
        self.set(at, new)?;
        for sum in sums.into_iter().flatten() {
            let field = self.get(sum.at)?;
            let updated = match checksum::updated(if sum.is_whole { field } else { !field }, old, new) {
                updated if !sum.is_whole => !updated,
                0 if sum.is_optional => 0xffff,
                updated => updated,
            };
            if field != 0 || !sum.is_optional {
                self.set(sum.at, updated)?;
            }
        }
        Some(())
    }
}
