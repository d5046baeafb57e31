//! Connections that another worker owns from now on: they leave one table and enter another as they are.

use super::connections::Connections;
use crate::connection::{Connection, ConnectionId};

impl Connections {
    /// Gives a connection away, if it still lives.
    pub fn take(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = *self.get(id)?;
        self.remove(id.slot);
        Some(connection)
    }

    /// Adds a connection of another table. Returns false if there is no room, or its ends are taken.
    pub fn adopt(&mut self, connection: &Connection) -> bool {
        if self.slots.is_full() || connection.tuples.iter().any(|tuple| self.has(tuple)) {
            return false;
        }
        if !self.add_mapping(connection) {
            return false;
        }
        let slot = self.add(connection);
        self.slots.follow_assurance(slot);
        true
    }
}
