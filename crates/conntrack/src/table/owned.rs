// SPDX-License-Identifier: Apache-2.0
//! Which worker has a connection: the one that owns its original direction, by the hash, or that has begun it. If a
//! direction has the hash of another worker, or may be that of another one's connection, all workers know it as an
//! exception.

use std::sync::Arc;

use super::connections::Connections;
use crate::Packet;
use crate::connection::{Connection, ConnectionId};
use crate::packet::kind::Relation;
use crate::packet::tuple::Tuple;
use crate::workers::{FlowOwners, Hash};

impl Connections {
    /// The owners from now on. If connections have begun, give them to their owners, and [`Connections::claim_again`]
    /// those that stay.
    pub fn set_owners(&mut self, owners: &Arc<FlowOwners>) {
        if !Arc::ptr_eq(&self.owners, owners) {
            self.owners = Arc::clone(owners);
        }
    }

    /// The worker that has the connection of a packet that this one has received, or is to have it. `None`: no worker
    /// can know it, because it is not IP, belongs to no connection, or is a later fragment whose first one this worker
    /// has not received.
    pub fn owner_of(&mut self, packet: &Packet<'_>, now: u32) -> Option<u8> {
        let kind = self.kind(packet, now);
        if kind.relation == Relation::None {
            return None;
        }
        let exceptions = self.shared.exceptions_if_any();
        let exception = exceptions.and_then(|all| all.owner(kind.tuple.symmetric_hash(&self.hasher)));
        exception.or_else(|| Some(self.owners.of(Hash::of(&kind.tuple).value())))
    }

    /// Lets all workers know again where a connection is that stays, while others get other owners.
    pub fn claim_again(&self, id: ConnectionId) {
        let Some(connection) = self.get(id).copied() else { return };
        self.disclaim(&connection);
        // As many as before, at most.
        let _ = self.claim(&connection);
    }

    /// Lets all workers know that this one has a connection. Returns false if there is no room.
    pub(super) fn claim(&self, connection: &Connection) -> bool {
        if self.owners.is_one() || self.claim_original(connection) && self.claim_answers(connection) {
            return true;
        }
        self.disclaim(connection);
        false
    }

    /// The same for a connection whose answers have another tuple from now on. If there is no room, nothing changes.
    pub(super) fn claim_moved(&self, before: &Connection, new: &Connection) -> bool {
        if self.owners.is_one() {
            return true;
        }
        let is_claimed = self.claim_answers(new);
        if is_claimed && *before.reply() != new.original().reversed() {
            self.disclaim_tuple(before.reply());
        }
        is_claimed
    }

    fn claim_original(&self, connection: &Connection) -> bool {
        let original = connection.original();
        self.owners.of(Hash::of(original).value()) == self.worker || self.add_exception(original)
    }

    /// Those of a translated connection could be another one's with another worker, unless a mapping says whose they
    /// are.
    fn claim_answers(&self, connection: &Connection) -> bool {
        let (original, reply) = (connection.original(), connection.reply());
        let is_mapped =
            connection.mapped.has_source() && (connection.is_nat64() || !connection.has_other_destination());
        *reply == original.reversed()
            || is_mapped && self.owners.of(Hash::of(reply).value()) == self.worker
            || self.add_exception(reply)
    }

    fn add_exception(&self, tuple: &Tuple) -> bool {
        self.shared.add_exception(tuple.symmetric_hash(&self.hasher), self.worker)
    }

    /// Undoes [`Connections::claim`].
    pub(super) fn disclaim(&self, connection: &Connection) {
        connection.tuples().iter().for_each(|tuple| self.disclaim_tuple(tuple));
    }

    fn disclaim_tuple(&self, tuple: &Tuple) {
        if let Some(exceptions) = self.shared.exceptions_if_any() {
            exceptions.remove(tuple.symmetric_hash(&self.hasher), self.worker);
        }
    }
}

impl Connection {
    /// The worker that owns it, by the hash of its original direction.
    #[must_use]
    pub const fn owner(&self, owners: &FlowOwners) -> u8 {
        owners.of(Hash::of(&self.original).value())
    }
}
