//! Connections that another worker owns from now on: they leave one table and enter another as they are.

use crate::connection::{Connection, ConnectionId};
use crate::table::Connections;

impl Connections {
    /// Gives a connection away, if it still lives.
    pub fn take(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = *self.get(id)?;
        self.remove(id.slot);
        Some(connection)
    }

    /// Adds a connection of another table. Returns false if there is no room, or a connection between the same ends.
    pub fn adopt(&mut self, connection: &Connection) -> bool {
        if self.slots.is_full() || connection.tuples.iter().any(|tuple| self.has(tuple)) {
            return false;
        }
        let slot = self.add(connection);
        self.slots.follow_assurance(slot);
        true
    }
}
