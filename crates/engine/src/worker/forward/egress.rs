//! The egress stage. In: packets to send by a port. Out: to the tx stage, the packets that the port's egress rules and rate
//! allow.
//!
//! A port without either costs one check of the policy per burst. Otherwise packets are looked up again with their current
//! key, because an NF may have changed them. The flow cache stores the decisions under the egress port and the class of the
//! ingress port.

use dpdk::{Batch, Mbuf};
use netvm_flow::{Moment, New, Options, Slot};
use netvm_wire::FlowKey;

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::{DENY, Decision, EgressPolicy, Lookup, Outcome};
use crate::worker::act::mirror::mirror;
use crate::worker::act::police::police;
use crate::worker::act::reject::reject;
use crate::worker::act::vlan::set_vlan;
use crate::worker::classify::prefilter::prefilter;
use crate::worker::packet::keys::key_of;
use crate::worker::packet::packet_set::{PacketSet, first_bits};
use crate::worker::packet::queue;
use crate::worker::state::burst::{Context, Origin};
use crate::worker::state::lookup_results::PackedAction;
use crate::worker::state::{BURST, Datapath};
use crate::worker::tx::transmit::transmit;

/// An egress port with its rules.
#[derive(Clone, Copy)]
struct Egress<'a> {
    cx: Context<'a>,
    policy: &'a EgressPolicy,
    out: PortId,
}

/// Decisions for packets to send.
struct EgressResults {
    decisions: [u32; BURST],
    /// Packets whose headers cannot be parsed, one bit each.
    malformed: u64,
}

/// Sends packets out of a port, as far as its policy allows; the batch is empty afterwards.
#[inline]
pub(crate) fn send_out(dp: &mut Datapath, cx: Context<'_>, out: PortId, batch: &mut Batch) {
    if let Some(policy) = cx.snapshot.policy.egress(out) {
        check(dp, &Egress { cx, policy, out }, batch);
    }
    transmit(dp, out, cx.memory, batch);
}

/// Drops packets that may not leave.
#[cold]
fn check(dp: &mut Datapath, egress: &Egress<'_>, batch: &mut Batch) {
    if egress.policy.looks && !batch.is_empty() {
        check_rules(dp, egress, batch);
    }
    if let Some(meter) = &egress.policy.meter {
        police(dp, meter, egress.out, batch);
    }
}

fn check_rules(dp: &mut Datapath, egress: &Egress<'_>, batch: &mut Batch) {
    let snapshot = egress.cx.snapshot;
    let results = look_up(dp, egress, batch);
    let passes = |decision: &u32| passes(snapshot.policy.decision(*decision), egress.policy);
    if results.malformed == 0 && results.decisions[..batch.len()].iter().all(passes) {
        for (decision, mbuf) in results.decisions.iter().zip(batch.as_mut_slice()) {
            if let Some(hits) = snapshot.hits.get(*decision as usize) {
                hits.add(1, mbuf.pkt_len().into());
            }
            if let Some(queue) = snapshot.policy.decision(*decision).queue {
                queue::set(mbuf, queue);
            }
        }
        return;
    }
    let mut passed = Batch::new();
    for (n, mbuf) in batch.drain().enumerate() {
        let mut one = Batch::new();
        let _ = one.push(mbuf);
        if results.malformed >> n & 1 == 1 {
            let why = one.as_slice().first().and_then(|mbuf| key_of(mbuf).err());
            dp.drop_at_port(egress.out, why.map_or(DropReason::Malformed, DropReason::from), &mut one);
        } else {
            check_one(dp, egress, results.decisions[n], &mut one);
        }
        passed.append(&mut one);
    }
    batch.append(&mut passed);
}

/// Finds the decisions for packets to send.
fn look_up(dp: &mut Datapath, egress: &Egress<'_>, batch: &Batch) -> EgressResults {
    let (policy, packets) = (&egress.cx.snapshot.policy, batch.as_slice());
    let class = |index: usize| egress.policy.class(PortId(packets[index].port().0));
    let count = batch.len().min(BURST);
    let mut results = EgressResults { decisions: [DENY; BURST], malformed: 0 };
    // Packets whose ingress ports have the same class share a rule list.
    let alike = (1..count).all(|index| class(index) == class(0));
    let lookup = egress.policy.lookups.get(usize::from(class(0))).filter(|_| alike);
    let proven = lookup.map_or(0, |lookup| find_unmatched(lookup, packets, &mut results.decisions));
    let rest = PacketSet::of(!proven & first_bits(count));
    let (mut keys, mut decisions) = ([FlowKey::EMPTY; BURST], [DENY; BURST]);
    for (key, index) in keys.iter_mut().zip(rest.iter()) {
        match key_of(&packets[index]) {
            Ok(read) => *key = policy.used.mask(read),
            Err(_) => results.malformed |= 1 << index,
        }
    }
    let class = |nth: usize| class(rest.list()[nth].into());
    let mut first = 0;
    while first < rest.count() {
        // Consecutive packets whose ingress ports have the same class.
        let of = class(first);
        let end = (first..rest.count()).find(|nth| class(*nth) != of).unwrap_or(rest.count());
        if egress.policy.lookups.get(usize::from(of)).is_some() {
            decide(dp, (egress, of), &keys[first..end], &mut decisions[first..end]);
        }
        first = end;
    }
    for (decision, index) in decisions.iter().zip(rest.iter()) {
        results.decisions[index] = *decision;
    }
    results
}

/// Finds the decisions for packets of one class: in the flow cache, else by the rules.
fn decide(dp: &mut Datapath, (egress, class): (&Egress<'_>, u16), keys: &[FlowKey], decisions: &mut [u32]) {
    let Some(lookup) = egress.policy.lookups.get(usize::from(class)) else { return };
    let Some(port) = egress.policy.cached.map(|first| first + class) else {
        return lookup.decide(keys, decisions);
    };
    let moment = Moment { generation: egress.cx.snapshot.policy.generation, now: dp.clock.tick };
    let cache = &mut dp.flows.cache;
    let mut slots = [Slot::FIRST; BURST];
    let hits = cache.find(port, keys, moment, &mut slots[..keys.len()]);
    let (mut new, mut indexes, mut count) = ([FlowKey::EMPTY; BURST], [0u8; BURST], 0);
    for (n, key) in keys.iter().enumerate() {
        if hits >> n & 1 == 1 {
            decisions[n] = cache.hit(slots[n], 1, 0, moment.now).decision;
        } else {
            (new[count], indexes[count]) = (*key, n as u8);
            count += 1;
        }
    }
    let mut decided = [DENY; BURST];
    lookup.decide(&new[..count], &mut decided[..count]);
    let extra = PackedAction::AS_DECIDED.to_cached();
    for ((key, decision), n) in new.iter().zip(decided).zip(&indexes[..count]) {
        decisions[usize::from(*n)] = decision;
        cache.insert(port, key, New { decision, extra, lifetime: Options::NEVER }, moment);
    }
}

fn check_one(dp: &mut Datapath, egress: &Egress<'_>, number: u32, one: &mut Batch) {
    let Egress { cx, policy, out } = *egress;
    let Some(mbuf) = one.as_mut_slice().first_mut() else { return };
    let (from, length) = (PortId(mbuf.port().0), mbuf.pkt_len());
    if let Some(hits) = cx.snapshot.hits.get(number as usize) {
        hits.add(1, length.into());
    }
    let decision = cx.snapshot.policy.decision(number);
    if let Some(queue) = decision.queue {
        queue::set(mbuf, queue);
    }
    if let Some(extras) = &decision.extras {
        for meter in &extras.meters {
            police(dp, meter, out, one);
        }
        for change in &extras.set_vlan {
            set_vlan(dp, *change, out, one);
        }
        for to in extras.mirrors.iter().filter(|to| **to != out) {
            mirror(dp, *to, cx.memory, one);
        }
    }
    match decision.outcome.resolved(Outcome::Allow, policy.undecided) {
        Outcome::Drop(reason) => dp.drop_at_port(out, reason, one),
        Outcome::Reject => reject(dp, Origin::of(cx, from), one),
        // Egress rules only allow or deny: the configuration permits no other actions.
        Outcome::Allow
        | Outcome::Undecided
        | Outcome::Port(_)
        | Outcome::Chain(_)
        | Outcome::Router(_)
        | Outcome::Normal => {}
    }
}

/// Finds packets that match no rule (bit mask), and fills in the decision for them.
fn find_unmatched(lookup: &Lookup, packets: &[Mbuf], decisions: &mut [u32; BURST]) -> u64 {
    let Some(table) = &lookup.prefilter else { return 0 };
    *decisions = [lookup.unmatched(table); BURST];
    prefilter(table, packets, |_, _, _| ()).proven
}

/// Whether packets of a decision leave with the same bytes.
fn passes(decision: &Decision, egress: &EgressPolicy) -> bool {
    let outcome = decision.outcome.resolved(Outcome::Allow, egress.undecided);
    decision.extras.is_none() && !matches!(outcome, Outcome::Drop(_) | Outcome::Reject)
}
