// SPDX-License-Identifier: Apache-2.0
//! Chains with bypassed inner hops, for flows whose verdicts skip the NFs at these hops. The manager creates such a
//! chain when a worker first needs it. It has its own id in tables and descriptors; statistics count it as the
//! configured chain.

use std::sync::atomic::Ordering;

use netvm_model::{Host, MAX_CHAINS};

use super::Chains;
use crate::ids::ChainId;
use crate::manager::baselines::{Baselines, ChainSums};
use crate::manager::workers::Workers;
use crate::snapshot::Shortened;

/// Limit of such chains, which use the highest chain ids. Beyond it, flows bypass only hops at the beginning of their
/// chain.
const MAX_SHORTENED: usize = 64;

impl Chains {
    /// The chains with bypassed hops.
    pub(crate) fn shortened(&self) -> &[Shortened] {
        &self.shortened
    }

    /// Creates the chains that workers requested. Returns whether there are any.
    pub(crate) fn shorten_wanted(
        &mut self,
        host: &Host,
        baselines: &mut Baselines,
        workers: &Workers,
    ) -> bool {
        let known = self.shortened.len();
        for worker in workers.iter() {
            let wanted = worker.counters.wanted_chain.swap(0, Ordering::Relaxed);
            if wanted != 0
                && let Some(short) = self.shorten(host, ChainId((wanted >> 16) as u16), wanted as u16)
            {
                baselines.begin_chain(short.id, workers);
                self.shortened.push(short);
            }
        }
        self.shortened.len() > known
    }

    /// The variant of chain `of` without some hops, if there can be one and is none yet.
    fn shorten(&self, host: &Host, of: ChainId, without: u16) -> Option<Shortened> {
        let is_known = |short: &Shortened| (short.of, short.without) == (of, without);
        let chain = host.chain(of)?;
        let all = 1u32.checked_shl(chain.hops.len() as u32).map_or(u32::MAX, |bit| bit - 1);
        if without == 0 || u32::from(without) & !all != 0 || self.shortened.iter().any(is_known) {
            return None;
        }
        let is_free =
            |id: &ChainId| host.chain(*id).is_none() && self.shortened.iter().all(|short| short.id != *id);
        let numbers = (MAX_CHAINS - MAX_SHORTENED..MAX_CHAINS).map(|number| ChainId(number as u16));
        let id = numbers.rev().find(is_free)?;
        Some(Shortened { id, of, without })
    }

    /// Removes variants of removed chains, and variants whose id a configured chain has taken.
    pub(super) fn forget_shortened(&mut self, host: &Host) {
        self.shortened.retain(|short| host.chain(short.of).is_some() && host.chain(short.id).is_none());
    }

    /// Counter sums of a chain with all its variants.
    pub(crate) fn counts(&self, id: ChainId, baselines: &Baselines, workers: &Workers) -> ChainSums {
        let variants = self.shortened.iter().filter(|short| short.of == id);
        variants.fold(baselines.chain(id, workers), |sums, short| sums + baselines.chain(short.id, workers))
    }
}
