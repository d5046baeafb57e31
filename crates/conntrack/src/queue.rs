// SPDX-License-Identifier: Apache-2.0
//! [`Queue`]: events that wait until somebody takes them, bounded; [`EventQueue`]: those of connections, as a table
//! gets it.

use netvm_flow_table::{NoMemory, Table};

use crate::events::Event;

/// Most events of any queue.
const MAX_EVENTS: u32 = 1 << 24;

/// At most so many events. Those that find it full are lost, and counted.
pub(crate) struct Queue<T> {
    places: Table<T>,
    most: u32,
    first: u32,
    count: u32,
    lost: u64,
}

/// A queue for what happens to connections.
pub struct EventQueue(pub(crate) Option<Queue<Event>>);

impl EventQueue {
    /// For at most so many events. Sets their memory aside.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(most: u32) -> Result<Self, NoMemory> {
        Queue::new(most, Event::NONE).map(Self)
    }
}

impl<T: Copy> Queue<T> {
    /// For at most so many events; `None`: for none. Free places hold `none`.
    pub(crate) fn new(most: u32, none: T) -> Result<Option<Self>, NoMemory> {
        if most == 0 {
            return Ok(None);
        }
        let most = most.min(MAX_EVENTS);
        let places = Table::try_new(none, most.next_power_of_two().trailing_zeros())?;
        Ok(Some(Self { places, most, first: 0, count: 0, lost: 0 }))
    }

    pub(crate) fn push(&mut self, event: T) {
        if self.count == self.most {
            self.lost += 1;
            return;
        }
        *self.places.at_mut(self.first.wrapping_add(self.count) as usize) = event;
        self.count += 1;
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        if self.count == 0 {
            return None;
        }
        let event = *self.places.at(self.first as usize);
        (self.first, self.count) = (self.first.wrapping_add(1), self.count - 1);
        Some(event)
    }

    /// How many were lost since the last call.
    pub(crate) const fn take_lost(&mut self) -> u64 {
        std::mem::replace(&mut self.lost, 0)
    }

    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }
}
