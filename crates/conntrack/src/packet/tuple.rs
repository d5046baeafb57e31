// SPDX-License-Identifier: Apache-2.0
//! [`Tuple`]: what tells connections apart.

use netvm_wire::{Address, FlowHasher, FlowKey, IpProto};

/// A name space of addresses: connections of different zones never meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(pub u16);

/// Ports, or what takes their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    /// Source and destination; the identifier of an ICMP query in both.
    pub(crate) numbers: [u16; 2],
    /// The kind of an ICMP query, odd for a reply; 0 for other protocols. So a query in the direction of replies is not
    /// taken for one.
    pub(crate) query: u8,
}

/// The kind of an ICMP or ICMPv6 query; `None`: another message.
pub(crate) const fn query_of(protocol: IpProto, icmp_type: u8) -> Option<u8> {
    Some(match (protocol, icmp_type) {
        // Echo.
        (IpProto::ICMP, 8) | (IpProto::ICMPV6, 128) => 2,
        (IpProto::ICMP, 0) | (IpProto::ICMPV6, 129) => 3,
        // Timestamp, information (RFC 792), address mask (RFC 950).
        (IpProto::ICMP, 13) => 4,
        (IpProto::ICMP, 14) => 5,
        (IpProto::ICMP, 15) => 6,
        (IpProto::ICMP, 16) => 7,
        (IpProto::ICMP, 17) => 8,
        (IpProto::ICMP, 18) => 9,
        _ => return None,
    })
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port; the identifier of an ICMP query.
    pub source_port: u16,
    /// Destination port; the identifier of an ICMP query.
    pub destination_port: u16,
    /// Protocol.
    pub protocol: IpProto,
    /// As [`Ports::query`].
    pub(crate) query: u8,
    /// Zone.
    pub zone: Zone,
}

impl Tuple {
    /// No connection's.
    pub(crate) const NONE: Self = Self {
        source: Address::UNSPECIFIED,
        destination: Address::UNSPECIFIED,
        source_port: 0,
        destination_port: 0,
        protocol: IpProto(0),
        query: 0,
        zone: Zone(0),
    };

    /// That of a packet with these ports.
    pub(crate) const fn of(key: &FlowKey, ports: Ports, zone: Zone) -> Self {
        let FlowKey { source, destination, protocol, .. } = *key;
        let Ports { numbers: [source_port, destination_port], query } = ports;
        Self { source, destination, source_port, destination_port, protocol, query, zone }
    }

    /// The other direction.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            query: if self.query == 0 { 0 } else { self.query ^ 1 },
            ..*self
        }
    }

    /// Whether it has ports, or the identifier of a query.
    pub(crate) const fn has_port(&self) -> bool {
        self.protocol.has_ports() || self.query != 0
    }

    /// With another source port, or identifier of a query.
    pub(crate) const fn with_source_port(self, source_port: u16) -> Self {
        let destination_port = if self.query == 0 { self.destination_port } else { source_port };
        Self { source_port, destination_port, ..self }
    }

    /// The same for both directions.
    pub(crate) fn symmetric_hash(&self, hasher: &FlowHasher) -> u64 {
        let end = |address: Address, port: u16| (address.words(), port);
        let (a, b) = (end(self.source, self.source_port), end(self.destination, self.destination_port));
        let [([a, b], from), ([c, d], to)] = [a.min(b), a.max(b)];
        let ports = u64::from(from) | u64::from(to) << 16;
        let kind =
            u64::from(self.protocol.0) | u64::from(self.query >> 1) << 8 | u64::from(self.zone.0) << 16;
        hasher.words([a, b, c, d, ports | kind << 32])
    }

    pub(crate) fn hash(&self, hasher: &FlowHasher) -> u32 {
        let ([a, b], [c, d]) = (self.source.words(), self.destination.words());
        let ports = u64::from(self.source_port) | u64::from(self.destination_port) << 16;
        let kind = u64::from(self.protocol.0) | u64::from(self.query) << 8 | u64::from(self.zone.0) << 16;
        hasher.words([a, b, c, d, ports | kind << 32]) as u32
    }
}
