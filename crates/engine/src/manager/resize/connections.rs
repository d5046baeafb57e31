// SPDX-License-Identifier: Apache-2.0
//! Divides the connections among another number of workers, together with the [flows](super::flows): each goes to the
//! worker that owns it from now on, with its state.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use netvm_conntrack::{Connection, FlowOwners};

use crate::ids::WorkerId;
use crate::manager::workers::{COMMAND_TIMEOUT, Workers};
use crate::worker::{Command, Event, MovedConnections};

/// Gives the connections to these owners, which all workers know.
pub(crate) fn move_connections(owners: &Arc<FlowOwners>, workers: &mut Workers) {
    for from in workers.ids() {
        let mut part = Some(MovedConnections::new(owners));
        while let Some(moved) = part.filter(|moved| moved.cursor.is_some()) {
            part = take(from, moved, workers);
            if let Some(moved) = &mut part {
                for (to, connections) in by_owner(owners, moved.connections.drain(..)) {
                    workers.send(to, Command::GiveConnections(MovedConnections::of(owners, connections)));
                }
            }
        }
    }
    workers.wait_for_all();
}

/// A part of a worker's connections that others own now.
fn take(
    from: WorkerId,
    moved: Box<MovedConnections>,
    workers: &mut Workers,
) -> Option<Box<MovedConnections>> {
    workers.send(from, Command::TakeConnections(moved));
    workers.wait_for(COMMAND_TIMEOUT, |_, event| match event {
        Event::ConnectionsTaken(moved) => ControlFlow::Break(moved),
        other => ControlFlow::Continue(Some(other)),
    })
}

fn by_owner(
    owners: &FlowOwners,
    connections: impl Iterator<Item = Connection>,
) -> BTreeMap<WorkerId, Vec<Connection>> {
    let mut by_owner: BTreeMap<WorkerId, Vec<Connection>> = BTreeMap::new();
    for connection in connections {
        by_owner.entry(WorkerId(connection.owner(owners))).or_default().push(connection);
    }
    by_owner
}
