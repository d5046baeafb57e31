// SPDX-License-Identifier: Apache-2.0
//! What NAT makes of packets, for traces and records of flows.

use netvm_conntrack::{Half, Tuple, Zone};
use netvm_flowmon::{Endpoints, Record};
use netvm_wire::{FiveTuple, FlowKey, VlanId};

use super::WorkerConnections;
use crate::ids::PortId;
use crate::memory::mark::OfConnection;
use crate::nat::Nat;
use crate::worker::trace::{NatEnd, Translated};

/// A packet of a connection at a port: where its destination is translated, or its source.
#[derive(Clone, Copy)]
pub(crate) struct Passage {
    pub(crate) half: Half,
    pub(crate) port: PortId,
    pub(crate) of: OfConnection,
    pub(crate) vlan: Option<VlanId>,
}

impl WorkerConnections {
    /// Adds to the record of a flow of this zone what its packets become.
    pub(crate) fn complete(&self, record: &mut Record, zone: Zone) {
        let Endpoints::Ip(ends) = record.endpoints() else { return };
        let key = FlowKey {
            source: ends.source,
            destination: ends.destination,
            source_port: ends.source_port,
            destination_port: ends.destination_port,
            protocol: ends.protocol,
            ..FlowKey::EMPTY
        };
        let Some((connection, is_reply)) = self.table.with_ends(&key, zone) else { return };
        let there = if is_reply { connection.original() } else { connection.reply() };
        let becomes = FiveTuple {
            source: there.destination,
            destination: there.source,
            source_port: there.destination_port,
            destination_port: there.source_port,
            protocol: there.protocol,
        };
        record.translated = Some(becomes).filter(|becomes| *becomes != ends);
    }

    /// What becomes of a packet there; `None`: nothing.
    pub(crate) fn translated(&self, nat: &Nat, at: Passage) -> Option<Translated> {
        let Passage { half, port, of, vlan } = at;
        let connection = self.table.get(self.table.noted(of.connection)?)?;
        let (original, reply) = (connection.original(), connection.reply());
        let (here, there) = if of.is_reply { (reply, original) } else { (original, reply) };
        let [before, after] = [ends_of(here), ends_of(&there.reversed())];
        if connection.is_nat64() {
            return Some(Translated { before, after, is_nat64: true, rule: None });
        }
        let (before, after) = match half {
            Half::Destination => (before, [before[0], after[1]]),
            Half::Source => ([before[0], after[1]], after),
        };
        if before == after {
            return None;
        }
        let rule = match (half, of.is_reply) {
            (Half::Source, false) | (Half::Destination, true) => nat.source_rule(port, connection, vlan),
            (Half::Destination, false) | (Half::Source, true) => nat.destination_rule(connection, vlan),
        };
        Some(Translated { before, after, is_nat64: false, rule })
    }
}

/// Source and destination.
const fn ends_of(tuple: &Tuple) -> [NatEnd; 2] {
    [
        NatEnd { address: tuple.source, port: tuple.source_port },
        NatEnd { address: tuple.destination, port: tuple.destination_port },
    ]
}
