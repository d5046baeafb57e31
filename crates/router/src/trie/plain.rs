//! Lookup without vector instructions.

use std::hint::select_unpredictable;

use super::bits::Bits;
use super::node::{Entry, SLOTS, entry_of_slot};
use super::{BURST, View};
use crate::next_hop::NextHopId;

/// Like [`View::lookup`].
pub(super) fn lookup<A: Bits>(view: View<'_>, addresses: &[A], found: &mut [NextHopId]) {
    view.in_bursts(addresses, found, |burst, count| descend(view, burst, count));
}

/// Descends from the root until every address has reached a leaf or a test.
///
/// Cache misses limit the speed, so the loop issues all loads of a level before it uses any: no branch between two
/// loads depends on loaded data.
#[inline(always)]
fn descend<A: Bits>(view: View<'_>, addresses: &[A; BURST], count: usize) -> [Entry; BURST] {
    let mut entries = [Entry::NONE; BURST];
    let mut open = false;
    for (address, entry) in addresses.iter().zip(&mut entries).take(count) {
        *entry = view.root[address.top()];
        open |= entry.has_slots();
    }
    for window in 0..A::WINDOWS {
        for shift in [24, 16, 8, 0] {
            if !open || view.lines.is_empty() {
                return entries;
            }
            open = false;
            for (address, entry) in addresses.iter().zip(&mut entries).take(count) {
                let slot = (address.window(window) >> shift) as usize % SLOTS;
                let found = entry_of_slot(view.lines, *entry, slot);
                *entry = select_unpredictable(entry.has_slots(), found, *entry);
                open |= entry.has_slots();
            }
        }
    }
    entries
}
