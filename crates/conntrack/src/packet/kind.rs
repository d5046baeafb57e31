// SPDX-License-Identifier: Apache-2.0
//! [`Kind`]: what a packet is to tracking.

use netvm_wire::{ConnState, FlowHasher, Fragment, IpProto};

use crate::Packet;
use crate::packet::fragments::{FragmentOf, Fragments};
use crate::packet::headers::{Embedded, Message, embedded, identifier, layers, message};
use crate::packet::tuple::{Ports, Tuple};

/// What a packet is to the connection with a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// It belongs to it.
    Of,
    /// It is a later fragment of it, with the ports of the first.
    LaterOf,
    /// It is an ICMP error about a packet of the other direction.
    About,
    /// There is no tuple.
    None,
}

/// What a packet is to tracking.
pub(crate) struct Kind {
    pub(crate) relation: Relation,
    /// Without a tuple: the state.
    pub(crate) state: ConnState,
    pub(crate) hash: u32,
    pub(crate) tuple: Tuple,
    /// As [`Embedded::number`], of the packet that an error is about.
    pub(crate) number: Option<u32>,
}

impl Kind {
    pub(crate) const UNTRACKED: Self = Self {
        relation: Relation::None,
        state: ConnState::Untracked,
        hash: 0,
        tuple: Tuple::NONE,
        number: None,
    };
    const INVALID: Self = Self { state: ConnState::Invalid, ..Self::UNTRACKED };

    fn new(relation: Relation, tuple: Tuple, hasher: &FlowHasher) -> Self {
        Self { relation, state: ConnState::New, hash: tuple.hash(hasher), tuple, number: None }
    }

    /// What a packet is. Notes the ports of first fragments, and finds those of later ones.
    pub(crate) fn of(packet: &Packet<'_>, fragments: &mut Fragments, hasher: &FlowHasher, now: u32) -> Self {
        let (key, zone) = (packet.key, packet.zone);
        if !key.is_ip() {
            return Self::UNTRACKED;
        }
        if key.fragment == Fragment::Later {
            let ports = FragmentOf::of(packet).and_then(|of| fragments.ports(hasher, &of, now));
            let with = |ports| Self::new(Relation::LaterOf, Tuple::of(key, ports, zone), hasher);
            return ports.map_or(Self::INVALID, with);
        }
        let ports = match key.protocol {
            IpProto::ICMP | IpProto::ICMPV6 => {
                match (message(key.protocol, key.icmp_type), identifier(packet)) {
                    (Message::Query(query), Some(identifier)) => Ports { numbers: [identifier; 2], query },
                    (Message::Error, _) => return Self::of_error(packet, hasher),
                    (Message::OfLink, _) => return Self::UNTRACKED,
                    _ => return Self::INVALID,
                }
            }
            _ => Ports { numbers: [key.source_port, key.destination_port], query: 0 },
        };
        if let Some(of) = FragmentOf::of_first(packet) {
            fragments.note(hasher, of, ports, now);
        }
        Self::new(Relation::Of, Tuple::of(key, ports, zone), hasher)
    }

    /// An error goes to the sender of the packet that it is about, and so in the other direction.
    fn of_error(packet: &Packet<'_>, hasher: &FlowHasher) -> Self {
        let about = about(packet).filter(|it| it.key.source == packet.key.destination);
        about.map_or(Self::INVALID, |it| {
            let other = Tuple::of(&it.key, it.ports, packet.zone).reversed();
            Self { number: it.number, ..Self::new(Relation::About, other, hasher) }
        })
    }
}

/// The packet that an ICMP error is about.
fn about(error: &Packet<'_>) -> Option<Embedded> {
    embedded(error.front, &layers(error.front, error.length)?)
}
