// SPDX-License-Identifier: Apache-2.0
//! What can be seen of connections, and ending them by hand.

use netvm_wire::FlowKey;

use super::connections::{Connections, Ended};
use crate::connection::{Connection, ConnectionId};
use crate::events::{Cause, Event};
use crate::nat::BlockEvent;
use crate::packet::tuple::{Ports, Tuple, Zone};
use crate::queue::{EventQueue, Queue};

impl Connections {
    /// A connection, if it still lives.
    #[must_use]
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = self.slots.get(id.slot);
        (connection.is_in_use() && connection.serial == id.serial).then_some(connection)
    }

    /// The connection with this [`ConnectionId::note`], if it still lives: unless 65,536 others have used its slot
    /// since.
    #[must_use]
    pub fn noted(&self, (slot, serial): (u32, u16)) -> Option<ConnectionId> {
        let lives = slot < self.slots.most && {
            let connection = self.slots.get(slot);
            connection.is_in_use() && connection.serial as u16 == serial
        };
        lives.then(|| self.id(slot))
    }

    /// The connection of packets of TCP, UDP or SCTP with these ends, also one whose time is over, and whether they go
    /// to the end that began it.
    #[must_use]
    pub fn with_ends(&self, key: &FlowKey, zone: Zone) -> Option<(&Connection, bool)> {
        self.slot_with_ends(key, zone).map(|(slot, is_reply)| (self.slots.get(slot), is_reply))
    }

    pub(super) fn slot_with_ends(&self, key: &FlowKey, zone: Zone) -> Option<(u32, bool)> {
        let ports = Ports { numbers: [key.source_port, key.destination_port], query: 0 };
        let tuple = Tuple::of(key, ports, zone);
        let is_it = |it: u32| self.slots.get(it >> 1).tuple((it & 1) as usize) == &tuple;
        let it = self.index.find(tuple.hash(&self.hasher), is_it)?;
        Some((it >> 1, it & 1 == 1))
    }

    /// The connections in `count` slots from `first` on that live at this tick.
    pub fn page(
        &self,
        first: u32,
        count: u32,
        now: u32,
    ) -> impl Iterator<Item = (ConnectionId, &Connection)> + '_ {
        let end = first.saturating_add(count).min(self.slots.most);
        let live = move |slot: &u32| {
            let connection = self.slots.get(*slot);
            connection.is_in_use() && !connection.has_expired(now)
        };
        (first..end).filter(live).map(|slot| (self.id(slot), self.slots.get(slot)))
    }

    /// Ends a connection, if it still lives. Returns whether it did.
    pub fn end(&mut self, id: ConnectionId) -> bool {
        self.close_if_alive(id, Cause::Flushed)
    }

    /// Ends a connection that has just begun, as its first packet cannot be translated. Returns whether it lived.
    pub fn refuse(&mut self, id: ConnectionId) -> bool {
        self.close_if_alive(id, Cause::Refused)
    }

    fn close_if_alive(&mut self, id: ConnectionId, cause: Cause) -> bool {
        let lives = self.get(id).is_some();
        if lives {
            self.close(id.slot, cause);
        }
        lives
    }

    /// Ends all connections in `count` slots from `first` on, before the table itself goes, so that each has an event.
    pub fn end_slots(&mut self, first: u32, count: u32) {
        for slot in first..first.saturating_add(count).min(self.slots.most) {
            if self.slots.get(slot).is_in_use() {
                self.close(slot, Cause::TableEnded);
            }
        }
    }

    /// Queues events from now on, in place of [`Config::events`](crate::Config::events).
    pub fn queue_events(&mut self, queue: EventQueue) {
        self.events = queue.0;
    }

    /// Whether events are queued from now on, also those of blocks of all workers, if there is a queue. They are at
    /// first.
    pub fn want_events(&mut self, are_wanted: bool) {
        self.wants_events = are_wanted;
        if let Some(mut mappings) = self.shared.mappings() {
            mappings.blocks.wants_events = are_wanted;
        }
    }

    /// The oldest event that was not taken. Without [`Config::events`](crate::Config::events) there is none.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.as_mut()?.take()
    }

    /// Events that found the queue full.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.events.as_ref().map_or(0, Queue::lost)
    }

    /// The oldest event of blocks of ports that was not taken. Without
    /// [`Config::block_events`](crate::Config::block_events) there is none.
    pub fn take_block_event(&mut self) -> Option<BlockEvent> {
        self.shared.mappings()?.blocks.events.as_mut()?.take()
    }

    /// Events of blocks that found the queue full.
    #[must_use]
    pub fn block_events_lost(&self) -> u64 {
        let mappings = self.shared.mappings();
        let events = mappings.as_ref().and_then(|mappings| mappings.blocks.events.as_ref());
        events.map_or(0, Queue::lost)
    }

    /// The same since the last call by any worker.
    pub fn take_lost_block_events(&mut self) -> u64 {
        let mut mappings = self.shared.mappings();
        let events = mappings.as_mut().and_then(|mappings| mappings.blocks.events.as_mut());
        events.map_or(0, Queue::take_lost)
    }

    /// Slots, for [`Connections::page`].
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.slots.most
    }

    /// Connections now, also those whose time is over but that the hand has not passed.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.slots.in_use
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that may be evicted: their handshake is not complete, or they have had no answer.
    #[must_use]
    pub const fn incomplete(&self) -> u32 {
        self.slots.evictable
    }

    /// How many have begun.
    #[must_use]
    pub const fn begun(&self) -> u64 {
        self.begun
    }

    /// How many have ended, and why.
    #[must_use]
    pub const fn ended(&self) -> Ended {
        self.ended
    }
}
