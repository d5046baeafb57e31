// SPDX-License-Identifier: Apache-2.0
//! One worker's state of flows: the flow cache, and per-flow verdicts of NFs.

use netvm_flow::{CacheError, Eviction, FlowCache, New, Options, Validity};
use netvm_model::{self as model, FlowCacheConfig};
use netvm_switch::TICKS_PER_SECOND;

use super::flow_verdicts::FlowVerdicts;
use super::lookup_results::{LookupResults, PackedAction};

/// Ticks for which flows are watched after a client has read them.
const WATCHED: u32 = 10 * TICKS_PER_SECOND;

pub(crate) struct Flows {
    pub(crate) cache: FlowCache,
    pub(crate) verdicts: FlowVerdicts,
    /// Until this tick, packets that the prefilter would handle are looked up by flow, so that a client sees their
    /// flows.
    watched_until: Option<u32>,
}

/// Packets of one flow in a burst.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
}

impl Flows {
    pub(crate) fn new(config: &FlowCacheConfig) -> Result<Self, CacheError> {
        Ok(Self { cache: new_cache(config)?, verdicts: FlowVerdicts::new()?, watched_until: None })
    }

    /// Begins with an empty cache again.
    pub(crate) fn forget_all(&mut self, config: &FlowCacheConfig) -> Result<(), CacheError> {
        self.cache = new_cache(config)?;
        Ok(())
    }

    /// Whether a client watches the flows.
    #[inline(always)]
    pub(crate) fn are_watched(&self, now: u32) -> bool {
        self.watched_until.is_some_and(|until| until.wrapping_sub(now) <= WATCHED)
    }

    /// A client reads the flows.
    pub(crate) fn watch(&mut self, now: u32) {
        self.watched_until = Some(now.wrapping_add(WATCHED));
    }

    /// Handles a hit: fills the results at index `n`, whose slot is known, and counts the packets.
    #[inline(always)]
    pub(crate) fn hit(
        &mut self,
        results: &mut LookupResults,
        n: usize,
        counted: Counted,
        validity: Validity,
    ) {
        let slot = results.slots[n];
        results.fresh |= u64::from(self.cache.entry(slot).last_used != validity.now) << n;
        let hit = self.cache.hit(slot, counted.packets, counted.bytes, validity.now);
        (results.decisions[n], results.actions[n]) = (hit.decision, PackedAction::from_cached(hit.extra));
    }

    /// Handles a miss after the lookup in the rules: caches the decision for the key at index `n`, and counts the
    /// packets.
    #[inline(always)]
    pub(crate) fn insert(&mut self, results: &mut LookupResults, n: usize, miss: Miss, validity: Validity) {
        let Miss { cached_as, decision, counted } = miss;
        let extra = PackedAction::AS_DECIDED.to_cached();
        let new = New { decision, extra, lifetime: Options::NEVER };
        results.slots[n] = self.cache.insert(cached_as, &results.keys[n], new, validity);
        self.cache.hit(results.slots[n], counted.packets, counted.bytes, validity.now);
        (results.decisions[n], results.actions[n]) = (decision, PackedAction::AS_DECIDED);
        results.fresh |= 1 << n;
    }
}

fn new_cache(config: &FlowCacheConfig) -> Result<FlowCache, CacheError> {
    let eviction = match config.eviction {
        model::Eviction::Clock => Eviction::Clock,
        model::Eviction::Lru => Eviction::Lru,
    };
    let idle = config.idle.saturating_mul(TICKS_PER_SECOND);
    FlowCache::new(&Options { entries: config.entries, eviction, idle })
}

/// A flow that was not in the cache.
#[derive(Clone, Copy)]
pub(crate) struct Miss {
    /// The number of its rules in the flow cache.
    pub(crate) cached_as: u16,
    pub(crate) decision: u32,
    pub(crate) counted: Counted,
}
