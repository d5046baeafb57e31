//! [`Connections::confirm_translated`]: begins connections that are translated.

use netvm_wire::{Address, FlowHasher, PortRange};

use super::connections::{Connections, Refusal};
use crate::Packet;
use crate::connection::{Connection, ConnectionId, Origin};
use crate::events::Happened;
use crate::nat::{End, Inside, Pool, Target, Translation, address_of, can_be_translated, has_free_ports};
use crate::packet::tuple::Tuple;

/// Ports that are tried for a mapping, at most, as in Linux.
const ATTEMPTS: u32 = 128;

/// A connection whose source is to be chosen.
#[derive(Clone, Copy)]
struct Wanted {
    original: Tuple,
    /// Its packets, with the destination that they leave with.
    forward: Tuple,
    /// The reply tuple that it has in the table.
    current: Option<Tuple>,
}

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
        self.confirm_with(packet, origin, now, Some(translation))
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
            new.is_mapped = original.protocol.has_ports() || original.query != 0;
            new.tuples[1] = self.choose_source(&wanted, sources)?.reversed();
            new.is_translated = new.tuples[1] != original.reversed();
        }
        let is_moved = new.tuples[1] != before;
        if is_moved && self.has(&new.tuples[1]) || !self.add_mapping(&new) {
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

    /// The end inside that the destination of a packet stands for, by the mapping of another connection: where a packet
    /// leads if the translation filters independently of the other end (RFC 4787 section 5), or if its sender is
    /// inside, too (REQ-9).
    #[must_use]
    pub fn target_of(&self, packet: &Packet<'_>) -> Option<Target> {
        let key = packet.key;
        let end = End { address: key.destination, port: key.destination_port };
        let outside = Inside { end, protocol: key.protocol, zone: packet.zone };
        let inside = self.mappings.as_ref()?.inside_of(&self.hasher, &outside)?;
        Some(Target { address: inside.address, port: Some(inside.port) })
    }

    /// Chooses the reply tuple of a connection that is about to begin.
    pub(super) fn translate(
        &self,
        new: &mut Connection,
        translation: Translation<'_>,
    ) -> Result<(), Refusal> {
        let [original, _] = new.tuples;
        if !can_be_translated(original.protocol) {
            return Err(Refusal::NotTranslatable);
        }
        let mut forward = original;
        if let Some(target) = translation.destination {
            forward.destination = same_family(target.address, &original)?;
            let port = target.port.filter(|_| original.query == 0).unwrap_or(forward.destination_port);
            if port != forward.destination_port && !has_free_ports(original.protocol) {
                return Err(Refusal::NotTranslatable);
            }
            forward.destination_port = port;
        }
        if !translation.sources.is_empty() {
            new.is_mapped = original.protocol.has_ports() || original.query != 0;
            forward =
                self.choose_source(&Wanted { original, forward, current: None }, translation.sources)?;
        }
        new.tuples[1] = forward.reversed();
        new.is_translated = new.tuples[1] != original.reversed();
        new.is_settled = !translation.sources.is_empty();
        Ok(())
    }

    /// Chooses the source that stands for that of the original tuple. Returns the tuple of packets with it.
    fn choose_source(&self, wanted: &Wanted, pools: &[Pool]) -> Result<Tuple, Refusal> {
        let original = &wanted.original;
        let inside = inside(original);
        let (address, ports) = address_of(pools, paired(&self.stable, &inside)).ok_or(Refusal::NoPort)?;
        let source = same_family(address, original)?;
        let forward = Tuple { source, ..wanted.forward };
        if !original.protocol.has_ports() && original.query == 0 {
            return Ok(forward);
        }
        let mappings = self.mappings.as_ref().ok_or(Refusal::NoPort)?;
        let port = match mappings.port_of(&self.hasher, &inside, address) {
            Some(port) => port,
            None => self.choose_port(&Wanted { forward, ..*wanted }, ports).ok_or(Refusal::NoPort)?,
        };
        Ok(forward.with_source_port(port))
    }

    /// A port for a mapping: the same one, or the first that is free from one on which a keyed hash says.
    fn choose_port(&self, wanted: &Wanted, ports: PortRange) -> Option<u16> {
        let (inside, mappings) = (inside(&wanted.original), self.mappings.as_ref()?);
        let is_free = |port: u16| {
            let end = End { address: wanted.forward.source, port };
            let reply = wanted.forward.with_source_port(port).reversed();
            mappings.is_free_for(&self.hasher, &inside, end)
                && (wanted.current == Some(reply) || !self.has(&reply))
        };
        if ports.contains(inside.end.port) && is_free(inside.end.port) {
            return Some(inside.end.port);
        }
        let count = u32::from(ports.last() - ports.first()) + 1;
        let [a, b] = inside.end.address.words();
        let rest =
            u64::from(inside.end.port) | u64::from(inside.protocol.0) << 16 | u64::from(inside.zone.0) << 24;
        let start = (self.stable.words([a, b, rest, 2, 0]) >> 32) as u32 % count;
        let candidate = |n: u32| ports.first() + ((start + n) % count) as u16;
        let mut candidates = (0..count.min(ATTEMPTS)).map(candidate);
        candidates.find(|port| has_free_ports(inside.protocol) && is_free(*port))
    }

    /// Notes the mapping of a connection that begins. Returns false if there is no room for it.
    pub(super) fn add_mapping(&mut self, connection: &Connection) -> bool {
        if !connection.is_mapped {
            return true;
        }
        let (inside, outside) = (inside(&connection.tuples[0]), outside(connection));
        self.mappings.as_mut().is_some_and(|mappings| mappings.add(&self.hasher, &inside, outside))
    }

    /// Undoes [`Connections::add_mapping`].
    pub(super) fn remove_mapping(&mut self, connection: &Connection) {
        if connection.is_mapped
            && let Some(mappings) = &mut self.mappings
        {
            mappings.remove(&self.hasher, &inside(&connection.tuples[0]), outside(connection));
        }
    }
}

const fn inside(original: &Tuple) -> Inside {
    let end = End { address: original.source, port: original.source_port };
    Inside { end, protocol: original.protocol, zone: original.zone }
}

const fn outside(connection: &Connection) -> End {
    let reply = &connection.tuples[1];
    End { address: reply.destination, port: reply.destination_port }
}

/// A number that is the same for all connections of an address.
fn paired(hasher: &FlowHasher, inside: &Inside) -> u64 {
    let [a, b] = inside.end.address.words();
    hasher.words([a, b, inside.zone.0.into(), 3, 0])
}

fn same_family(address: Address, like: &Tuple) -> Result<Address, Refusal> {
    if address.is_v4() == like.source.is_v4() { Ok(address) } else { Err(Refusal::NotTranslatable) }
}
