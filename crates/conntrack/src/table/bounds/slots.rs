// SPDX-License-Identifier: Apache-2.0
//! The slots of connections: free ones, and the list of those that may be evicted, the oldest first.

use netvm_flow_table::{Array, NoMemory};
use netvm_wire::IpProto;

use crate::connection::{Connection, Status};
use crate::protocol::Stage;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

pub(crate) struct Slots {
    slots: Array<Connection>,
    /// How many there are.
    pub(crate) most: u32,
    /// Slots that were used at least once.
    used: u32,
    /// Free slots that were used before, linked by `older`.
    free: u32,
    oldest: u32,
    newest: u32,
    pub(crate) in_use: u32,
    /// Connections in the list.
    pub(crate) evictable: u32,
}

impl Slots {
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        let slots = Array::try_new(Connection::FREE, most as usize)?;
        let (free, oldest, newest) = (NONE, NONE, NONE);
        Ok(Self { slots, most: most.max(1), used: 0, free, oldest, newest, in_use: 0, evictable: 0 })
    }

    pub(crate) fn get(&self, slot: u32) -> &Connection {
        self.slots.at(slot as usize)
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Connection {
        self.slots.at_mut(slot as usize)
    }

    /// Prefetches what a packet of this protocol needs of a connection.
    #[inline(always)]
    pub(crate) fn prefetch(&self, slot: u32, protocol: IpProto) {
        let lines = if matches!(protocol, IpProto::TCP | IpProto::SCTP) { 3 } else { 2 };
        (0..lines).for_each(|line| self.slots.prefetch(slot as usize, line));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.in_use == self.most
    }

    /// The connection that has waited for longest without being open.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Puts a connection into a free slot, at the end of the list. There must be one.
    pub(crate) fn add(&mut self, connection: &Connection) -> u32 {
        let slot = if self.free == NONE {
            self.used += 1;
            self.used - 1
        } else {
            let slot = self.free;
            self.free = self.get(slot).older;
            slot
        };
        let serial = self.get(slot).serial.wrapping_add(1);
        let status = (connection.status | Status::IN_USE).at(Stage::HalfOpen);
        *self.get_mut(slot) = Connection { serial, status, ..*connection };
        self.in_use += 1;
        self.link(slot);
        slot
    }

    /// Notes how far a connection is, and takes it out of the list, or puts it at the end. Returns how far it was and
    /// is.
    pub(crate) fn follow_stage(&mut self, slot: u32) -> [Stage; 2] {
        let connection = self.get_mut(slot);
        let after = connection.reached();
        let before = connection.status.stage();
        connection.status = connection.status.at(after);
        match [before, after].map(|stage| stage == Stage::Open) {
            [false, true] => self.unlink(slot),
            [true, false] => self.link(slot),
            _ => {}
        }
        [before, after]
    }

    /// Frees a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        if !self.get(slot).is_assured() {
            self.unlink(slot);
        }
        let (serial, older) = (self.get(slot).serial, self.free);
        *self.get_mut(slot) = Connection { serial, older, ..Connection::FREE };
        (self.free, self.in_use) = (slot, self.in_use - 1);
    }

    /// Puts a slot at the end of the list.
    fn link(&mut self, slot: u32) {
        let older = self.newest;
        let connection = self.get_mut(slot);
        (connection.older, connection.newer) = (older, NONE);
        match older {
            NONE => self.oldest = slot,
            older => self.get_mut(older).newer = slot,
        }
        (self.newest, self.evictable) = (slot, self.evictable + 1);
    }

    fn unlink(&mut self, slot: u32) {
        let Connection { older, newer, .. } = *self.get(slot);
        match older {
            NONE => self.oldest = newer,
            older => self.get_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.get_mut(newer).older = older,
        }
        self.evictable -= 1;
    }
}
