// SPDX-License-Identifier: Apache-2.0
//! The prefilter path, for ports whose rules match few packets. Packets that provably match no rule get the port's
//! decision for such packets; the others take the reference path, flow by flow. All packets of a flow take the same
//! path, because the prefilter reads only fields of the flow key. The burst keeps its order.

use netvm_switch::Guard;
use netvm_wire::{Address, EtherType, FlowKey, MacAddr};

use super::classifier::{Classified, Classifier, Classify, prefetch_headers, set_aside};
use super::l2_fast_path::{L2FastPath, Run, Runs};
use super::per_flow::{PerFlow, find_flows, inspect};
use super::prefilter::{ETHERNET_BITS, Prefiltered, prefilter};
use super::scope::{Scope, UnmatchedFilter};
use crate::policy::Switching;
use crate::worker::packet::keys::read_key;
use crate::worker::packet::packet_set::{PacketSet, first_bits};
use crate::worker::state::BURST;
use crate::worker::state::burst::Burst;
use crate::worker::state::lookup_results::{LookupResults, PackedAction, PacketAction, PacketGroup};

#[derive(Clone, Copy)]
pub(crate) struct PrefilterPath<'a> {
    pub(crate) unmatched: UnmatchedFilter<'a>,
    /// Present if packets that match no rule are switched.
    pub(crate) switching: Option<&'a Switching>,
}

/// The packets of a burst that match no rule, and the actions of the burst.
struct Proven<'a> {
    /// Bit mask.
    packets: u64,
    actions: &'a mut [PackedAction; BURST],
}

impl Classify for PrefilterPath<'_> {
    fn classify(&self, cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) -> Classified {
        prefetch_headers(&burst.batch);
        let Prefiltered { proven, same_header } = self.prefilter(scope, burst);
        let count = burst.batch.len();
        if proven == 0 {
            return PerFlow.classify(cl, scope, burst);
        }
        if proven != first_bits(count) {
            return self.classify_mixed(cl, scope, proven, burst);
        }
        let results = &mut *burst.results;
        if same_header || self.switching.is_none() {
            let bytes = results.bytes(count);
            let run = Run { first: 0, packets: count as u8, bytes: bytes as u32 };
            let action = self.look_up_header(cl, scope, run, results);
            let action = PacketAction { decision: self.unmatched.decision, action };
            return Classified::Uniform(PacketGroup { action, bytes });
        }
        let mut actions = [PackedAction::AS_DECIDED; BURST];
        self.look_up_proven(cl, scope, Proven { packets: proven, actions: &mut actions }, results);
        (results.decisions, results.actions) = ([self.unmatched.decision; BURST], actions);
        Classified::Each
    }
}

impl<'a> PrefilterPath<'a> {
    /// Runs the prefilter, and stores the beginning and the length of each packet in the results. A packet that the
    /// port's guest may not send is not proven.
    #[inline(always)]
    fn prefilter(&self, scope: &Scope<'_>, burst: &mut Burst) -> Prefiltered {
        let Burst { batch, results, .. } = burst;
        let (table, packets) = (self.unmatched.prefilter, batch.as_slice());
        let Some(guard) = scope.guard else {
            return prefilter(table, packets, |n, length, front| {
                (results.headers[n], results.lengths[n]) = (front.header, length);
            });
        };
        let mut prefiltered = prefilter(table, packets, |n, length, front| {
            (results.headers[n], results.lengths[n]) = (front.header, length);
            results.sources[n] = front.source;
        });
        prefiltered.proven &= !spoofed(guard, prefiltered.proven, results);
        prefiltered
    }

    fn l2(&self) -> Option<L2FastPath<'a>> {
        let decision = self.unmatched.decision;
        self.switching.map(|switching| L2FastPath { decision, switching })
    }

    /// Finds the action of packets that all have the Ethernet header of the first packet.
    #[inline(always)]
    fn look_up_header(
        &self,
        cl: &mut Classifier<'_>,
        scope: &Scope<'_>,
        run: Run,
        results: &mut LookupResults,
    ) -> PackedAction {
        let Some(l2) = self.l2() else { return PackedAction::AS_DECIDED };
        results.keys[0] = untagged_v4_key(results.headers[0]);
        l2.look_up_runs(cl, scope, &[run], results);
        results.actions[0]
    }

    /// Finds the actions of the packets that match no rule.
    fn look_up_proven(
        &self,
        cl: &mut Classifier<'_>,
        scope: &Scope<'_>,
        proven: Proven<'_>,
        results: &mut LookupResults,
    ) {
        let Proven { packets, actions } = proven;
        let Some(l2) = self.l2() else { return };
        let proven = PacketSet::of(packets);
        let mut runs = Runs::new();
        let mut before = None;
        for (nth, index) in proven.iter().enumerate() {
            let header = results.headers[index] & ETHERNET_BITS;
            if before != Some(header) {
                results.keys[runs.list().len()] = untagged_v4_key(header);
                runs.begin(nth);
                before = Some(header);
            }
            runs.add(results.lengths[index]);
        }
        l2.look_up_runs(cl, scope, runs.list(), results);
        for (n, run) in runs.list().iter().enumerate() {
            let first = usize::from(run.first);
            for index in &proven.list()[first..first + usize::from(run.packets)] {
                actions[usize::from(*index)] = results.actions[n];
            }
        }
    }

    /// Classifies a burst in which rules may match some packets.
    #[inline(never)]
    fn classify_mixed(
        &self,
        cl: &mut Classifier<'_>,
        scope: &Scope<'_>,
        mut proven: u64,
        burst: &mut Burst,
    ) -> Classified {
        let policy = &*scope.snapshot.policy;
        let mut rest = PacketSet::of(!proven & first_bits(burst.batch.len()));
        loop {
            let mut bad = 0u64;
            for index in rest.iter() {
                let key = &mut burst.results.keys[index];
                bad |= u64::from(read_key(&burst.batch.as_slice()[index], key).is_err()) << index;
                *key = policy.used.mask(*key);
            }
            if bad == 0 {
                break;
            }
            set_aside(bad, burst);
            proven = self.prefilter(scope, burst).proven;
            rest = PacketSet::of(!proven & first_bits(burst.batch.len()));
        }
        let Burst { batch, results, .. } = burst;
        let results = &mut **results;
        let lengths = results.lengths;
        let mut decisions = [self.unmatched.decision; BURST];
        let mut actions = [PackedAction::AS_DECIDED; BURST];
        for (nth, index) in rest.iter().enumerate() {
            (results.keys[nth], results.lengths[nth]) = (results.keys[index], lengths[index]);
        }
        find_flows(cl, scope, rest.count(), results);
        if let Some(guard) = scope.guard {
            inspect(guard, rest.iter().map(|index| &batch.as_slice()[index]), results);
        }
        if let Some(switching) = scope.switching() {
            switching.look_up(cl, scope, rest.count(), results);
        }
        for (nth, index) in rest.iter().enumerate() {
            (decisions[index], actions[index]) = (results.decisions[nth], results.actions[nth]);
        }
        results.lengths = lengths;
        self.look_up_proven(cl, scope, Proven { packets: proven, actions: &mut actions }, results);
        (results.decisions, results.actions) = (decisions, actions);
        Classified::Each
    }
}

/// Bit mask of the packets, of `of`, that the port's guest may not send, or that need more than their addresses to
/// decide.
fn spoofed(guard: &Guard, of: u64, results: &LookupResults) -> u64 {
    let mut spoofed = 0;
    let mut good = None;
    for index in PacketSet::of(of).iter() {
        let (header, source) = (results.headers[index], results.sources[index]);
        let sender = Some((header & ETHERNET_BITS, source));
        if sender == good {
            continue;
        }
        let key = FlowKey { source: Address::from_v4_octets(source), ..untagged_v4_key(header) };
        match guard.check(&key) {
            Ok(()) => good = sender,
            Err(_) => spoofed |= 1 << index,
        }
    }
    spoofed
}

/// The key for a switch of packets with this Ethernet header, which the prefilter has proven to be IPv4 and untagged.
#[inline(always)]
fn untagged_v4_key(header: u128) -> FlowKey {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = header.to_le_bytes();
    FlowKey {
        destination_mac: MacAddr([a, b, c, d, e, f]),
        source_mac: MacAddr([g, h, i, j, k, l]),
        ether_type: EtherType::IPV4,
        ..FlowKey::EMPTY
    }
}
