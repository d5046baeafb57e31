//! Backpressure: how the entry of a chain learns that a ring inside it is filling up.
//!
//! For each chain the group's region has a word with a bit for each NF thread. An NF thread sets its bit when the next ring is three quarters full. The
//! writer or the reader of that ring clears it, whichever first sees half of it free. The engine admits no packet into a chain with a bit
//! set.

use std::sync::atomic::Ordering;

use netvm_region::{Destination, MAX_CHAINS, MAX_HOPS, Region, Table};

/// Chains in which NF thread `from` hands packets on to NF thread `to`.
pub(crate) fn chains_from_to(table: &Table, from: u8, to: u8) -> Vec<u16> {
    let passes = |hops: &[Destination; MAX_HOPS]| {
        hops.windows(2).any(|pair| pair[0].replicas().contains(&from) && pair[1].replicas().contains(&to))
    };
    (0..MAX_CHAINS as u16).filter(|chain| passes(&table.hops[usize::from(*chain)])).collect()
}

/// Sets the NF thread's bit for these chains, where it is not set.
pub(crate) fn press(region: &Region, chains: &[u16], nf_thread: u8) {
    for word in chains.iter().map(|chain| region.backpressure(*chain)) {
        if word.load(Ordering::Relaxed) >> nf_thread & 1 == 0 {
            word.fetch_or(1 << nf_thread, Ordering::Relaxed);
        }
    }
}

/// Whether the NF thread's bit is set for one of these chains.
pub(crate) fn is_pressed(region: &Region, chains: &[u16], nf_thread: u8) -> bool {
    chains.iter().any(|chain| region.backpressure(*chain).load(Ordering::Relaxed) >> nf_thread & 1 == 1)
}

/// Clears it, where it is set.
pub(crate) fn release(region: &Region, chains: &[u16], nf_thread: u8) {
    for word in chains.iter().map(|chain| region.backpressure(*chain)) {
        if word.load(Ordering::Relaxed) >> nf_thread & 1 == 1 {
            word.fetch_and(!(1 << nf_thread), Ordering::Relaxed);
        }
    }
}
