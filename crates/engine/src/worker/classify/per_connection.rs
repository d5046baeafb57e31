// SPDX-License-Identifier: Apache-2.0
//! The path of ports that track connections: finds the connection of each packet, whose state becomes a part of its
//! key, and then the decision: that which its connection has [stored], or the one that
//! [`PerFlow`](super::per_flow::PerFlow) finds. Packets that rules accept may then begin connections. Packets that
//! rules drop leave no trace in the table, so that a scan cannot fill it.
//!
//! Cost: a copy of each packet's first cache line (all headers of packets with more of them), and a look-up of its
//! connection, prefetched in bursts, in place of that of its flow. For new connections both, the rules, and an
//! insertion.

mod stored;

use dpdk::Batch;
use netvm_conntrack::{Origin, Refusal, Zone};
use netvm_wire::ConnState;

use super::classifier::{Classified, Classifier, Classify, prefetch_headers, set_aside};
use super::scope::Scope;
use crate::memory::mark::set_state;
use crate::policy::{NO_NAT_PORT, NO_ROOM, NOT_TRANSLATABLE, OVER_HALF_OPEN, OVER_QUOTA, Outcome, Tracking};
use crate::worker::packet::keys::{read_front, read_key};
use crate::worker::state::BURST;
use crate::worker::state::burst::Burst;
use crate::worker::state::connections::{Entrance, Headers, ReceivedBy, WorkerConnections, rule_number};
use crate::worker::state::lookup_results::{Action, LookupResults, PackedAction};
use stored::find_decisions;

pub(crate) struct PerConnection {
    pub(crate) tracking: Tracking,
}

impl Classify for PerConnection {
    fn classify(&self, cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) -> Classified {
        prefetch_headers(&burst.batch);
        let mut failed = 0;
        // A hypothetical packet that begins no connection is what its sender says.
        let is_tracked = !cl.is_dry || cl.dry_state == ConnState::New;
        match cl.connections.take().filter(|_| is_tracked) {
            Some(connections) => {
                read_headers(connections, burst);
                let (count, LookupResults { keys, lengths, .. }) = (burst.batch.len(), &mut *burst.results);
                connections.track(self.tracking, cl.tick, &lengths[..count], &mut keys[..count]);
                if cl.is_dry {
                    keys[..count]
                        .iter_mut()
                        .filter(|key| key.is_ip())
                        .for_each(|key| key.state = cl.dry_state);
                }
                let packets = burst.batch.as_mut_slice();
                let zone = Zone(self.tracking.zone);
                failed = connections.pass_by_proxy(zone, &mut keys[..count], &mut lengths[..count], packets);
                if let Some(nat) = &scope.snapshot.nat {
                    failed |= connections.translate_destinations(u64::MAX, &mut keys[..count], packets);
                    let at = ReceivedBy { port: scope.side.port(), zone };
                    connections.ask_for_targets(nat, at, &mut keys[..count]);
                }
                cl.connections = Some(connections);
            }
            None => expect(cl.dry_state, burst),
        }
        note_states(scope, burst);
        // The kernel of a router may have translated some ends already.
        let other = if self.tracking.is_from_kernel { u64::MAX } else { failed };
        find_decisions(cl, scope, other, burst);
        if let Some(connections) = cl.connections.as_deref_mut() {
            if scope.snapshot.policy.has_syn_proxy && !cl.is_dry {
                answer_clients(connections, self, scope, burst);
            }
            begin_connections(connections, self, scope, burst);
        }
        drop_each(failed, NOT_TRANSLATABLE, &mut burst.results);
        if let Some(connections) = cl.connections.as_deref_mut() {
            translate_families(connections, Zone(self.tracking.zone), scope, burst);
        }
        Classified::Each
    }
}

/// Translates accepted packets between IPv6 and IPv4, where a router has NAT64.
fn translate_families(connections: &mut WorkerConnections, zone: Zone, scope: &Scope<'_>, burst: &mut Burst) {
    let from = scope.side.port();
    let Some(nat64) = scope.snapshot.nat.as_ref().and_then(|nat| nat.nat64(from)) else { return };
    let Burst { batch, results, .. } = burst;
    let accepted = |n: usize| u64::from(is_accepted(scope, results, n)) << n;
    let accepted = (0..batch.len()).fold(0, |bits, n| bits | accepted(n));
    let failed =
        connections.translate_families(accepted, Entrance { from, zone, nat64 }, batch.as_mut_slice());
    drop_each(failed, NOT_TRANSLATABLE, &mut burst.results);
}

/// Reads the keys and headers of all packets, and sets packets aside that cannot be parsed.
fn read_headers(connections: &mut WorkerConnections, burst: &mut Burst) {
    let bad = read_each(&mut connections.headers, &burst.batch, &mut burst.results);
    if bad != 0 {
        set_aside(bad, burst);
        read_each(&mut connections.headers, &burst.batch, &mut burst.results);
    }
}

/// Returns the bit mask of packets that cannot be parsed.
fn read_each(headers: &mut Headers, batch: &Batch, results: &mut LookupResults) -> u64 {
    let mut bad = 0u64;
    for (n, mbuf) in batch.as_slice().iter().enumerate().take(BURST) {
        match read_front(mbuf, &mut headers.fronts[n], &mut results.keys[n]) {
            Ok(copied) => headers.lengths[n] = copied as u16,
            Err(_) => bad |= 1 << n,
        }
        results.lengths[n] = mbuf.pkt_len();
    }
    bad
}

/// Reads the keys of hypothetical packets, which have this state if they can be tracked.
#[cold]
fn expect(state: ConnState, burst: &mut Burst) {
    let mut bad = 0u64;
    for (n, mbuf) in burst.batch.as_slice().iter().enumerate().take(BURST) {
        let key = &mut burst.results.keys[n];
        bad |= u64::from(read_key(mbuf, key).is_err()) << n;
        key.state = if key.is_ip() { state } else { ConnState::Untracked };
        burst.results.lengths[n] = mbuf.pkt_len();
    }
    if bad != 0 {
        set_aside(bad, burst);
    }
}

/// Notes the states for egress rules, and clears what rules do not use.
fn note_states(scope: &Scope<'_>, burst: &mut Burst) {
    let used = &scope.snapshot.policy.used;
    for (key, mbuf) in burst.results.keys.iter_mut().zip(burst.batch.as_mut_slice()) {
        set_state(mbuf, key.state);
        *key = used.mask(*key);
    }
}

/// Answers the SYNs that rules with a SYN proxy accept, and drops what belongs to no connection.
fn answer_clients(
    connections: &mut WorkerConnections,
    path: &PerConnection,
    scope: &Scope<'_>,
    burst: &mut Burst,
) {
    for n in 0..burst.batch.len() {
        let decision = burst.results.decisions[n];
        if scope.snapshot.policy.decision(decision).syn_proxy
            && is_accepted(scope, &burst.results, n)
            && let Some(decision) = connections.by_syn_proxy(n, Zone(path.tracking.zone))
        {
            drop_each(1 << n, decision, &mut burst.results);
        }
    }
}

/// Begins the connections of new packets that the rules have accepted.
fn begin_connections(
    connections: &mut WorkerConnections,
    path: &PerConnection,
    scope: &Scope<'_>,
    burst: &mut Burst,
) {
    let mut new = connections.new_packets(burst.batch.len());
    let begun = new;
    while new != 0 {
        let n = new.trailing_zeros() as usize;
        new &= new - 1;
        if !is_accepted(scope, &burst.results, n) {
            continue;
        }
        let (nat, origin) = (scope.snapshot.nat.as_deref(), origin(scope, &burst.results, n));
        if let Err(refusal) = connections.begin(n, Zone(path.tracking.zone), origin, nat) {
            let decision = match refusal {
                Refusal::Full => NO_ROOM,
                Refusal::NoPort => NO_NAT_PORT,
                Refusal::NotTranslatable => NOT_TRANSLATABLE,
                Refusal::HalfOpenQuota => OVER_HALF_OPEN,
                _ => OVER_QUOTA,
            };
            drop_each(1 << n, decision, &mut burst.results);
        } else if let Some(mbuf) = burst.batch.as_mut_slice().get_mut(n) {
            connections.note_begun(n, mbuf);
        }
    }
    if scope.snapshot.nat.is_some() && begun != 0 {
        let Burst { batch, results, .. } = burst;
        let failed = connections.translate_destinations(begun, &mut results.keys[..], batch.as_mut_slice());
        drop_each(failed, NOT_TRANSLATABLE, &mut burst.results);
    }
}

/// Gives packets (bit mask) a decision that drops them.
fn drop_each(packets: u64, decision: u32, results: &mut LookupResults) {
    let mut left = packets;
    while left != 0 {
        let n = left.trailing_zeros() as usize;
        left &= left - 1;
        (results.decisions[n], results.actions[n]) = (decision, PackedAction::AS_DECIDED);
    }
}

/// What begins the connection of an accepted packet.
fn origin(scope: &Scope<'_>, results: &LookupResults, n: usize) -> Origin {
    let decision = scope.snapshot.policy.decision(results.decisions[n]);
    let decider = decision.rules.last().filter(|_| decision.outcome != Outcome::Undecided);
    Origin { port: scope.side.port().0, rule: decider.map_or(0, |rule| rule_number(*rule)) }
}

/// Whether a packet goes on by its decision.
fn is_accepted(scope: &Scope<'_>, results: &LookupResults, n: usize) -> bool {
    let decision = scope.snapshot.policy.decision(results.decisions[n]);
    let goes_on = !matches!(scope.outcome(decision), Outcome::Drop(_) | Outcome::Reject);
    let action = results.actions[n].unpack();
    goes_on && !matches!(action, Action::Filter | Action::WrongVlan | Action::DropFlow)
}
