//! Looking up without vectors.

use std::hint::select_unpredictable;

use super::bits::Bits;
use super::node::{Entry, SLOTS, entry_of_slot};
use super::{BURST, View};
use crate::next_hop::NextHopId;

/// As [`View::look_up`].
pub(super) fn look_up<A: Bits>(view: View<'_>, addresses: &[A], found: &mut [NextHopId]) {
    view.in_bursts(addresses, found, |burst, count| descend(view, burst, count));
}

/// What each address leads to, which is no node.
///
/// What limits this are lines that are not in the cache, so all of a level are asked for before any of them is needed: no
/// branch between two loads depends on what they bring.
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
