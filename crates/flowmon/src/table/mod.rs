// SPDX-License-Identifier: Apache-2.0
//! Flow tables behind one trait. In: the key of a packet and its hash. Out: the slot of its flow. A table never grows
//! and never allocates after it was made; when it has no room, the flow among those in reach that was silent for
//! longest gives way, and the caller exports what it had.

mod dleft;
mod null;
mod tagged;

pub use dleft::DLeft;
pub use null::Null;
pub use tagged::Tagged;

use netvm_flow_table::Table;

use crate::entry::{Entry, Sample};

/// Where the flow of a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLookup {
    /// In this slot.
    Found(usize),
    /// New: this slot is free and reserved for it.
    Free(usize),
    /// New: this slot holds the flow that must give way.
    Occupied(usize),
    /// The table holds no flows.
    NoTable,
}

/// A table of flows. Slots are numbered from 0 to `slots() - 1`; a flow stays in its slot.
pub trait FlowTable {
    /// Prefetches what a look-up of this hash reads first.
    #[inline]
    fn prefetch(&self, _hash: u64) {}

    /// Prefetches the entry that a look-up of this hash will probably find.
    #[inline]
    fn prefetch_entry(&self, _hash: u64) {}

    /// Looks for a flow, or for a slot for it.
    fn look_up(&self, sample: &Sample) -> SlotLookup;

    /// Begins a flow in the slot that [`FlowTable::look_up`] gave.
    fn begin(&mut self, slot: usize, sample: &Sample);

    /// Removes the flow in a slot.
    fn remove(&mut self, slot: usize);

    /// The flows; `None` for a table without any.
    fn slots(&self) -> Option<&Slots>;

    /// The flows, to change them.
    fn slots_mut(&mut self) -> Option<&mut Slots>;

    /// The flows by slot; free slots have unused entries.
    #[inline(always)]
    fn entries(&self) -> &[Entry] {
        self.slots().map_or(&[], |slots| &slots.entries)
    }

    /// The flows by slot.
    #[inline(always)]
    fn entries_mut(&mut self) -> &mut [Entry] {
        self.slots_mut().map_or(&mut [], |slots| &mut slots.entries)
    }

    /// Number of flows.
    fn len(&self) -> usize {
        self.slots().map_or(0, |slots| slots.used)
    }

    /// Whether there are no flows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The entries of a table, and how many of them are used.
#[derive(Debug)]
pub struct Slots {
    entries: Table<Entry>,
    used: usize,
}

impl Slots {
    /// 2^`order` free slots.
    fn new(order: u32) -> Self {
        Self { entries: Table::new(Entry::default(), order), used: 0 }
    }

    #[inline(always)]
    fn at(&self, slot: usize) -> &Entry {
        self.entries.at(slot)
    }

    /// Prefetches the lines of a slot.
    #[inline(always)]
    fn prefetch(&self, slot: usize) {
        self.entries.prefetch(slot, 0);
        self.entries.prefetch(slot, 1);
    }

    /// Begins a flow in a slot.
    #[inline(always)]
    fn begin(&mut self, slot: usize, sample: &Sample) {
        let entry = self.entries.at_mut(slot);
        self.used += usize::from(!entry.used);
        entry.begin(sample);
    }

    /// Removes the flow of a slot, if it has one.
    #[inline(always)]
    fn remove(&mut self, slot: usize) {
        let entry = self.entries.at_mut(slot);
        self.used -= usize::from(entry.used);
        entry.used = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    /// Flows fit until the table is nearly full, are found again, and give way in the order of their last packets.
    fn holds(mut table: impl FlowTable, capacity: usize) {
        let hasher = netvm_wire::FlowHasher::new();
        let at = |n: usize| sample(&hasher, n as u32, n as u64);
        for n in 0..capacity {
            let SlotLookup::Free(slot) = table.look_up(&at(n)) else {
                panic!("no room for {n} of {capacity}")
            };
            table.begin(slot, &at(n));
            assert_eq!((table.look_up(&at(n)), table.len()), (SlotLookup::Found(slot), n + 1));
        }
        let slots: Vec<_> = (0..capacity).map(|n| table.look_up(&at(n))).collect();
        assert!(slots.iter().all(|slot| matches!(slot, SlotLookup::Found(_))));
        for n in capacity..8 * capacity {
            let slot = match table.look_up(&at(n)) {
                SlotLookup::Occupied(slot) => {
                    assert!(table.entries()[slot].last < n as u64);
                    table.remove(slot);
                    slot
                }
                SlotLookup::Free(slot) => slot,
                other => panic!("{other:?}"),
            };
            table.begin(slot, &at(n));
            assert_eq!(table.look_up(&at(n)), SlotLookup::Found(slot));
        }
        assert!(table.len() <= table.entries().len());
        let used = table.entries().iter().filter(|entry| entry.used).count();
        assert_eq!(table.len(), used);
        for slot in 0..table.entries().len() {
            if table.entries()[slot].used {
                table.remove(slot);
            }
        }
        assert!(table.is_empty());
        assert!(matches!(table.look_up(&at(1)), SlotLookup::Free(_)));
    }

    #[test]
    fn tables_hold_what_they_promise() {
        for capacity in [1, 100, 5000] {
            holds(DLeft::new(capacity), capacity);
            holds(Tagged::new(capacity), capacity);
        }
        assert_eq!(Null.look_up(&sample(&netvm_wire::FlowHasher::new(), 1, 1)), SlotLookup::NoTable);
    }
}
