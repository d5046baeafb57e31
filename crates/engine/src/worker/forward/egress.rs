//! On the way out of a port that has rules or a rate of its own: what may not leave is dropped.
//!
//! What leaves may come from a chain, where NFs have changed it, so that packets are looked up once more with the key that they
//! have now. What the rules said of a key is remembered in the flow cache, under the port that it leaves by and the class of
//! the port that it came in by.

use dpdk::{Batch, Mbuf};
use netvm_flow::{Moment, New, Options, Slot};
use netvm_wire::FlowKey;

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::policy::{DENY, Decision, EgressPolicy, Lookup, Outcome, Policy};
use crate::snapshot::Snapshot;
use crate::worker::classify::lookup::{MOST, UNRESOLVED, key_of};
use crate::worker::classify::packet_set::{Places, all};
use crate::worker::classify::prefilter::screen;
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::Path;

/// In the cache, ports have numbers from here on for what leaves; below it those of [`PortId`] for what comes in.
pub(crate) const LEAVING: u16 = 1 << 15;
/// Classes that have a place in the cache; what is of another one is looked up each time.
const MOST_CLASSES: u16 = 1 << 7;
const _: () = assert!(netvm_region::MAX_PORTS <= 1 << 8);

/// What is known of packets that are to leave.
struct Leaving {
    numbers: [u32; MOST],
    /// Packets whose headers cannot be parsed, a bit each.
    malformed: u64,
}

impl Path {
    /// Takes out of the batch what may not leave by the port.
    #[cold]
    pub(crate) fn check_out(
        &mut self,
        snapshot: &Snapshot,
        egress: &EgressPolicy,
        out: PortId,
        memory: MemoryId,
        batch: &mut Batch,
    ) {
        if egress.looks && !batch.is_empty() {
            self.check_rules(snapshot, egress, out, memory, batch);
        }
        if let Some(meter) = &egress.meter {
            self.police(meter, out, batch);
        }
    }

    fn check_rules(
        &mut self,
        snapshot: &Snapshot,
        egress: &EgressPolicy,
        out: PortId,
        memory: MemoryId,
        batch: &mut Batch,
    ) {
        let found = self.look_up_out(&snapshot.policy, egress, out, batch);
        let passes = |number: &u32| passes(snapshot.policy.decision(*number), egress);
        if found.malformed == 0 && found.numbers[..batch.len()].iter().all(passes) {
            for (number, mbuf) in found.numbers.iter().zip(batch.as_slice()) {
                if let Some(hits) = snapshot.hits.get(*number as usize) {
                    hits.add(1, mbuf.pkt_len().into());
                }
            }
            return;
        }
        let mut passed = Batch::new();
        for (n, mbuf) in batch.drain().enumerate() {
            let mut one = Batch::new();
            let _ = one.push(mbuf);
            if found.malformed >> n & 1 == 1 {
                self.drop_at_port(out, DropReason::Malformed, &mut one);
            } else {
                self.check_one(snapshot, egress, found.numbers[n], out, memory, &mut one);
            }
            passed.append(&mut one);
        }
        batch.append(&mut passed);
    }

    /// The numbers of the decisions for packets that are to leave by a port.
    fn look_up_out(&mut self, policy: &Policy, egress: &EgressPolicy, out: PortId, batch: &Batch) -> Leaving {
        let packets = batch.as_slice();
        let class = |place: usize| egress.class(PortId(packets[place].port().0));
        let count = batch.len().min(MOST);
        let mut found = Leaving { numbers: [DENY; MOST], malformed: 0 };
        // Packets that came in by ports of one class share a list.
        let alike = (1..count).all(|place| class(place) == class(0));
        let lookup = egress.lookups.get(usize::from(class(0))).filter(|_| alike);
        let proven = lookup.map_or(0, |lookup| screen_out(lookup, packets, &mut found.numbers));
        let rest = Places::of(!proven & all(count));
        let (mut keys, mut numbers) = ([FlowKey::EMPTY; MOST], [DENY; MOST]);
        for (key, place) in keys.iter_mut().zip(rest.iter()) {
            match key_of(&packets[place]) {
                Ok(read) => *key = policy.used.mask(read),
                Err(_) => found.malformed |= 1 << place,
            }
        }
        let moment = Moment { generation: policy.generation, now: self.tick };
        let class = |nth: usize| class(rest.list()[nth].into());
        let mut first = 0;
        while first < rest.count() {
            // Packets in a row that came in by ports of one class.
            let of = class(first);
            let end = (first..rest.count()).find(|nth| class(*nth) != of).unwrap_or(rest.count());
            if let Some(lookup) = egress.lookups.get(usize::from(of)) {
                let (keys, numbers) = (&keys[first..end], &mut numbers[first..end]);
                self.decide_out(lookup, place(out, of), keys, numbers, moment);
            }
            first = end;
        }
        for (number, place) in numbers.iter().zip(rest.iter()) {
            found.numbers[place] = *number;
        }
        found
    }

    /// Asks the flow cache, then for what it does not know the rules.
    fn decide_out(
        &mut self,
        lookup: &Lookup,
        place: Option<u16>,
        keys: &[FlowKey],
        numbers: &mut [u32],
        moment: Moment,
    ) {
        let Some(place) = place else { return lookup.decide(keys, numbers) };
        let cache = &mut self.flows.cache;
        let mut slots = [Slot::FIRST; MOST];
        let hits = cache.find(place, keys, moment, &mut slots[..keys.len()]);
        let (mut new, mut places, mut count) = ([FlowKey::EMPTY; MOST], [0u8; MOST], 0);
        for (n, key) in keys.iter().enumerate() {
            if hits >> n & 1 == 1 {
                numbers[n] = cache.hit(slots[n], 1, 0, moment.now).decision;
            } else {
                (new[count], places[count]) = (*key, n as u8);
                count += 1;
            }
        }
        let mut decided = [DENY; MOST];
        lookup.decide(&new[..count], &mut decided[..count]);
        for ((key, decision), n) in new.iter().zip(decided).zip(&places[..count]) {
            numbers[usize::from(*n)] = decision;
            cache.insert(place, key, New { decision, extra: UNRESOLVED, lifetime: Options::NEVER }, moment);
        }
    }

    fn check_one(
        &mut self,
        snapshot: &Snapshot,
        egress: &EgressPolicy,
        number: u32,
        out: PortId,
        memory: MemoryId,
        one: &mut Batch,
    ) {
        let Some(mbuf) = one.as_slice().first() else { return };
        let (from, length) = (PortId(mbuf.port().0), mbuf.pkt_len());
        if let Some(hits) = snapshot.hits.get(number as usize) {
            hits.add(1, length.into());
        }
        let decision = snapshot.policy.decision(number);
        if let Some(extras) = &decision.extras {
            for meter in &extras.meters {
                self.police(meter, out, one);
            }
            for change in &extras.set_vlan {
                self.set_vlan(*change, out, one);
            }
            for mirror in extras.mirrors.iter().filter(|mirror| **mirror != out) {
                self.mirror(*mirror, memory, one);
            }
        }
        match decision.outcome.resolved(Outcome::Allow, egress.undecided) {
            Outcome::Drop(reason) => self.drop_at_port(out, reason, one),
            Outcome::Reject => {
                self.reject_senders(Origin { port: from, memory, admitted: false, bytes: 0 }, one);
            }
            // Rules for the way out say only whether: the configuration has no others.
            Outcome::Allow
            | Outcome::Undecided
            | Outcome::Port(_)
            | Outcome::Chain(_)
            | Outcome::Router(_)
            | Outcome::Normal => {}
        }
    }
}

/// The packets that no rule matches, a bit each, with the number of the decision for these.
fn screen_out(lookup: &Lookup, packets: &[Mbuf], numbers: &mut [u32; MOST]) -> u64 {
    let Some(prefilter) = &lookup.prefilter else { return 0 };
    *numbers = [lookup.unmatched(prefilter); MOST];
    screen(prefilter, packets, |_, _, _| ()).proven
}

/// Whether packets of a decision leave as they are.
fn passes(decision: &Decision, egress: &EgressPolicy) -> bool {
    let outcome = decision.outcome.resolved(Outcome::Allow, egress.undecided);
    decision.extras.is_none() && !matches!(outcome, Outcome::Drop(_) | Outcome::Reject)
}

/// The port's number in the cache for what leaves by it and came in by ports of that class.
fn place(out: PortId, class: u8) -> Option<u16> {
    let class = u16::from(class);
    (class < MOST_CLASSES).then_some(LEAVING | class << 8 | out.0)
}

const _: () = assert!(MOST == Batch::CAPACITY);
