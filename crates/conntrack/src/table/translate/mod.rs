// SPDX-License-Identifier: Apache-2.0
//! [`Connections::confirm_translated`]: begins connections that are translated.

mod ports;

use std::sync::{Arc, MutexGuard};

use netvm_wire::{Address, FlowHasher};

use self::ports::Chosen;
pub(super) use self::ports::Wanted;
use crate::Packet;
use crate::connection::{Connection, ConnectionId, Origin, Status};
use crate::events::Happened;
use crate::mapped::{Filtering, Mapped};
use crate::nat::{
    Contact, ContactTable, End, Ends, Inside, Mappings, Pool, Reserved, Target, Translation,
    can_be_translated, has_free_ports,
};
use crate::packet::tuple::Tuple;
use crate::table::confirm::Begins;
use crate::table::connections::{Connections, Refusal};

/// Among what a source is chosen.
#[derive(Clone, Copy)]
pub(super) struct Choose<'a> {
    pub(super) pools: &'a [Pool],
    /// All mappings there are.
    pub(super) mappings: Option<&'a Mappings>,
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
        let translate = |table: &Self, new: &mut Connection, mappings: Option<&Mappings>| {
            table.translate(new, translation, mappings)
        };
        self.confirm_with(Begins { packet, origin, now }, Some(translate))
    }

    /// A number that is the same for all connections of a source, also after a restart with the same key.
    #[must_use]
    pub fn hash_of_source(&self, source: Address) -> u64 {
        let [a, b] = source.words();
        self.stable.words([a, b, 0, 4, 0])
    }

    /// The ends that pools do not give away from now on. A mapping that has one of them keeps it.
    pub fn reserve(&mut self, reserved: &Arc<Reserved>) {
        if !Arc::ptr_eq(&self.reserved, reserved) {
            self.reserved = Arc::clone(reserved);
        }
    }

    /// Decides what stands for the source of a connection that has begun, as soon as it is known where its packets
    /// leave: an end of these pools, or without any the source itself. Later calls change nothing.
    ///
    /// # Errors
    /// [`Refusal`]; the connection is as it was.
    pub fn settle_source(&mut self, id: ConnectionId, sources: &[Pool]) -> Result<(), Refusal> {
        let Some(connection) = self.get(id).filter(|it| !it.is_settled()).copied() else { return Ok(()) };
        let [original, before] = connection.tuples();
        // With other ends, rules may decide otherwise.
        let mut new = Connection { decided: [0; 2], ..connection };
        new.status |= Status::SETTLED;
        let shared = Arc::clone(&self.shared);
        let mut mappings = if sources.is_empty() { None } else { shared.mappings() };
        if !sources.is_empty() {
            if !can_be_translated(original.protocol) {
                return Err(Refusal::NotTranslatable);
            }
            let wanted = Wanted { original, forward: before.reversed(), current: Some(before) };
            self.choose_for(&mut new, &wanted, Choose { pools: sources, mappings: mappings.as_deref() })?;
        }
        let is_moved = *new.reply() != before;
        if is_moved && (self.has(new.reply()) || !self.claim_moved(&connection, &new)) {
            return Err(Refusal::NoPort);
        }
        if !self.add_source_mapping(&new, mappings.as_deref_mut()) {
            self.claim_moved(&new, &connection);
            return Err(Refusal::NoPort);
        }
        if is_moved {
            let number = id.slot << 1 | 1;
            self.index.remove(before.hash(&self.hasher), number);
            self.index.insert(new.reply().hash(&self.hasher), number);
        }
        *self.slots.get_mut(id.slot) = new;
        if is_moved {
            self.note(id.slot, Happened::SourceTranslated);
        }
        Ok(())
    }

    /// Where packets lead that begin connections, by the mappings of others. For one burst: other workers that begin or
    /// end translated connections wait until it is dropped.
    #[must_use]
    pub fn targets(&self) -> Targets<'_> {
        Targets { mappings: self.shared.mappings(), hasher: &self.hasher }
    }

    /// See [`Shared::filter_by_address`](crate::Shared::filter_by_address).
    pub fn filter_by_address(&self, contacts: ContactTable) {
        self.shared.filter_by_address(contacts);
    }

    /// Chooses the reply tuple of a connection that is about to begin.
    fn translate(
        &self,
        new: &mut Connection,
        translation: Translation<'_>,
        mappings: Option<&Mappings>,
    ) -> Result<(), Refusal> {
        let original = *new.original();
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
            new.set_reply(forward.reversed());
            if let Some(kind) = mappings.and_then(|mappings| self.mapping_of(mappings, &target_ends(new))) {
                new.mapped = new.mapped.with_target(kind);
            }
        }
        if !translation.sources.is_empty() {
            let pools = translation.sources;
            self.choose_for(new, &Wanted { original, forward, current: None }, Choose { pools, mappings })?;
        }
        new.status.set(Status::SETTLED, !translation.sources.is_empty());
        Ok(())
    }

    /// Chooses the translated source of a connection, and sets its reply tuple and the kind of its mapping.
    pub(super) fn choose_for(
        &self,
        new: &mut Connection,
        wanted: &Wanted,
        among: Choose<'_>,
    ) -> Result<(), Refusal> {
        let Choose { pools, mappings } = among;
        let mappings = mappings.ok_or(Refusal::NoPort)?;
        let Chosen { forward, block_size, filtering } = self.choose_source(wanted, pools, mappings)?;
        new.set_reply(forward.reversed());
        if wanted.original.has_port() {
            new.mapped = new.mapped.with_source(block_size, filtering);
        }
        Ok(())
    }

    /// The kind of the mapping with these ends.
    pub(super) fn mapping_of(&self, mappings: &Mappings, ends: &Ends) -> Option<Mapped> {
        let outside = Inside { end: ends.outside, ..ends.inside };
        let (end, kind) = mappings.inside_of(&self.hasher, &outside)?;
        (end == ends.inside.end).then_some(kind)
    }

    /// Notes the mappings of a connection that begins. Returns false if there is no room for them.
    pub(super) fn add_mappings(&self, connection: &Connection, to: Option<&mut Mappings>) -> bool {
        let Some(mappings) = to else { return !connection.mapped.is_any() };
        if !self.add_source_mapping(connection, Some(mappings)) {
            return false;
        }
        let has_target = connection.mapped.has_target();
        if has_target && !mappings.add(&self.hasher, &target_ends(connection), connection.mapped) {
            self.remove_source_mapping(connection, mappings);
            return false;
        }
        true
    }

    fn add_source_mapping(&self, connection: &Connection, to: Option<&mut Mappings>) -> bool {
        if !connection.mapped.has_source() {
            return true;
        }
        let Some(mappings) = to else { return false };
        let is_added = mappings.add(&self.hasher, &source_ends(connection), connection.mapped);
        if is_added && let Some(contact) = contact_of(connection) {
            mappings.add_contact(&self.hasher, &contact);
        }
        is_added
    }

    /// Undoes [`Connections::add_mappings`].
    pub(super) fn remove_mappings(&self, connection: &Connection) {
        let mapped = connection.mapped;
        let Some(mut mappings) = (if mapped.is_any() { self.shared.mappings() } else { None }) else {
            return;
        };
        self.remove_source_mapping(connection, &mut mappings);
        if mapped.has_target() {
            mappings.remove(&self.hasher, &target_ends(connection));
        }
    }

    fn remove_source_mapping(&self, connection: &Connection, from: &mut Mappings) {
        if connection.mapped.has_source() {
            from.remove(&self.hasher, &source_ends(connection));
            if let Some(contact) = contact_of(connection) {
                from.remove_contact(&self.hasher, &contact);
            }
        }
    }
}

/// See [`Connections::targets`].
pub struct Targets<'a> {
    mappings: Option<MutexGuard<'a, Mappings>>,
    hasher: &'a FlowHasher,
}

impl Targets<'_> {
    /// Where a packet leads that begins a connection: to the end inside that its destination stands for, by the mapping
    /// of another connection. So packets from outside reach ends whose pool lets them in (RFC 4787 section 5), and
    /// those `from_inside` reach all (REQ-9). Begin the connection with this destination.
    #[must_use]
    pub fn of(&self, packet: &Packet<'_>, from_inside: bool) -> Option<Target> {
        let key = packet.key;
        let end = End { address: key.destination, port: key.destination_port };
        let outside = Inside { end, protocol: key.protocol, zone: packet.zone };
        let mappings = self.mappings.as_ref()?;
        let (inside, kind) = mappings.inside_of(self.hasher, &outside)?;
        let contact = Contact { outside, remote: key.source };
        let is_allowed = from_inside || mappings.lets_in(self.hasher, kind, &contact);
        is_allowed.then_some(Target { address: inside.address, port: Some(inside.port) })
    }
}

/// The end inside that a source is, and the protocol of its packets outside: NAT64 has others for ICMP.
const fn inside(original: &Tuple, outside: &Tuple) -> Inside {
    let end = End { address: original.source, port: original.source_port };
    Inside { end, protocol: outside.protocol, zone: original.zone }
}

/// The mapping of the source of a connection.
const fn source_ends(connection: &Connection) -> Ends {
    let (original, reply) = (connection.original(), connection.reply());
    let outside = End { address: reply.destination, port: reply.destination_port };
    Ends { inside: inside(original, reply), outside }
}

/// Whom the end inside of a connection has sent to, if its pool filters by that.
fn contact_of(connection: &Connection) -> Option<Contact> {
    let Ends { inside, outside } = source_ends(connection);
    let contact = Contact { outside: Inside { end: outside, ..inside }, remote: connection.reply().source };
    (connection.mapped.filtering() == Filtering::AddressDependent).then_some(contact)
}

/// The mapping by which a connection leads to its target.
pub(super) const fn target_ends(connection: &Connection) -> Ends {
    let (original, reply) = (connection.original(), connection.reply());
    let outside = End { address: original.destination, port: original.destination_port };
    Ends { inside: inside(reply, original), outside }
}

fn same_family(address: Address, like: Address) -> Result<Address, Refusal> {
    if address.is_v4() == like.is_v4() { Ok(address) } else { Err(Refusal::NotTranslatable) }
}
