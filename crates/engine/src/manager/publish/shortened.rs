//! Chains with bypassed inner hops, for flows whose verdicts skip the NFs at these hops. The manager creates such a
//! chain when a worker first needs it. It has its own id in tables and descriptors; statistics count it as the
//! configured chain.

use std::sync::atomic::Ordering;

use netvm_model::MAX_CHAINS;

use crate::ids::ChainId;
use crate::manager::Engine;
use crate::manager::since::ChainSums;
use crate::snapshot::Shortened;

/// Limit of such chains, which use the highest chain ids. Beyond it, flows bypass only hops at the beginning of their
/// chain.
const MOST: usize = 64;

/// A chain with bypassed hops, and the counters of its id before it was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortChain {
    pub(crate) chain: Shortened,
    before: ChainSums,
}

impl Engine {
    /// Creates the chains that workers requested.
    pub(crate) fn service_shortened(&mut self) {
        let mut made = false;
        let wanted: Vec<u64> = self
            .workers
            .iter()
            .map(|worker| worker.counters.wanted_chain.swap(0, Ordering::Relaxed))
            .collect();
        for wanted in wanted.into_iter().filter(|wanted| *wanted != 0) {
            made |= self.shorten(ChainId((wanted >> 16) as u16), wanted as u16);
        }
        if made {
            self.publish_in_order();
        }
    }

    /// Creates the variant of chain `of` without some hops. Returns whether it is new.
    fn shorten(&mut self, of: ChainId, without: u16) -> bool {
        let is_known = |short: &ShortChain| (short.chain.of, short.chain.without) == (of, without);
        let Some(chain) = self.host.chain(of) else { return false };
        let all = 1u32.checked_shl(chain.hops.len() as u32).map_or(u32::MAX, |bit| bit - 1);
        if without == 0 || u32::from(without) & !all != 0 || self.chains.shortened.iter().any(is_known) {
            return false;
        }
        let is_free = |id: &ChainId| {
            self.host.chain(*id).is_none() && self.chains.shortened.iter().all(|short| short.chain.id != *id)
        };
        let numbers = (MAX_CHAINS - MOST..MAX_CHAINS).map(|number| ChainId(number as u16));
        let Some(id) = numbers.rev().find(is_free) else { return false };
        let before = self.sums_of_chain(id);
        self.chains.shortened.push(ShortChain { chain: Shortened { id, of, without }, before });
        true
    }

    /// Removes variants of removed chains, and variants whose id a configured chain has taken.
    pub(crate) fn forget_shortened(&mut self) {
        let host = &self.host;
        self.chains
            .shortened
            .retain(|short| host.chain(short.chain.of).is_some() && host.chain(short.chain.id).is_none());
    }

    /// Counter sums of a chain with all its variants.
    pub(crate) fn counted_of_chain(&self, id: ChainId) -> ChainSums {
        let variants = self.chains.shortened.iter().filter(|short| short.chain.of == id);
        variants.fold(self.chain_counts(id), |sums, short| {
            sums + (self.sums_of_chain(short.chain.id) - short.before)
        })
    }
}
