// SPDX-License-Identifier: Apache-2.0
//! NAT events (RFC 8158) as IPFIX records. An IPv6 address that stands for another one is no case of the RFC: its event
//! is that of RFC 8158's table 2 for any translation (1 and 2).

use netvm_wire::{Address, IpProto, PortRange};

use super::template::{Field, SAMPLING, iana};

/// What NAT has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatEvent {
    /// When, in cycles of the exporter's clock.
    pub at: u64,
    /// The zone, as `ingressVRFID`.
    pub zone: u16,
    /// What.
    pub what: NatEventKind,
}

/// Kinds of NAT events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatEventKind {
    /// A translated connection began.
    SessionBegan(NatSession),
    /// It ended.
    SessionEnded(NatSession),
    /// An address inside got a block of ports.
    BlockAssigned(NatBlock),
    /// It has it no longer.
    BlockReleased(NatBlock),
    /// No port was free for an address inside.
    PortsExhausted {
        /// The address.
        inside: Address,
        /// The protocol.
        protocol: IpProto,
    },
}

/// A translated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatSession {
    /// The protocol.
    pub protocol: IpProto,
    /// The source of packets as they arrive, and as they leave.
    pub source: [NatEnd; 2],
    /// The destination of packets as they arrive, and as they leave.
    pub destination: [NatEnd; 2],
}

/// An address, and its port or the identifier of an ICMP query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatEnd {
    /// The address.
    pub address: Address,
    /// The port.
    pub port: u16,
}

/// A block of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatBlock {
    /// The address inside.
    pub inside: Address,
    /// The IPv4 address that stands for it.
    pub outside: Address,
    /// The ports.
    pub ports: PortRange,
}

/// Which fields an event has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NatTemplate {
    Session44,
    Session64,
    Session66,
    Block4,
    Block6,
    Exhausted4,
    Exhausted6,
}

/// observationTimeMilliseconds, natEvent, ingressVRFID.
const COMMON: [Field; 3] = [iana(323, 8), iana(230, 1), iana(234, 4)];
/// sourceIPv4Address, sourceIPv6Address; the same after translation.
const SOURCE: [Field; 2] = [iana(8, 4), iana(27, 16)];
const NEW_SOURCE: [Field; 2] = [iana(225, 4), iana(281, 16)];
/// destinationIPv4Address, destinationIPv6Address; the same after translation.
const DESTINATION: [Field; 2] = [iana(12, 4), iana(28, 16)];
const NEW_DESTINATION: [Field; 2] = [iana(226, 4), iana(282, 16)];
/// protocolIdentifier; sourceTransportPort, postNAPTSourceTransportPort, destinationTransportPort,
/// postNAPTDestinationTransportPort.
const PROTOCOL: Field = iana(4, 1);
const PORTS: [Field; 4] = [iana(7, 2), iana(227, 2), iana(11, 2), iana(228, 2)];
/// portRangeStart, portRangeEnd, portRangeStepSize, portRangeNumPorts.
const RANGE: [Field; 4] = [iana(361, 2), iana(362, 2), iana(363, 2), iana(364, 2)];

impl NatTemplate {
    pub(super) const COUNT: usize = 7;

    /// From 0 to `COUNT - 1`.
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Template number, after those of flows.
    pub(super) const fn id(self) -> u16 {
        SAMPLING + 1 + self.index() as u16
    }

    pub(super) fn fields(self) -> Vec<Field> {
        let mut fields = COMMON.to_vec();
        let mut session = |inside: usize, outside: usize| {
            fields.extend([
                SOURCE[inside],
                NEW_SOURCE[outside],
                DESTINATION[inside],
                NEW_DESTINATION[outside],
            ]);
            fields.push(PROTOCOL);
            fields.extend(PORTS);
        };
        match self {
            Self::Session44 => session(0, 0),
            Self::Session64 => session(1, 0),
            Self::Session66 => session(1, 1),
            Self::Block4 | Self::Block6 => {
                fields.extend([SOURCE[usize::from(self == Self::Block6)], NEW_SOURCE[0]]);
                fields.extend(RANGE);
            }
            Self::Exhausted4 => fields.extend([SOURCE[0], PROTOCOL]),
            Self::Exhausted6 => fields.extend([SOURCE[1], PROTOCOL]),
        }
        fields
    }
}

impl NatEvent {
    pub(super) const fn template(&self) -> NatTemplate {
        match self.what {
            NatEventKind::SessionBegan(it) | NatEventKind::SessionEnded(it) => {
                match (it.source[0].address.is_v4(), it.source[1].address.is_v4()) {
                    (true, _) => NatTemplate::Session44,
                    (false, true) => NatTemplate::Session64,
                    (false, false) => NatTemplate::Session66,
                }
            }
            NatEventKind::BlockAssigned(it) | NatEventKind::BlockReleased(it) => match it.inside.is_v4() {
                true => NatTemplate::Block4,
                false => NatTemplate::Block6,
            },
            NatEventKind::PortsExhausted { inside, .. } => match inside.is_v4() {
                true => NatTemplate::Exhausted4,
                false => NatTemplate::Exhausted6,
            },
        }
    }

    /// The value of `natEvent` (RFC 8158 table 2).
    const fn number(&self) -> u8 {
        match (self.what, self.template()) {
            (NatEventKind::SessionBegan(_), NatTemplate::Session44) => 4,
            (NatEventKind::SessionEnded(_), NatTemplate::Session44) => 5,
            (NatEventKind::SessionBegan(_), NatTemplate::Session64) => 6,
            (NatEventKind::SessionEnded(_), NatTemplate::Session64) => 7,
            (NatEventKind::SessionBegan(_), _) => 1,
            (NatEventKind::SessionEnded(_), _) => 2,
            (NatEventKind::PortsExhausted { .. }, _) => 12,
            (NatEventKind::BlockAssigned(_), _) => 16,
            (NatEventKind::BlockReleased(_), _) => 17,
        }
    }

    /// Appends the data record, whose time is in Unix milliseconds.
    pub(super) fn write(&self, millis: u64, out: &mut Vec<u8>) {
        out.extend(millis.to_be_bytes());
        out.push(self.number());
        out.extend(u32::from(self.zone).to_be_bytes());
        match self.what {
            NatEventKind::SessionBegan(it) | NatEventKind::SessionEnded(it) => {
                let ends = [it.source, it.destination].as_flattened().to_vec();
                ends.iter().for_each(|end| put(end.address, out));
                out.push(it.protocol.0);
                ends.iter().for_each(|end| out.extend(end.port.to_be_bytes()));
            }
            NatEventKind::BlockAssigned(it) | NatEventKind::BlockReleased(it) => {
                put(it.inside, out);
                put(it.outside, out);
                let (first, last) = (it.ports.first(), it.ports.last());
                for number in [first, last, 1, (last - first).saturating_add(1)] {
                    out.extend(number.to_be_bytes());
                }
            }
            NatEventKind::PortsExhausted { inside, protocol } => {
                put(inside, out);
                out.push(protocol.0);
            }
        }
    }
}

/// Appends an address, by its family.
fn put(address: Address, out: &mut Vec<u8>) {
    match address.v4_bits() {
        Some(bits) => out.extend(bits.to_be_bytes()),
        None => out.extend(address.v6_bits().to_be_bytes()),
    }
}
