// SPDX-License-Identifier: Apache-2.0
//! The L2 fast path, for ports that switch every packet. It reads only Ethernet headers, once for all consecutive
//! packets with the same header (a [`Run`]). Here, packets with the same addresses, tags and EtherType are a flow, and
//! the flow cache stores them as one.
//!
//! Cost: the first line of each packet (prefetched) and a comparison of 16 bytes; a lookup for a header that differs
//! from the one before.

use super::classifier::{Classified, Classifier, Classify, prefetch_headers, set_aside};
use super::scope::Scope;
use crate::policy::Switching;
use crate::worker::packet::keys::{ethernet_key, untagged_header};
use crate::worker::state::BURST;
use crate::worker::state::burst::Burst;
use crate::worker::state::flows::{Counted, Miss};
use crate::worker::state::lookup_results::{LookupResults, PacketAction, PacketGroup};

/// Consecutive packets of a burst with the same header.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// The index of the first packet.
    pub(crate) first: u8,
    pub(crate) packets: u8,
    pub(crate) bytes: u32,
}

impl Run {
    const fn counted(&self) -> Counted {
        Counted { packets: self.packets as u32, bytes: self.bytes as u64 }
    }
}

/// The runs of a burst; the results have the key of run `n` at index `n`.
pub(crate) struct Runs {
    list: [Run; BURST],
    count: usize,
}

impl Runs {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { list: [Run { first: 0, packets: 0, bytes: 0 }; BURST], count: 0 }
    }

    #[inline(always)]
    pub(crate) fn list(&self) -> &[Run] {
        &self.list[..self.count]
    }

    /// Begins a run with this packet; a burst has no more runs than packets.
    #[inline(always)]
    pub(crate) fn begin(&mut self, first: usize) {
        self.list[self.count] = Run { first: first as u8, packets: 0, bytes: 0 };
        self.count += 1;
    }

    /// Adds a packet to the last run.
    #[inline(always)]
    pub(crate) fn add(&mut self, length: u32) {
        let run = &mut self.list[self.count - 1];
        run.packets += 1;
        run.bytes += length;
    }
}

pub(crate) struct L2FastPath<'a> {
    /// The decision for every packet: to switch it.
    pub(crate) decision: u32,
    pub(crate) switching: &'a Switching,
}

impl Classify for L2FastPath<'_> {
    fn classify(&self, cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) -> Classified {
        let runs = read_runs(burst);
        let Burst { batch, results, .. } = burst;
        self.look_up_runs(cl, scope, runs.list(), results);
        if let [run] = runs.list() {
            let action = PacketAction { decision: self.decision, action: results.actions[0] };
            return Classified::Uniform(PacketGroup { action, bytes: run.bytes.into() });
        }
        // Starts with the last run: the results of run `n` are at index `n`, which is not after its first packet.
        results.decisions[..batch.len()].fill(self.decision);
        for (n, run) in runs.list().iter().enumerate().rev() {
            let (first, action) = (usize::from(run.first), results.actions[n]);
            results.actions[first..first + usize::from(run.packets)].fill(action);
        }
        Classified::Each
    }
}

impl L2FastPath<'_> {
    /// Finds the action of each run, from the flow cache or by an L2 lookup.
    #[inline(always)]
    pub(crate) fn look_up_runs(
        &self,
        cl: &mut Classifier<'_>,
        scope: &Scope<'_>,
        runs: &[Run],
        results: &mut LookupResults,
    ) {
        let (cached_as, validity) = (scope.side.port().0, cl.validity(scope));
        let hits = cl.flows.cache.find(cached_as, &results.keys[..runs.len()], validity, &mut results.slots);
        results.fresh = 0;
        for (n, run) in runs.iter().enumerate().filter(|(n, _)| hits >> n & 1 == 1) {
            cl.flows.hit(results, n, run.counted(), validity);
        }
        for (n, run) in runs.iter().enumerate().filter(|(n, _)| hits >> n & 1 == 0) {
            let miss = Miss { cached_as, decision: self.decision, counted: run.counted() };
            cl.flows.insert(results, n, miss, validity);
        }
        self.switching.look_up(cl, scope, runs.len(), results);
    }
}

/// The runs of a burst, after packets without an Ethernet header were set aside.
#[inline(always)]
fn read_runs(burst: &mut Burst) -> Runs {
    prefetch_headers(&burst.batch);
    loop {
        let (runs, bad) = runs_of(burst);
        if bad == 0 {
            return runs;
        }
        set_aside(bad, burst);
    }
}

/// The runs of a burst, and a bit mask of the packets without a key. If there are any, the runs are invalid.
#[inline(always)]
fn runs_of(burst: &mut Burst) -> (Runs, u64) {
    let Burst { batch, results, .. } = burst;
    let mut runs = Runs::new();
    let mut before = None;
    let mut bad = 0;
    for (n, mbuf) in batch.as_slice().iter().enumerate().take(BURST) {
        let length = mbuf.pkt_len();
        results.lengths[n] = length;
        let header = untagged_header(mbuf);
        if header.is_none() || header != before {
            match ethernet_key(mbuf, header) {
                Ok(key) => results.keys[runs.count] = key,
                Err(_) => bad |= 1 << n,
            }
            runs.begin(n);
            before = header;
        }
        runs.add(length);
    }
    (runs, bad)
}
