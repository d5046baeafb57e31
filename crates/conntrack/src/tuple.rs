//! [`Tuple`]: what tells connections apart.

use netvm_wire::{Address, FlowHasher, FlowKey, IpProto};

/// A name space of addresses: connections of different zones never meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(pub u16);

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
        zone: Zone(0),
    };

    /// That of a packet with these ports.
    pub(crate) const fn of(key: &FlowKey, [source_port, destination_port]: [u16; 2], zone: Zone) -> Self {
        let FlowKey { source, destination, protocol, .. } = *key;
        Self { source, destination, source_port, destination_port, protocol, zone }
    }

    /// The other direction.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }

    pub(crate) fn hash(&self, hasher: &FlowHasher) -> u32 {
        let ([a, b], [c, d]) = (self.source.words(), self.destination.words());
        let ports = u64::from(self.source_port) | u64::from(self.destination_port) << 16;
        hasher.words([a, b, c, d, ports | u64::from(self.protocol.0) << 32 | u64::from(self.zone.0) << 48])
            as u32
    }
}
