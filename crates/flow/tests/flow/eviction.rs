// SPDX-License-Identifier: Apache-2.0
//! Eviction: compared with simple reference caches of eight entries, and under a scan.

use std::collections::VecDeque;

use netvm_flow::{Eviction, FlowCache, New, Options, Slot, Validity};
use netvm_wire::{Address, EtherType, FlowKey, IpProto};
use proptest::collection::vec;
use proptest::prelude::*;

const NOW: Validity = Validity { generation: 0, now: 0 };
const NEW: New = New { decision: 0, extra: 0, lifetime: Options::NEVER };

fn key(n: u32) -> FlowKey {
    FlowKey {
        source: Address::from_v4_bits(n),
        ether_type: EtherType::IPV4,
        protocol: IpProto::UDP,
        ..FlowKey::EMPTY
    }
}

fn cache(entries: u32, eviction: Eviction) -> FlowCache {
    FlowCache::new(&Options { entries, eviction, idle: Options::NEVER }).unwrap()
}

/// Looks up a flow and inserts it on a miss; true if it hit.
fn packet(cache: &mut FlowCache, flow: u32) -> bool {
    let found = cache.find(3, &[key(flow)], NOW, &mut [Slot::FIRST]) == 1;
    if !found {
        cache.insert(3, &key(flow), NEW, NOW);
    }
    found
}

/// Flows, most recently used last.
#[derive(Default)]
struct LeastRecentlyUsed {
    order: VecDeque<u32>,
    room: usize,
}

impl LeastRecentlyUsed {
    fn packet(&mut self, flow: u32) -> bool {
        let place = self.order.iter().position(|known| *known == flow);
        if let Some(place) = place {
            self.order.remove(place);
        } else if self.order.len() == self.room {
            self.order.pop_front();
        }
        self.order.push_back(flow);
        place.is_some()
    }
}

/// Eight flows in a circle with their usage counts, the victim hand and the ageing hand.
#[derive(Default)]
struct Clock {
    circle: Vec<(u32, u32)>,
    hand: usize,
    aged: usize,
}

impl Clock {
    fn packet(&mut self, flow: u32) -> bool {
        if let Some(place) = self.circle.iter_mut().find(|(known, _)| *known == flow) {
            place.1 = 3;
            return true;
        }
        if self.circle.len() < 8 {
            self.circle.push((flow, 0));
            return false;
        }
        self.circle[self.aged].1 = self.circle[self.aged].1.saturating_sub(1);
        self.aged = (self.aged + 1) % 8;
        let least_used = self.circle.iter().map(|(_, usage)| *usage).min().unwrap();
        self.circle.iter_mut().for_each(|(_, usage)| *usage -= least_used);
        while self.circle[self.hand].1 > 0 {
            self.hand = (self.hand + 1) % 8;
        }
        self.circle[self.hand] = (flow, 0);
        self.hand = (self.hand + 1) % 8;
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_set_is_lru_exactly(flows in vec(0u32..14, 0..400)) {
        let mut reference = LeastRecentlyUsed { room: 8, ..LeastRecentlyUsed::default() };
        let mut cache = cache(8, Eviction::Lru);
        for flow in flows {
            prop_assert_eq!(packet(&mut cache, flow), reference.packet(flow));
        }
    }

    #[test]
    fn a_set_is_clock_exactly(flows in vec(0u32..14, 0..400)) {
        let (mut cache, mut reference) = (cache(8, Eviction::Clock), Clock::default());
        for flow in flows {
            prop_assert_eq!(packet(&mut cache, flow), reference.packet(flow));
        }
    }
}

/// A reproducible pseudo-random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// Hits per 1,000 packets of 1,000 busy flows, with `scan` packets of new flows for each.
fn hits_under_scan(entries: u32, scan: u32) -> u32 {
    let mut cache = cache(entries, Eviction::Clock);
    let mut random = Random(1);
    for flow in (0..1000).chain(0..1000) {
        packet(&mut cache, flow);
    }
    let (mut hits, mut packets) = (0, 0);
    for new in 0..10 * entries {
        packet(&mut cache, 1_000_000 + new);
        if new % scan == 0 {
            hits += u32::from(packet(&mut cache, random.below(1000)));
            packets += 1;
        }
    }
    hits * 1000 / packets
}

#[test]
fn a_scan_of_ten_times_the_capacity_does_not_evict_busy_flows() {
    for (entries, scan) in [(4096, 1), (32_768, 8), (131_072, 32)] {
        let hits = hits_under_scan(entries, scan);
        println!("{entries} entries, {scan} packets of the scan to one of 1,000 flows: {hits} of 1,000 hit");
        assert!(hits > 990, "{hits}");
    }
}

#[test]
fn flows_with_one_packet_are_evicted_before_flows_with_two() {
    let mut cache = cache(8, Eviction::Clock);
    (0..8).for_each(|flow| assert!(!packet(&mut cache, flow)));
    assert!([0, 1, 2, 4, 5, 6, 7].into_iter().all(|flow| packet(&mut cache, flow)));
    packet(&mut cache, 100);
    assert!((0..8).all(|flow| flow == 3 || packet(&mut cache, flow)), "flow 3 went");
    assert_eq!(cache.counters().evictions, 1);
}

/// Hit rates of 1024 entries with LRU, in sets of eight and in one set of 1024 as in the paper's hardware.
fn beside_the_paper(flows: u32) -> (f64, f64) {
    const PACKETS: u32 = 200_000;
    let mut cache = cache(1024, Eviction::Lru);
    let mut whole = LeastRecentlyUsed { room: 1024, ..LeastRecentlyUsed::default() };
    let mut random = Random(7);
    let (mut sets, mut whole_hits) = (0u32, 0u32);
    for _ in 0..PACKETS {
        // A few flows have most packets.
        let flow = random.below(flows).min(random.below(flows));
        sets += u32::from(packet(&mut cache, flow));
        whole_hits += u32::from(whole.packet(flow));
    }
    (f64::from(sets) / f64::from(PACKETS), f64::from(whole_hits) / f64::from(PACKETS))
}

#[test]
fn sets_of_eight_are_close_to_the_paper() {
    for (flows, most) in [(256, 0.005), (512, 0.02), (900, 0.08), (1500, 0.08), (4000, 0.06)] {
        // The flows that share a set differ in each run.
        let runs = [(); 8].map(|()| beside_the_paper(flows));
        let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let (sets, whole_hits) = (mean(|run| run.0), mean(|run| run.1));
        println!(
            "{flows} flows: {:.1} % hit, {:.1} % with one set of 1024",
            sets * 100.0,
            whole_hits * 100.0
        );
        assert!(whole_hits - sets < most, "{flows} flows: {sets} and {whole_hits}");
    }
}

#[test]
fn a_slot_and_a_serial_identify_a_flow_until_it_is_replaced() {
    let mut cache = cache(8, Eviction::Lru);
    let slots: Vec<Slot> = (0..8).map(|n| cache.insert(3, &key(n), NEW, NOW)).collect();
    let names: Vec<(u32, u32)> =
        slots.iter().map(|slot| (slot.index() as u32, cache.entry(*slot).serial)).collect();
    for (n, (place, serial)) in (0..).zip(&names) {
        assert_eq!(cache.entry_of(*place, *serial).map(netvm_flow::Entry::key), Some(key(n)));
        assert!(cache.entry_of(*place, serial.wrapping_add(1)).is_none());
        assert_eq!(cache.slot_of(3, &key(n)), Some(slots[n as usize]));
    }
    assert!(cache.entry_of(8, 0).is_none() && cache.entry_of(u32::MAX, 0).is_none());
    assert!(cache.slot_of(4, &key(0)).is_none());
    // Inserting the same flow again changes the serial; another flow in the slot has another serial, too.
    cache.insert(3, &key(1), NEW, NOW);
    cache.insert(3, &key(100), NEW, NOW);
    assert!(
        cache.entry_of(names[0].0, names[0].1).is_none() && cache.entry_of(names[1].0, names[1].1).is_none()
    );
    assert!(cache.remove(3, &key(2)) && cache.entry_of(names[2].0, names[2].1).is_none());
}
