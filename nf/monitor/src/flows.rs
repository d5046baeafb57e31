// SPDX-License-Identifier: Apache-2.0
//! Counters of flows and protocols, and the snapshots that reports are made of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use netvm_flowmon::{AnyMeter, Endpoints, Entry, Kind};
use netvm_wire::{EtherType, FiveTuple, Headers, IpProto};
use serde::Serialize;

use crate::Rank;

/// Packets and bytes. Bytes count whole frames without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    #[inline]
    fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// One direction of a flow. Times are cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its packets and bytes.
    pub amount: Amount,
    /// Time of the first packet.
    pub first: u64,
    /// Time of the last packet.
    pub last: u64,
}

/// Amounts by protocol; each packet counts in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// TCP.
    pub tcp: Amount,
    /// UDP.
    pub udp: Amount,
    /// SCTP.
    pub sctp: Amount,
    /// ICMP and ICMPv6.
    pub icmp: Amount,
    /// Other protocols over IP.
    pub other_ip: Amount,
    /// ARP.
    pub arp: Amount,
    /// Neither IP nor ARP.
    pub other: Amount,
    /// Truncated or inconsistent.
    pub malformed: Amount,
}

impl Totals {
    pub(crate) const fn parts(&self) -> [Amount; 8] {
        let Self { tcp, udp, sctp, icmp, other_ip, arp, other, malformed } = *self;
        [tcp, udp, sctp, icmp, other_ip, arp, other, malformed]
    }

    pub(crate) fn add_all(&mut self, more: &Self) {
        let Self { tcp, udp, sctp, icmp, other_ip, arp, other, malformed } = self;
        let mine = [tcp, udp, sctp, icmp, other_ip, arp, other, malformed];
        for (mine, theirs) in mine.into_iter().zip(more.parts()) {
            mine.add_all(theirs);
        }
    }

    #[inline]
    fn of(&mut self, headers: &Headers) -> &mut Amount {
        let key = headers.key();
        match (key.is_ip(), key.protocol) {
            (true, IpProto::TCP) => &mut self.tcp,
            (true, IpProto::UDP) => &mut self.udp,
            (true, IpProto::SCTP) => &mut self.sctp,
            (true, IpProto::ICMP | IpProto::ICMPV6) => &mut self.icmp,
            (true, _) => &mut self.other_ip,
            (false, _) if key.ether_type == EtherType::ARP => &mut self.arp,
            (false, _) => &mut self.other,
        }
    }
}

/// A thread's counters.
#[derive(Debug)]
pub struct Flows {
    meter: AnyMeter,
    totals: Totals,
}

impl Flows {
    /// Counts flows with `meter`.
    #[must_use]
    pub fn new(meter: AnyMeter) -> Self {
        Self { meter, totals: Totals::default() }
    }

    /// Counts a packet that came in by `ingress` at time `now`. It is in its flow after [`Flows::commit`].
    #[inline]
    pub fn count(&mut self, headers: &Headers, frame: &[u8], at: (u16, u64)) {
        self.totals.of(headers).add(frame.len());
        self.meter.packet(frame, Some(headers), at);
    }

    /// Counts a malformed packet.
    #[inline]
    pub fn count_malformed(&mut self, frame: &[u8], at: (u16, u64)) {
        self.totals.malformed.add(frame.len());
        self.meter.packet(frame, None, at);
    }

    /// Ends a burst: counts its packets by flow, and checks `slots` of the table for time-outs.
    #[inline]
    pub fn commit(&mut self, slots: usize, now: u64) {
        self.meter.commit();
        self.meter.expire(slots, now);
    }

    /// Sends the records of all flows; waits for the exporter with `wait`.
    pub(crate) fn finish(&mut self, wait: impl FnMut() -> bool) {
        self.meter.finish(wait);
    }

    /// Totals by protocol.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Slots of the table.
    pub(crate) fn slots(&self) -> usize {
        self.meter.entries().len()
    }

    /// Flows in the table, evicted flows, records, and lost records.
    #[must_use]
    pub fn counts(&self) -> [u64; 4] {
        let counts = self.meter.counts();
        [self.meter.flows() as u64, counts.evicted, counts.records, counts.lost_records]
    }
}

/// One direction of an IP flow, if it has packets.
fn direction(entry: &Entry, reverse: bool) -> Option<(FiveTuple, Flow)> {
    let amount = entry.amount(reverse);
    match entry.endpoints(reverse) {
        Endpoints::Ip(tuple) if amount.packets > 0 => {
            let amount = Amount { packets: amount.packets, bytes: amount.bytes };
            Some((tuple, Flow { amount, first: entry.first, last: entry.last }))
        }
        _ => None,
    }
}

/// A thread's share of a report.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub(crate) thread: u16,
    pub(crate) totals: Totals,
    pub(crate) tracked: u64,
    pub(crate) evicted: u64,
    pub(crate) evicted_amount: Amount,
    pub(crate) largest: Vec<(FiveTuple, Flow)>,
}

/// Scans the table in parts, so that no packet waits, and keeps the largest flows.
#[derive(Debug)]
pub(crate) struct FlowScan {
    from: usize,
    keep: usize,
    by: Rank,
    /// Size, slot and direction; smallest on top.
    largest: BinaryHeap<Reverse<(u64, usize, bool)>>,
}

impl FlowScan {
    pub(crate) fn new(keep: usize, by: Rank) -> Self {
        Self { from: 0, keep, by, largest: BinaryHeap::with_capacity(keep + 1) }
    }

    /// Scans the next `slots` of the table; true after the last part.
    pub(crate) fn step(&mut self, flows: &Flows, slots: usize) -> bool {
        let entries = flows.meter.entries();
        let end = self.from.saturating_add(slots).min(entries.len());
        for (entry, slot) in entries.get(self.from..end).unwrap_or_default().iter().zip(self.from..) {
            if !entry.is_used() || entry.key.kind() == Kind::Ethernet {
                continue;
            }
            for reverse in [false, true] {
                let netvm_flowmon::Amount { packets, bytes, .. } = entry.amount(reverse);
                let size = self.by.of(packets, bytes);
                let beyond = self.largest.len() >= self.keep;
                if size == 0
                    || beyond && self.largest.peek().is_none_or(|Reverse((smallest, ..))| size <= *smallest)
                {
                    continue;
                }
                self.largest.push(Reverse((size, slot, reverse)));
                if beyond {
                    self.largest.pop();
                }
            }
        }
        self.from = if end < entries.len() { end } else { 0 };
        self.from == 0
    }

    /// The snapshot, with current amounts: a flow that has ended meanwhile has given its slot to another.
    pub(crate) fn finish(self, flows: &Flows, thread: u16) -> Snapshot {
        let entries = flows.meter.entries();
        let found = self.largest.into_iter().filter_map(|Reverse((_, slot, reverse))| {
            direction(entries.get(slot).filter(|entry| entry.is_used())?, reverse)
        });
        let counts = flows.meter.counts();
        let evicted = counts.evicted_amount;
        Snapshot {
            thread,
            totals: flows.totals,
            tracked: flows.meter.flows() as u64,
            evicted: counts.evicted,
            evicted_amount: Amount { packets: evicted.packets, bytes: evicted.bytes },
            largest: found.collect(),
        }
    }
}

impl Rank {
    pub(crate) const fn of(self, packets: u64, bytes: u64) -> u64 {
        match self {
            Self::Bytes => bytes,
            Self::Packets => packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_flowmon::{Settings, TableKind};
    use netvm_nf_common::testing;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn frame(flow: u16, payload: usize) -> Vec<u8> {
        testing::udp(&format!("10.0.0.1:{flow}"), "10.0.0.2:53", &vec![0; payload])
    }

    proptest! {
        /// Compares with an unbounded map: table entries are right, all others were evicted, and nothing is lost.
        #[test]
        fn counts_add_up(
            packets in prop::collection::vec((0u16..40, 0usize..200), 1..300),
            capacity in 1usize..50,
            keep in 0usize..20,
            slots in 1usize..20,
            bytes: bool,
        ) {
            let by = if bytes { Rank::Bytes } else { Rank::Packets };
            let settings = Settings { idle: 1, active: 1, sampling: 1, names: 0 };
            let mut flows = Flows::new(AnyMeter::new(TableKind::Tagged, capacity, settings, None));
            let mut model: HashMap<FiveTuple, Amount> = HashMap::new();
            let mut total = Amount::default();
            for (now, (flow, payload)) in (0..).zip(packets) {
                let frame = frame(flow, payload);
                let headers = netvm_wire::parse(&frame).unwrap();
                flows.count(&headers, &frame, (1, now));
                total.add(frame.len());
                model.entry(headers.five_tuple().unwrap()).or_default().add(frame.len());
            }
            flows.commit(usize::MAX, u64::MAX);
            prop_assert_eq!(flows.totals().udp, total);
            let mut whole = FlowScan::new(1000, by);
            prop_assert!(whole.step(&flows, usize::MAX));
            let whole = whole.finish(&flows, 0);
            prop_assert_eq!(whole.largest.len() as u64, whole.tracked);
            let mut sum = whole.evicted_amount;
            for (tuple, flow) in &whole.largest {
                sum.add_all(flow.amount);
                let known = model[tuple];
                prop_assert!(flow.amount.packets <= known.packets && flow.amount.bytes <= known.bytes);
                if whole.evicted == 0 {
                    prop_assert_eq!(flow.amount, known);
                }
            }
            prop_assert_eq!(sum, total);

            let mut scan = FlowScan::new(keep, by);
            while !scan.step(&flows, slots) {}
            let of = |flow: &Flow| by.of(flow.amount.packets, flow.amount.bytes);
            let mut sizes: Vec<_> =
                scan.finish(&flows, 0).largest.iter().map(|(_, flow)| of(flow)).collect();
            let mut all: Vec<_> = whole.largest.iter().map(|(_, flow)| of(flow)).collect();
            sizes.sort_unstable_by_key(|size| Reverse(*size));
            all.sort_unstable_by_key(|size| Reverse(*size));
            all.truncate(keep);
            prop_assert_eq!(sizes, all);
        }
    }

    #[test]
    fn every_kind_has_its_total() {
        let settings = Settings { idle: 1, active: 1, sampling: 1, names: 0 };
        let mut flows = Flows::new(AnyMeter::new(TableKind::Null, 100, settings, None));
        for frame in testing::every_kind() {
            flows.count(&netvm_wire::parse(&frame).unwrap(), &frame, (0, 0));
        }
        flows.count_malformed(&[0; 13], (0, 0));
        let totals = flows.totals();
        let packets = totals.parts().map(|amount| amount.packets);
        assert_eq!(packets, [8, 8, 0, 2, 2, 3, 1, 1]);
        assert_eq!(totals.malformed.bytes, 13);
    }
}
