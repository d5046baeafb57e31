// SPDX-License-Identifier: Apache-2.0
//! What is known of the flows that go through a program: by which side they enter, and with which MAC addresses. In:
//! the packets that enter. Out: the same for packets that come back, and for the program's own ones.
//!
//! All workers share a table of fixed size without locks. A set has eight entries: an array of heads on one cache line,
//! and behind it the addresses. When a set is full, its oldest entry goes.
//!
//! ```text
//!  head      │ tag: 40 bits │ last packet: 16 bits (seconds) │ … │ side │ 1 │
//!  addresses │ MAC address: 48 bits │ tag: 16 bits │    source, then destination
//! ```
//!
//! Two workers may write an entry at a time. The address words have a part of the tag, so that what is read belongs to
//! one flow, or the flow is unknown.
//!
//! Cost: a key, a hash and one cache line for a packet of a known flow, two with addresses; three entries for a new
//! one.

use core::sync::atomic::{AtomicU64, Ordering};

use netvm_wire::{FlowHasher, FlowKey, MacAddr};

/// Sets of a table.
const SETS: usize = 8192;
/// Entries of a set.
const WAYS: usize = 8;
/// Seconds without a packet after which a flow may enter by the other side: until then, a packet that somebody forges
/// does not turn a flow round.
const KEEP_SIDE: u16 = 60;

const USED: u64 = 1;
const SIDE: u64 = 2;
const SECONDS_SHIFT: u32 = 8;
const TAG_SHIFT: u32 = 24;

/// The side by which packets enter: 0 is the left one.
pub(crate) type Side = u8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    heads: [AtomicU64; WAYS],
    addresses: [[AtomicU64; 2]; WAYS],
}

/// What is known of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// By which side packets of its direction enter.
    pub(crate) side: Side,
    /// Their source and destination MAC addresses.
    pub(crate) macs: [MacAddr; 2],
}

impl Known {
    /// Of the other direction.
    const fn reversed(self) -> Self {
        let [source, destination] = self.macs;
        Self { side: 1 - self.side, macs: [destination, source] }
    }
}

/// The flows of one instance of a program.
#[derive(Debug)]
pub(crate) struct ProgramFlows {
    sets: Box<[Set]>,
    hasher: FlowHasher,
}

impl ProgramFlows {
    pub(crate) fn new() -> Self {
        Self { sets: (0..SETS).map(|_| Set::default()).collect(), hasher: FlowHasher::new() }
    }

    /// Notes a packet that enters by a side, in this second.
    #[inline]
    pub(crate) fn enter(&self, key: &FlowKey, side: Side, now: u16) {
        let known = Known { side, macs: [key.source_mac, key.destination_mac] };
        if self.note(self.flow(key), known, now) {
            self.note(self.host(key, false), known, now);
            self.note(self.host(key, true), known, now);
        }
    }

    /// What is known of a packet that comes back, or is the program's own: its flow; else the other direction of it;
    /// else what enters for its destination, or comes from there.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey) -> Option<Known> {
        self.read(self.flow(key)).or_else(|| self.find_own(key))
    }

    #[cold]
    fn find_own(&self, key: &FlowKey) -> Option<Known> {
        let reversed = FlowKey {
            source: key.destination,
            destination: key.source,
            source_port: key.destination_port,
            destination_port: key.source_port,
            source_mac: key.destination_mac,
            destination_mac: key.source_mac,
            ..*key
        };
        let answered = || self.read(self.flow(&reversed)).map(Known::reversed);
        let to_destination = || self.read(self.host(key, true));
        let from_destination = || self.read(self.host(&reversed, false)).map(Known::reversed);
        answered().or_else(to_destination).or_else(from_destination)
    }

    #[inline]
    fn flow(&self, key: &FlowKey) -> u64 {
        match key.five_tuple() {
            Some(tuple) => self.hasher.plain(&tuple),
            None => {
                let [from, to] = [key.source_mac, key.destination_mac].map(number_of);
                self.hasher.words([from, to, key.ether_type.0.into(), 0, 1])
            }
        }
    }

    /// The key of a host: the destination, or else the source.
    fn host(&self, key: &FlowKey, is_destination: bool) -> u64 {
        let (address, mac) = match is_destination {
            true => (key.destination, key.destination_mac),
            false => (key.source, key.source_mac),
        };
        let [high, low] = if key.is_ip() { address.words() } else { [0, number_of(mac)] };
        self.hasher.words([high, low, u64::from(is_destination), u64::from(key.is_ip()), 2])
    }

    fn set(&self, hash: u64) -> &Set {
        &self.sets[hash as usize % SETS]
    }

    /// Notes what is known under a key. Returns whether the key is new.
    #[inline]
    fn note(&self, hash: u64, known: Known, now: u16) -> bool {
        let set = self.set(hash);
        let tag = hash >> TAG_SHIFT;
        let head = tag << TAG_SHIFT
            | u64::from(now) << SECONDS_SHIFT
            | if known.side == 1 { SIDE } else { 0 }
            | USED;
        let mut oldest = (0, 0);
        for (way, place) in set.heads.iter().enumerate() {
            let there = place.load(Ordering::Relaxed);
            let age = now.wrapping_sub((there >> SECONDS_SHIFT) as u16);
            if there & USED != 0 && there >> TAG_SHIFT == tag {
                let turns_round = (there ^ head) & SIDE != 0;
                if turns_round && age < KEEP_SIDE {
                    return false;
                }
                set.write(way, hash, known);
                if there != head {
                    place.store(head, Ordering::Relaxed);
                }
                return false;
            }
            let age = if there & USED == 0 { u32::MAX } else { age.into() };
            if age >= oldest.1 {
                oldest = (way, age);
            }
        }
        set.write(oldest.0, hash, known);
        set.heads[oldest.0].store(head, Ordering::Release);
        true
    }

    #[inline]
    fn read(&self, hash: u64) -> Option<Known> {
        let set = self.set(hash);
        let is_it = |head: u64| head & USED != 0 && head >> TAG_SHIFT == hash >> TAG_SHIFT;
        let (way, head) = set
            .heads
            .iter()
            .map(|head| head.load(Ordering::Acquire))
            .enumerate()
            .find(|(_, head)| is_it(*head))?;
        let words = set.addresses[way].each_ref().map(|word| word.load(Ordering::Relaxed));
        let are_its = words.iter().all(|word| *word as u16 == part_of_tag(hash));
        let macs = words.map(|word| {
            let [a, b, c, d, e, f, ..] = word.to_be_bytes();
            MacAddr([a, b, c, d, e, f])
        });
        are_its.then_some(Known { side: Side::from(head & SIDE != 0), macs })
    }
}

impl Set {
    /// Writes the addresses of an entry, if they are others.
    #[inline]
    fn write(&self, way: usize, hash: u64, known: Known) {
        for (place, mac) in self.addresses[way].iter().zip(known.macs) {
            let word = number_of(mac) << 16 | u64::from(part_of_tag(hash));
            if place.load(Ordering::Relaxed) != word {
                place.store(word, Ordering::Relaxed);
            }
        }
    }
}

/// Bits of the tag that are not all the same in the entries of a set.
const fn part_of_tag(hash: u64) -> u16 {
    (hash >> TAG_SHIFT) as u16
}

const fn number_of(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use netvm_wire::{Address, EtherType, IpProto};

    use super::*;

    const A: u8 = 1;
    const B: u8 = 2;
    const LEFT: Side = 0;
    const RIGHT: Side = 1;

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    fn address(n: u8) -> Address {
        std::net::IpAddr::from([10, 0, 0, n]).into()
    }

    /// TCP from a port of one host to port 80 of another one.
    fn key(from: u8, to: u8, port: u16) -> FlowKey {
        FlowKey {
            ether_type: EtherType::IPV4,
            protocol: IpProto::TCP,
            source: address(from),
            destination: address(to),
            source_mac: mac(from),
            destination_mac: mac(to),
            source_port: port,
            destination_port: 80,
            ..FlowKey::EMPTY
        }
    }

    fn answer(key: &FlowKey) -> FlowKey {
        FlowKey {
            source: key.destination,
            destination: key.source,
            source_port: key.destination_port,
            destination_port: key.source_port,
            // As the program sends it.
            source_mac: mac(77),
            destination_mac: mac(78),
            ..*key
        }
    }

    #[test]
    fn a_packet_comes_back_as_it_went_in_and_an_answer_goes_to_its_sender() {
        let flows = ProgramFlows::new();
        let request = key(A, B, 1000);
        assert_eq!(flows.find(&request), None);
        flows.enter(&request, LEFT, 0);
        let changed = FlowKey { source_mac: mac(9), destination_mac: mac(8), ..request };
        assert_eq!(flows.find(&changed), Some(Known { side: LEFT, macs: [mac(A), mac(B)] }));
        // A reset of the program's own: as if the server on the right had sent it.
        let reset = Known { side: RIGHT, macs: [mac(B), mac(A)] };
        assert_eq!(flows.find(&answer(&request)), Some(reset));
    }

    #[test]
    fn own_packets_of_new_flows_go_to_where_their_addressee_is() {
        let flows = ProgramFlows::new();
        flows.enter(&key(A, B, 1000), LEFT, 0);
        let from_router = |to| key(99, to, 7);
        // To the server, as what enters for it; to the client, against what it sends.
        assert_eq!(flows.find(&from_router(B)), Some(Known { side: LEFT, macs: [mac(A), mac(B)] }));
        assert_eq!(flows.find(&from_router(A)), Some(Known { side: RIGHT, macs: [mac(B), mac(A)] }));
        assert_eq!(flows.find(&from_router(50)), None);
    }

    #[test]
    fn frames_without_ip_are_known_by_their_mac_addresses() {
        let flows = ProgramFlows::new();
        let arp = |from, to: MacAddr| FlowKey {
            ether_type: EtherType(0x806),
            source_mac: mac(from),
            destination_mac: to,
            ..FlowKey::EMPTY
        };
        flows.enter(&arp(A, MacAddr([0xff; 6])), LEFT, 0);
        flows.enter(&arp(B, mac(A)), RIGHT, 0);
        assert_eq!(flows.find(&arp(A, MacAddr([0xff; 6]))).map(|known| known.side), Some(LEFT));
        assert_eq!(flows.find(&arp(B, mac(A))).map(|known| known.side), Some(RIGHT));
        assert_eq!(flows.find(&arp(A, mac(B))).map(|known| known.side), Some(LEFT));
    }

    #[test]
    fn a_forged_packet_does_not_turn_a_flow_round_while_it_lives() {
        let flows = ProgramFlows::new();
        let flow = key(A, B, 1000);
        flows.enter(&flow, LEFT, 100);
        flows.enter(&flow, RIGHT, 100 + KEEP_SIDE - 1);
        assert_eq!(flows.find(&flow).unwrap().side, LEFT);
        // It is quiet for a minute: the host may have moved.
        flows.enter(&flow, RIGHT, 100 + KEEP_SIDE);
        assert_eq!(flows.find(&flow).unwrap().side, RIGHT);
        // The other gateway takes over.
        flows.enter(&FlowKey { source_mac: mac(5), ..flow }, RIGHT, 101 + KEEP_SIDE);
        assert_eq!(flows.find(&flow).unwrap().macs[0], mac(5));
    }

    #[test]
    fn a_scan_displaces_only_what_is_older() {
        let flows = ProgramFlows::new();
        for second in 0..20 {
            for n in 0..10_000u32 {
                let [_, b, c, d] = n.to_be_bytes();
                let source = std::net::IpAddr::from([11, b, c, d]).into();
                flows.enter(&FlowKey { source, ..key(A, B, second) }, LEFT, second);
            }
        }
        flows.enter(&key(A, B, 4000), RIGHT, 20);
        assert_eq!(flows.find(&key(A, B, 4000)).unwrap().side, RIGHT);
        // The last second's flows are there, but for those of sets with more than their share.
        let there = (0..10_000u32).filter(|n| {
            let [_, b, c, d] = n.to_be_bytes();
            let source = std::net::IpAddr::from([11, b, c, d]).into();
            flows.find(&FlowKey { source, ..key(A, B, 19) }).is_some()
        });
        let there = there.count();
        assert!(there > 9_900, "{there}");
    }

    #[test]
    fn threads_that_write_at_a_time_never_show_addresses_of_another_flow() {
        let flows = ProgramFlows::new();
        let of = |n: u8| key(n, n + 100, n.into());
        std::thread::scope(|scope| {
            for worker in 0..2u8 {
                let flows = &flows;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let n = 1 + (round * 7 % 90) as u8;
                        flows.enter(&of(n), worker & 1, round as u16);
                        if let Some(known) = flows.find(&of(n)) {
                            assert_eq!(known.macs, [mac(n), mac(n + 100)]);
                        }
                    }
                });
            }
        });
    }
}
