// SPDX-License-Identifier: Apache-2.0
//! Finds the decisions on packets of connections. In: packets with their connections. Out: the decision and action of
//! each, as [`PerFlow`](super::super::per_flow::PerFlow) finds them.
//!
//! A packet of a connection has the decision that its connection has stored, if the rest of its key, the port and the
//! rules are still the same. For the others it is as for packets without a connection: the flow cache, then rules; and
//! their connections store what that says.
//!
//! Cost of a stored decision: an entry in the processor's cache, compared with four words of the key; no hash, and no
//! other line of memory than those of the connection.

use super::super::classifier::Classifier;
use super::super::per_flow::{find_flows, finish, look_up};
use super::super::scope::Scope;
use crate::worker::packet::packet_set::{PacketSet, first_bits};
use crate::worker::state::burst::Burst;
use crate::worker::state::connections::Deciding;
use crate::worker::state::lookup_results::LookupResults;

/// Finds the decisions and actions for the keys of a burst. Packets of `other` (bit mask) may have other keys than
/// their connections say.
#[inline(always)]
pub(super) fn find_decisions(cl: &mut Classifier<'_>, scope: &Scope<'_>, other: u64, burst: &mut Burst) {
    // Verdicts of NFs for flows, and clients that watch flows, need the flow cache.
    let needs_flows = scope.may_have_flow_verdicts() || cl.flows.are_watched(cl.tick);
    let Some(connections) = cl.connections.as_deref_mut().filter(|_| !needs_flows) else {
        return look_up(cl, scope, burst);
    };
    let (count, results) = (burst.batch.len(), &mut *burst.results);
    let deciding = deciding(scope);
    let asked = connections.of_connections(count) & !other;
    let stored = connections.find_stored(asked, deciding, results);
    let others = !stored & first_bits(count);
    if others != 0 {
        let fresh = results.fresh;
        find_others(cl, scope, others, results);
        results.fresh |= fresh;
        if let Some(connections) = cl.connections.as_deref_mut() {
            connections.store(asked & others, deciding, results);
        }
    }
    results.stored = stored;
    finish(cl, scope, burst);
    burst.results.stored = 0;
}

/// The rules that decide on the packets of a burst, and whether MAC addresses matter to the decision or its action.
fn deciding(scope: &Scope<'_>) -> Deciding {
    let policy = &scope.snapshot.policy;
    let has_rules = policy.used.source_mac | policy.used.destination_mac != 0;
    let with_macs = has_rules || scope.guard.is_some() || scope.switching().is_some();
    Deciding::new(scope.side.port(), policy.generation, with_macs)
}

/// Finds the decisions on these packets (bit mask) by their flows.
fn find_others(cl: &mut Classifier<'_>, scope: &Scope<'_>, others: u64, results: &mut LookupResults) {
    let others_come_first = others & others.wrapping_add(1) == 0;
    if others_come_first {
        return find_flows(cl, scope, others.count_ones() as usize, results);
    }
    let others = PacketSet::of(others);
    for (nth, n) in others.iter().enumerate() {
        results.swap(nth, n);
    }
    find_flows(cl, scope, others.count(), results);
    let (fresh, mut spread) = (results.fresh, 0);
    for (nth, n) in others.list().iter().enumerate().rev() {
        results.swap(nth, usize::from(*n));
        spread |= (fresh >> nth & 1) << n;
    }
    results.fresh = spread;
}
