// SPDX-License-Identifier: Apache-2.0
//! Compares the cache with an unbounded map: no wrong decision, and no miss without a counted reason.

use std::collections::HashMap;

use netvm_flow::{Eviction, FlowCache, New, Options, Slot, Validity};
use netvm_wire::{Address, EtherType, FlowKey, IpProto};
use proptest::collection::vec;
use proptest::prelude::*;

/// Few flows, so that they collide.
const FLOWS: u32 = 48;

fn key(n: u32) -> FlowKey {
    FlowKey {
        source: Address::from_v4_bits(n),
        ether_type: EtherType::IPV4,
        protocol: IpProto::UDP,
        source_port: 1000,
        ..FlowKey::EMPTY
    }
}

#[derive(Clone, Debug)]
enum Step {
    Burst { port: u16, flows: Vec<u32>, new: bool },
    Insert { port: u16, flow: u32, lifetime: u32 },
    Remove { port: u16, flow: u32 },
    Wait(u32),
    NewPolicy,
}

fn step() -> impl Strategy<Value = Step> {
    let run = (0..FLOWS, 1usize..4).prop_map(|(flow, times)| vec![flow; times]);
    let flows = vec(run, 0..30).prop_map(|runs| runs.concat());
    let lifetime = prop_oneof![Just(Options::NEVER), 0u32..40];
    prop_oneof![
        6 => (0u16..2, flows, any::<bool>()).prop_map(|(port, flows, new)| Step::Burst { port, flows, new }),
        3 => (0u16..2, 0..FLOWS, lifetime).prop_map(|(port, flow, lifetime)| Step::Insert { port, flow, lifetime }),
        1 => (0u16..2, 0..FLOWS).prop_map(|(port, flow)| Step::Remove { port, flow }),
        2 => (0u32..30).prop_map(Step::Wait),
        1 => Just(Step::NewPolicy),
    ]
}

/// The decision for a flow.
#[derive(Clone, Copy, Debug)]
struct Known {
    decision: u32,
    generation: u32,
    lifetime: u32,
    created: u64,
    last_used: u64,
    packets: u64,
    bytes: u64,
}

struct Model {
    idle: u32,
    generation: u32,
    /// Ticks that never wrap.
    now: u64,
    known: HashMap<(u16, u32), Known>,
    decisions: u32,
    /// Number of valid flows that missed.
    lost: u64,
    looked_for: u64,
}

impl Model {
    fn validity(&self) -> Validity {
        Validity { generation: self.generation, now: self.now as u32 }
    }

    fn counts(&self, known: &Known) -> bool {
        let over = self.idle != Options::NEVER && self.now - known.last_used > u64::from(self.idle);
        let ended = known.lifetime != Options::NEVER && self.now - known.created >= u64::from(known.lifetime);
        known.generation == self.generation && !over && !ended
    }

    fn insert(
        &mut self,
        cache: &mut FlowCache,
        port: u16,
        flow: u32,
        lifetime: u32,
    ) -> Result<(), TestCaseError> {
        self.decisions += 1;
        let new = New { decision: self.decisions, extra: flow, lifetime };
        let slot = cache.insert(port, &key(flow), new, self.validity());
        let entry = cache.entry(slot);
        prop_assert_eq!((entry.key(), entry.port(), entry.decision), (key(flow), port, self.decisions));
        let known = Known {
            decision: self.decisions,
            generation: self.generation,
            lifetime,
            created: self.now,
            last_used: self.now,
            packets: 0,
            bytes: 0,
        };
        self.known.insert((port, flow), known);
        Ok(())
    }

    fn burst(
        &mut self,
        cache: &mut FlowCache,
        port: u16,
        flows: &[u32],
        new: bool,
    ) -> Result<(), TestCaseError> {
        let flows = &flows[..flows.len().min(netvm_flow::MAX_BURST)];
        let keys: Vec<_> = flows.iter().copied().map(key).collect();
        let mut slots = vec![Slot::FIRST; flows.len()];
        let found = cache.find(port, &keys, self.validity(), &mut slots);
        self.looked_for += flows.len() as u64;
        for (n, (flow, slot)) in flows.iter().zip(&slots).enumerate() {
            let known = self.known.get(&(port, *flow)).copied().filter(|known| self.counts(known));
            if found >> n & 1 == 0 {
                if known.is_some() {
                    self.known.remove(&(port, *flow));
                    self.lost += 1;
                }
                continue;
            }
            let mut known =
                known.ok_or_else(|| TestCaseError::fail(format!("flow {flow} has nothing to hit")))?;
            let verdict = cache.hit(*slot, 1, 100 + n as u64, self.now as u32);
            prop_assert_eq!((verdict.decision, verdict.extra), (known.decision, *flow));
            known.packets += 1;
            known.bytes += 100 + n as u64;
            known.last_used = self.now;
            prop_assert_eq!(
                (cache.entry(*slot).packets, cache.entry(*slot).bytes),
                (known.packets, known.bytes)
            );
            self.known.insert((port, *flow), known);
        }
        prop_assert_eq!(if flows.len() == 64 { 0 } else { found >> flows.len() }, 0);
        for (n, flow) in flows.iter().enumerate() {
            if new && found >> n & 1 == 0 {
                self.insert(cache, port, *flow, Options::NEVER)?;
            }
        }
        Ok(())
    }

    /// Every listed entry is in the model; model entries not listed were evicted.
    fn list(&mut self, cache: &FlowCache, budget: usize) -> Result<(), TestCaseError> {
        let mut listed = 0;
        for cursor in (0..cache.capacity()).step_by(budget) {
            for (slot, entry) in cache.entries_from(cursor, budget, self.validity()) {
                prop_assert!((cursor..cursor + budget).contains(&slot.index()));
                let known = self.known.get(&(entry.port(), entry.extra)).copied();
                let known = known.filter(|known| self.counts(known) && key(entry.extra) == entry.key());
                let known = known.map(|known| (known.decision, known.packets, known.bytes));
                prop_assert_eq!(known, Some((entry.decision, entry.packets, entry.bytes)));
                listed += 1;
            }
        }
        let live = self.known.values().filter(|known| self.counts(known)).count() as u64;
        let counters = cache.counters();
        prop_assert!(live - listed + self.lost <= counters.evictions, "{live} {listed} {counters:?}");
        prop_assert_eq!(counters.hits + counters.misses, self.looked_for);
        prop_assert!(counters.stale + counters.expired <= counters.misses);
        prop_assert_eq!(counters.inserted, u64::from(self.decisions));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hit_is_right_and_a_miss_has_a_reason(
        steps in vec(step(), 1..60),
        entries in prop_oneof![1u32..=8, 9u32..=64, Just(128)],
        eviction in prop_oneof![Just(Eviction::Clock), Just(Eviction::Lru)],
        idle in prop_oneof![Just(Options::NEVER), 0u32..40],
        now in prop_oneof![Just(0u64), u64::from(u32::MAX) - 100..u64::from(u32::MAX)],
        generation in prop_oneof![Just(0u32), u32::MAX - 2..=u32::MAX],
        budget in 1usize..70,
    ) {
        let mut cache = FlowCache::new(&Options { entries, eviction, idle }).unwrap();
        prop_assert_eq!(cache.capacity(), entries.next_power_of_two().max(8) as usize);
        let known = HashMap::new();
        let mut model = Model { idle, generation, now, known, decisions: 0, lost: 0, looked_for: 0 };
        for step in steps {
            match step {
                Step::Burst { port, flows, new } => model.burst(&mut cache, port, &flows, new)?,
                Step::Insert { port, flow, lifetime } => model.insert(&mut cache, port, flow, lifetime)?,
                Step::Remove { port, flow } => {
                    let (was, known) = (cache.remove(port, &key(flow)), model.known.remove(&(port, flow)));
                    prop_assert!(!was || known.is_some());
                    model.lost += u64::from(known.is_some_and(|known| model.counts(&known)) && !was);
                }
                Step::Wait(ticks) => model.now += u64::from(ticks),
                Step::NewPolicy => model.generation = model.generation.wrapping_add(1),
            }
            model.list(&cache, budget)?;
        }
        // With room for every flow of both ports in every set, nothing is evicted.
        if entries == 128 && cache.counters().evictions == 0 {
            prop_assert_eq!(model.lost, 0);
        }
    }
}
