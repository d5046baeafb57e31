// SPDX-License-Identifier: Apache-2.0
//! Connections that leave one table and enter another: that of another worker, as they are, or one of another netvmd.

use std::sync::Arc;

use super::connections::{Connections, Refusal};
use crate::connection::{Connection, ConnectionId};
use crate::nat::Mappings;
use crate::protocol::ProxyPhase;
use crate::saved::SavedConnection;
use crate::syn_proxy::Proxied;

impl Connections {
    /// Gives a connection away, if it still lives.
    pub fn take(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.outside(id.slot, self.get(id)?);
        self.remove(id.slot);
        Some(connection)
    }

    /// Adds a connection of another table, whatever the quotas. Returns false if there is no room, or its ends are
    /// taken.
    pub fn adopt(&mut self, connection: &Connection) -> bool {
        self.insert(connection).is_ok()
    }

    /// The connections in `count` slots from `first` on that live at this tick, to be restored elsewhere.
    pub fn save(&self, first: u32, count: u32, now: u32) -> impl Iterator<Item = SavedConnection> + '_ {
        self.page(first, count, now)
            .map(move |(id, connection)| SavedConnection::new(&self.outside(id.slot, connection), now))
    }

    /// A connection as it is outside of the table, where it has no neighbours: there is room for what the SYN proxy
    /// knows of it.
    fn outside(&self, slot: u32, connection: &Connection) -> Connection {
        let is_proxied = connection.transport().proxy() != ProxyPhase::None;
        let Proxied { sequence: older, times: newer } =
            if is_proxied { self.proxied(slot) } else { Proxied::default() };
        Connection { older, newer, decided: [0; 2], ..*connection }
    }

    /// Adds a saved connection, with its mapping, whatever the rules and pools are now. Quotas hold, and a full table
    /// evicts as for a new connection. There is no event.
    ///
    /// # Errors
    /// [`Refusal`]; the connection is not added then.
    pub fn restore(&mut self, saved: &SavedConnection, now: u32) -> Result<ConnectionId, Refusal> {
        self.now = now;
        let connection = saved.at(now);
        if connection.tuples().iter().any(|tuple| self.has(tuple)) {
            return Err(Refusal::NoPort);
        }
        self.make_room(&connection, now)?;
        self.insert(&connection).map(|slot| self.id(slot))
    }

    /// Adds a connection, with its mapping.
    pub(super) fn insert(&mut self, connection: &Connection) -> Result<u32, Refusal> {
        if !connection.mapped.is_any() {
            return self.insert_with(connection, None);
        }
        let shared = Arc::clone(&self.shared);
        self.insert_with(connection, shared.mappings().as_deref_mut())
    }

    /// The same with these mappings, among which its own may have to be.
    pub(super) fn insert_with(
        &mut self,
        connection: &Connection,
        mappings: Option<&mut Mappings>,
    ) -> Result<u32, Refusal> {
        if self.slots.is_full() {
            return Err(Refusal::Full);
        }
        let is_taken = connection.tuples().iter().any(|tuple| self.has(tuple));
        if is_taken || !self.claim(connection) {
            return Err(Refusal::NoPort);
        }
        if !self.add_mappings(connection, mappings) {
            self.disclaim(connection);
            return Err(Refusal::NoPort);
        }
        let slot = self.add(connection);
        self.follow_stage(slot);
        self.set_proxied(slot, Proxied { sequence: connection.older, times: connection.newer });
        Ok(slot)
    }
}
