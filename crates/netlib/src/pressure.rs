//! Backpressure: how the entry of a chain learns that a ring inside it is filling up.
//!
//! For each chain the group's region has a word with a bit for each station: set by the station that finds the ring after
//! it three quarters full, cleared by whoever first sees half of it free again, that station or the one that reads the
//! ring. The engine takes no packet into a chain with a bit set.

use std::sync::atomic::Ordering;

use netvm_region::{Destination, MAX_CHAINS, MAX_HOPS, Region, Table};

/// Chains in which station `from` hands packets on to station `to`.
pub(crate) fn chains_from_to(table: &Table, from: u8, to: u8) -> Vec<u16> {
    let passes = |hops: &[Destination; MAX_HOPS]| {
        hops.windows(2).any(|pair| pair[0].replicas().contains(&from) && pair[1].replicas().contains(&to))
    };
    (0..MAX_CHAINS as u16).filter(|chain| passes(&table.hops[usize::from(*chain)])).collect()
}

/// Sets the station's bit for these chains, where it is not set.
pub(crate) fn press(region: &Region, chains: &[u16], station: u8) {
    for word in chains.iter().map(|chain| region.backpressure(*chain)) {
        if word.load(Ordering::Relaxed) >> station & 1 == 0 {
            word.fetch_or(1 << station, Ordering::Relaxed);
        }
    }
}

/// Whether the station's bit is set for one of these chains.
pub(crate) fn is_pressed(region: &Region, chains: &[u16], station: u8) -> bool {
    chains.iter().any(|chain| region.backpressure(*chain).load(Ordering::Relaxed) >> station & 1 == 1)
}

/// Clears it, where it is set.
pub(crate) fn release(region: &Region, chains: &[u16], station: u8) {
    for word in chains.iter().map(|chain| region.backpressure(*chain)) {
        if word.load(Ordering::Relaxed) >> station & 1 == 1 {
            word.fetch_and(!(1 << station), Ordering::Relaxed);
        }
    }
}
