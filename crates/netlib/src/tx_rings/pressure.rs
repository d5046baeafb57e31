// SPDX-License-Identifier: Apache-2.0
//! Backpressure: tells the engine, at the entry of a chain, that a ring inside the chain is filling up.
//!
//! For each chain the group's region has a word with a bit for each NF thread. An NF thread sets its bit when its next
//! ring is three quarters full. The writer or the reader of that ring clears it, whichever first sees half of it free.
//! The engine admits no packet into a chain with a bit set.

use std::sync::atomic::Ordering;

use netvm_region::{Destination, MAX_CHAINS, MAX_HOPS, Region, Table};

/// Chains in which NF thread `from` sends packets to NF thread `to`.
pub(crate) fn chains_from_to(table: &Table, from: u8, to: u8) -> Vec<u16> {
    let passes = |hops: &[Destination; MAX_HOPS]| {
        hops.windows(2).any(|pair| pair[0].replicas().contains(&from) && pair[1].replicas().contains(&to))
    };
    (0..MAX_CHAINS as u16).filter(|chain| passes(&table.hops[usize::from(*chain)])).collect()
}

/// Sets the NF thread's bit for these chains. Writes only words in which it is clear.
pub(crate) fn set_backpressure(region: &Region, chains: &[u16], nf_thread: u8) {
    for word in chains.iter().map(|chain| region.backpressure(*chain)) {
        if word.load(Ordering::Relaxed) >> nf_thread & 1 == 0 {
            word.fetch_or(1 << nf_thread, Ordering::Relaxed);
        }
    }
}

/// Whether the NF thread's bit is set for one of these chains.
pub(crate) fn has_backpressure(region: &Region, chains: &[u16], nf_thread: u8) -> bool {
    chains.iter().any(|chain| region.backpressure(*chain).load(Ordering::Relaxed) >> nf_thread & 1 == 1)
}

/// Clears the NF thread's bit for these chains. Writes only words in which it is set.
pub(crate) fn clear_backpressure(region: &Region, chains: &[u16], nf_thread: u8) {
    for word in chains.iter().map(|chain| region.backpressure(*chain)) {
        if word.load(Ordering::Relaxed) >> nf_thread & 1 == 1 {
            word.fetch_and(!(1 << nf_thread), Ordering::Relaxed);
        }
    }
}
