// SPDX-License-Identifier: Apache-2.0
//! Workers that come and go: the rings between a worker and each other one.
//!
//! A new worker has the highest number, and only the worker with the highest number goes, after its rings are empty. So
//! the rings of a worker are in the order of the others' numbers.

use std::sync::Arc;

use rtrb::{Consumer, RingBuffer};

use super::{Handoff, HandoffPacket, HandoffTx, SLOTS, Sleeper};
use crate::ids::{WorkerId, put};

/// A worker's ends of the rings to and from another one.
#[derive(Debug)]
pub(crate) struct Peer {
    handoff_tx: HandoffTx,
    from: Consumer<HandoffPacket>,
    arrivals: Consumer<HandoffPacket>,
}

impl Peer {
    /// The ends of two workers: each has the other one as its peer.
    pub(crate) fn pair(ends: [(WorkerId, &Arc<Sleeper>); 2]) -> [Self; 2] {
        Self::pair_of(ends, SLOTS)
    }

    /// The same with rings of this size.
    pub(super) fn pair_of(ends: [(WorkerId, &Arc<Sleeper>); 2], slots: usize) -> [Self; 2] {
        let [(one, one_sleeper), (other, other_sleeper)] = ends;
        let (to_other, from_one) = handoff_tx(other, other_sleeper, slots);
        let (to_one, from_other) = handoff_tx(one, one_sleeper, slots);
        let of_one = Self { handoff_tx: to_other, from: from_other.0, arrivals: from_other.1 };
        let of_other = Self { handoff_tx: to_one, from: from_one.0, arrivals: from_one.1 };
        [of_one, of_other]
    }
}

/// The rings to a worker: the ends of those that write, and those of the worker.
fn handoff_tx(
    to: WorkerId,
    sleeper: &Arc<Sleeper>,
    slots: usize,
) -> (HandoffTx, (Consumer<HandoffPacket>, Consumer<HandoffPacket>)) {
    let [(ring, from), (received, arrivals)] = [(); 2].map(|()| RingBuffer::new(slots));
    (HandoffTx { to, ring, received, peer: Arc::clone(sleeper), has_pushed: false }, (from, arrivals))
}

impl Handoff {
    /// Adds the worker with the next number.
    pub(crate) fn add(&mut self, peer: Peer) {
        let Peer { handoff_tx, from, arrivals } = peer;
        put(&mut self.to, handoff_tx.to.index(), handoff_tx);
        self.from.push(from);
        self.arrivals.push(arrivals);
    }

    /// Removes the worker, which has the highest number. Returns the ends of its rings, which are empty.
    pub(crate) fn remove(&mut self, worker: WorkerId) -> Option<Box<Peer>> {
        let handoff_tx = self.to.get_mut(worker.index())?.take()?;
        self.to.truncate(worker.index());
        let (from, arrivals) = (self.from.pop()?, self.arrivals.pop()?);
        Some(Box::new(Peer { handoff_tx, from, arrivals }))
    }
}
