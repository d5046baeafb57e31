// SPDX-License-Identifier: Apache-2.0
//! The reference path: the key of each packet, the flow cache, and for misses the compiled rules.
//!
//! Cost: the first line of each packet (prefetched) and its key, hash and cache; the rules for a miss.

use dpdk::Mbuf;
use netvm_switch::Guard;
use netvm_wire::FlowKey;

use super::classifier::{Classified, Classifier, Classify, prefetch_headers, set_aside};
use super::flow_verdicts;
use super::scope::Scope;
use crate::memory::mark::state_of;
use crate::policy::SPOOFED;
use crate::worker::packet::keys::{HEADER_BYTES, read_key};
use crate::worker::packet::packet_set::first_bits;
use crate::worker::state::BURST;
use crate::worker::state::burst::Burst;
use crate::worker::state::flows::{Counted, Miss};
use crate::worker::state::lookup_results::{LookupResults, PackedAction};

pub(crate) struct PerFlow;

impl Classify for PerFlow {
    #[inline]
    fn classify(&self, cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) -> Classified {
        read_keys(scope, burst);
        look_up(cl, scope, burst);
        Classified::Each
    }
}

/// Finds the actions for the keys of a burst.
#[inline(always)]
pub(crate) fn look_up(cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) {
    find_flows(cl, scope, burst.batch.len(), &mut burst.results);
    finish(cl, scope, burst);
}

/// Finds the actions of packets that have their decisions.
#[inline(always)]
pub(crate) fn finish(cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) {
    let count = burst.batch.len();
    if let Some(guard) = scope.guard {
        inspect(guard, burst.batch.as_slice().iter(), &mut burst.results);
    }
    if let Some(switching) = scope.switching() {
        switching.look_up(cl, scope, count, &mut burst.results);
    }
    if scope.may_have_flow_verdicts() {
        flow_verdicts::apply(cl, scope, burst);
    }
}

/// Reads the keys of all packets, and sets packets aside that cannot be parsed.
#[inline(always)]
fn read_keys(scope: &Scope<'_>, burst: &mut Burst) {
    prefetch_headers(&burst.batch);
    let used = &scope.snapshot.policy.used;
    let mut bad = 0u64;
    let results = &mut *burst.results;
    for (n, mbuf) in burst.batch.as_slice().iter().enumerate().take(BURST) {
        let key = &mut results.keys[n];
        bad |= u64::from(read_key(mbuf, key).is_err()) << n;
        if used.state {
            key.state = state_of(mbuf);
        }
        *key = used.mask(*key);
        results.lengths[n] = mbuf.pkt_len();
    }
    if bad != 0 {
        set_aside(bad, burst);
    }
}

/// Finds the decisions for the first `count` keys.
#[inline(always)]
pub(crate) fn find_flows(
    cl: &mut Classifier<'_>,
    scope: &Scope<'_>,
    count: usize,
    results: &mut LookupResults,
) {
    let validity = cl.validity(scope);
    let find = |port| cl.flows.cache.find(port, &results.keys[..count], validity, &mut results.slots);
    let hits = scope.cached_as.map_or(0, find);
    results.fresh = 0;
    for n in 0..count {
        if hits >> n & 1 == 1 {
            let counted = Counted { packets: 1, bytes: results.lengths[n].into() };
            cl.flows.hit(results, n, counted, validity);
        }
    }
    let misses = !hits & first_bits(count);
    if misses != 0 {
        ask_rules(cl, scope, misses, results);
    }
}

/// Looks up the misses (bit mask) in the rules, and fills the cache.
fn ask_rules(cl: &mut Classifier<'_>, scope: &Scope<'_>, misses: u64, results: &mut LookupResults) {
    let validity = cl.validity(scope);
    let mut keys = [FlowKey::EMPTY; BURST];
    let mut indexes = [0u8; BURST];
    let mut count = 0;
    let mut left = misses;
    while left != 0 {
        let n = left.trailing_zeros() as usize;
        left &= left - 1;
        keys[count] = results.keys[n];
        indexes[count] = n as u8;
        count += 1;
    }
    let mut decisions = [0u32; BURST];
    scope.lookup.decide(&keys[..count], &mut decisions[..count]);
    for ((key, decision), n) in keys.iter().zip(&decisions).zip(&indexes[..count]) {
        let n = usize::from(*n);
        let spoofed = scope.guard.is_some_and(|guard| guard.check(key).is_err());
        let decision = if spoofed { SPOOFED } else { *decision };
        let counted = Counted { packets: 1, bytes: results.lengths[n].into() };
        match scope.cached_as {
            Some(cached_as) => cl.flows.insert(results, n, Miss { cached_as, decision, counted }, validity),
            None => (results.decisions[n], results.actions[n]) = (decision, PackedAction::AS_DECIDED),
        }
    }
}

/// Checks the contents of ARP and neighbour discovery, which differ between packets of a flow.
#[cold]
pub(crate) fn inspect<'a>(
    guard: &Guard,
    packets: impl Iterator<Item = &'a Mbuf>,
    results: &mut LookupResults,
) {
    for (n, mbuf) in packets.enumerate().take(BURST) {
        if !guard.needs_inspection(&results.keys[n]) {
            continue;
        }
        let mut headers = [0u8; HEADER_BYTES];
        let copied = mbuf.copy_to(&mut headers);
        if guard.inspect(&headers[..copied], mbuf.pkt_len() as usize).is_err() {
            (results.decisions[n], results.actions[n]) = (SPOOFED, PackedAction::AS_DECIDED);
        }
    }
}
