//! [`Connections::confirm_translated`]: begins connections that are translated.

mod ports;

use netvm_wire::Address;

use self::ports::Chosen;
pub(super) use self::ports::Wanted;
use crate::Packet;
use crate::connection::{Connection, ConnectionId, Origin};
use crate::events::Happened;
use crate::mapped::{Filtering, Mapped};
use crate::nat::{End, Ends, Inside, Pool, Target, Translation, can_be_translated, has_free_ports};
use crate::packet::tuple::Tuple;
use crate::table::connections::{Connections, Refusal};

impl Connections {
    /// Like [`Connections::confirm`], for a connection that is translated from its first packet on.
    ///
    /// # Errors
    /// [`Refusal`]; no connection has begun then.
    pub fn confirm_translated(
        &mut self,
        packet: &Packet<'_>,
        origin: Origin,
        now: u32,
        translation: Translation<'_>,
    ) -> Result<ConnectionId, Refusal> {
        self.confirm_with(packet, origin, now, |table, new| table.translate(new, translation))
    }

    /// A number that is the same for all connections of a source, also after a restart with the same key.
    #[must_use]
    pub fn hash_of_source(&self, source: Address) -> u64 {
        let [a, b] = source.words();
        self.stable.words([a, b, 0, 4, 0])
    }

    /// Decides what stands for the source of a connection that has begun, as soon as it is known where its packets
    /// leave: an end of these pools, or without any the source itself. Later calls change nothing.
    ///
    /// # Errors
    /// [`Refusal`]; the connection is as it was.
    pub fn settle_source(&mut self, id: ConnectionId, sources: &[Pool]) -> Result<(), Refusal> {
        let Some(connection) = self.get(id).filter(|it| !it.is_settled).copied() else { return Ok(()) };
        let [original, before] = connection.tuples;
        let mut new = Connection { is_settled: true, ..connection };
        if !sources.is_empty() {
            if !can_be_translated(original.protocol) {
                return Err(Refusal::NotTranslatable);
            }
            let wanted = Wanted { original, forward: before.reversed(), current: Some(before) };
            self.choose_for(&mut new, &wanted, sources)?;
            new.is_translated = new.tuples[1] != original.reversed();
        }
        let is_moved = new.tuples[1] != before;
        if is_moved && self.has(&new.tuples[1]) || !self.add_source_mapping(&new) {
            return Err(Refusal::NoPort);
        }
        if is_moved {
            let number = id.slot << 1 | 1;
            self.index.remove(before.hash(&self.hasher), number);
            self.index.insert(new.tuples[1].hash(&self.hasher), number);
        }
        *self.slots.get_mut(id.slot) = new;
        if is_moved {
            self.note(id.slot, Happened::SourceTranslated);
        }
        Ok(())
    }

    /// Where a packet leads that begins a connection: to the end inside that its destination stands for, by the mapping
    /// of another connection. So packets from outside reach ends whose pool filters independently of the other end (RFC
    /// 4787 section 5), and those `from_inside` reach all (REQ-9). Begin the connection with this destination.
    #[must_use]
    pub fn target_of(&self, packet: &Packet<'_>, from_inside: bool) -> Option<Target> {
        let key = packet.key;
        let end = End { address: key.destination, port: key.destination_port };
        let outside = Inside { end, protocol: key.protocol, zone: packet.zone };
        let (inside, kind) = self.mappings.as_ref()?.inside_of(&self.hasher, &outside)?;
        let is_allowed = from_inside || kind.filtering() == Filtering::EndpointIndependent;
        is_allowed.then_some(Target { address: inside.address, port: Some(inside.port) })
    }

    /// Chooses the reply tuple of a connection that is about to begin.
    fn translate(&self, new: &mut Connection, translation: Translation<'_>) -> Result<(), Refusal> {
        let [original, _] = new.tuples;
        if !can_be_translated(original.protocol) {
            return Err(Refusal::NotTranslatable);
        }
        let mut forward = original;
        if let Some(target) = translation.destination {
            forward.destination = same_family(target.address, original.source)?;
            let port = target.port.filter(|_| original.query == 0).unwrap_or(forward.destination_port);
            if port != forward.destination_port && !has_free_ports(original.protocol) {
                return Err(Refusal::NotTranslatable);
            }
            forward.destination_port = port;
            new.tuples[1] = forward.reversed();
            if let Some(kind) = self.mapping_of(&target_ends(new)) {
                new.mapped = new.mapped.with_target(kind);
            }
        }
        if !translation.sources.is_empty() {
            self.choose_for(new, &Wanted { original, forward, current: None }, translation.sources)?;
        }
        new.is_translated = new.tuples[1] != original.reversed();
        new.is_settled = !translation.sources.is_empty();
        Ok(())
    }

    /// Chooses the translated source of a connection, and sets its reply tuple and the kind of its mapping.
    pub(super) fn choose_for(
        &self,
        new: &mut Connection,
        wanted: &Wanted,
        pools: &[Pool],
    ) -> Result<(), Refusal> {
        let Chosen { forward, block_size, filtering } = self.choose_source(wanted, pools)?;
        new.tuples[1] = forward.reversed();
        if wanted.original.has_port() {
            new.mapped = new.mapped.with_source(block_size, filtering);
        }
        Ok(())
    }

    /// The kind of the mapping with these ends.
    pub(super) fn mapping_of(&self, ends: &Ends) -> Option<Mapped> {
        let outside = Inside { end: ends.outside, ..ends.inside };
        let (end, kind) = self.mappings.as_ref()?.inside_of(&self.hasher, &outside)?;
        (end == ends.inside.end).then_some(kind)
    }

    /// Notes the mappings of a connection that begins. Returns false if there is no room for them.
    pub(super) fn add_mappings(&mut self, connection: &Connection) -> bool {
        if !self.add_source_mapping(connection) {
            return false;
        }
        if connection.mapped.has_target() && !self.add_ends(&target_ends(connection), connection) {
            self.remove_source_mapping(connection);
            return false;
        }
        true
    }

    fn add_source_mapping(&mut self, connection: &Connection) -> bool {
        !connection.mapped.has_source() || self.add_ends(&source_ends(connection), connection)
    }

    fn add_ends(&mut self, ends: &Ends, connection: &Connection) -> bool {
        let Self { mappings, hasher, .. } = self;
        mappings.as_mut().is_some_and(|mappings| mappings.add(hasher, ends, connection.mapped))
    }

    /// Undoes [`Connections::add_mappings`].
    pub(super) fn remove_mappings(&mut self, connection: &Connection) {
        self.remove_source_mapping(connection);
        if connection.mapped.has_target() {
            self.remove_ends(&target_ends(connection));
        }
    }

    fn remove_source_mapping(&mut self, connection: &Connection) {
        if connection.mapped.has_source() {
            self.remove_ends(&source_ends(connection));
        }
    }

    fn remove_ends(&mut self, ends: &Ends) {
        if let Some(mappings) = &mut self.mappings {
            mappings.remove(&self.hasher, ends);
        }
    }
}

/// The end inside that a source is, and the protocol of its packets outside: NAT64 has others for ICMP.
const fn inside(original: &Tuple, outside: &Tuple) -> Inside {
    let end = End { address: original.source, port: original.source_port };
    Inside { end, protocol: outside.protocol, zone: original.zone }
}

/// The mapping of the source of a connection.
const fn source_ends(connection: &Connection) -> Ends {
    let [original, reply] = &connection.tuples;
    let outside = End { address: reply.destination, port: reply.destination_port };
    Ends { inside: inside(original, reply), outside }
}

/// The mapping by which a connection leads to its target.
pub(super) const fn target_ends(connection: &Connection) -> Ends {
    let [original, reply] = &connection.tuples;
    let outside = End { address: original.destination, port: original.destination_port };
    Ends { inside: inside(reply, original), outside }
}

fn same_family(address: Address, like: Address) -> Result<Address, Refusal> {
    if address.is_v4() == like.is_v4() { Ok(address) } else { Err(Refusal::NotTranslatable) }
}
