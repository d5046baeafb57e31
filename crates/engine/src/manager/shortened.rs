//! Chains without some inner hops, for flows of which the NFs there have said: skip me. Made when a worker first wants one,
//! with a number of its own that tables and descriptors carry; counted as the chain that it comes from.

use std::sync::atomic::Ordering;

use netvm_config::model::MAX_CHAINS;

use super::Engine;
use crate::drop_reason::DropReason;
use crate::ids::ChainId;
use crate::snapshot::Shortened;

/// How many there can be: their numbers are the upper ones. Flows that want another pass by hops at the beginning of their
/// chain only.
const MOST: usize = 64;

/// What was counted of a chain's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct ChainSums {
    pub(super) entered: u64,
    pub(super) left: u64,
    pub(super) drops: [u64; DropReason::COUNT],
}

impl ChainSums {
    fn add(&mut self, other: &Self, before: &Self) {
        let more = |now: u64, before: u64| now.wrapping_sub(before);
        self.entered += more(other.entered, before.entered);
        self.left += more(other.left, before.left);
        for (sum, (now, before)) in self.drops.iter_mut().zip(other.drops.iter().zip(&before.drops)) {
            *sum += more(*now, *before);
        }
    }
}

/// A chain without some hops, and what its number had counted before.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortChain {
    pub(super) chain: Shortened,
    before: ChainSums,
}

impl Engine {
    /// Makes the chains that workers want.
    pub(super) fn serve_shortened(&mut self) {
        let mut made = false;
        for worker in 0..self.workers.len() {
            let wanted = self.workers[worker].counters.wanted_chain.swap(0, Ordering::Relaxed);
            if wanted != 0 {
                made |= self.shorten(ChainId((wanted >> 16) as u16), wanted as u16);
            }
        }
        if made {
            self.rebuild_in_order();
        }
    }

    /// Whether there is a new chain, which is `of` without some hops.
    fn shorten(&mut self, of: ChainId, without: u16) -> bool {
        let is_known = |short: &ShortChain| (short.chain.of, short.chain.without) == (of, without);
        let Some(chain) = self.host.chain(of) else { return false };
        let all = 1u32.checked_shl(chain.hops.len() as u32).map_or(u32::MAX, |bit| bit - 1);
        if without == 0 || u32::from(without) & !all != 0 || self.shortened.iter().any(is_known) {
            return false;
        }
        let is_free = |id: &ChainId| {
            self.host.chain(*id).is_none() && self.shortened.iter().all(|short| short.chain.id != *id)
        };
        let numbers = (MAX_CHAINS - MOST..MAX_CHAINS).map(|number| ChainId(number as u16));
        let Some(id) = numbers.rev().find(is_free) else { return false };
        let before = self.sums_of_chain(id);
        self.shortened.push(ShortChain { chain: Shortened { id, of, without }, before });
        true
    }

    /// Forgets those of chains that are gone, and those whose number a chain of the configuration has now.
    pub(super) fn forget_shortened(&mut self) {
        let host = &self.host;
        self.shortened
            .retain(|short| host.chain(short.chain.of).is_some() && host.chain(short.chain.id).is_none());
    }

    /// What workers have counted of a chain, whatever hops it was without.
    pub(super) fn counted_of_chain(&self, id: ChainId) -> ChainSums {
        let mut sums = self.sums_of_chain(id);
        for short in self.shortened.iter().filter(|short| short.chain.of == id) {
            sums.add(&self.sums_of_chain(short.chain.id), &short.before);
        }
        sums
    }

    fn sums_of_chain(&self, id: ChainId) -> ChainSums {
        let mut sums = ChainSums::default();
        for worker in &self.workers {
            let Some(counters) = worker.counters.chains.get(id.index()) else { continue };
            sums.entered += counters.entered.get();
            sums.left += counters.left.get();
            for reason in DropReason::ALL {
                sums.drops[reason as usize] += counters.drops.get(reason);
            }
        }
        sums
    }
}
