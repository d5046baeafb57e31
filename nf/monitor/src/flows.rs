//! Counters of flows and protocols, and the snapshots that reports are made of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use netvm_nf_common::LruTable;
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
    table: LruTable<FiveTuple, Flow>,
    totals: Totals,
    evicted: u64,
    evicted_amount: Amount,
}

impl Flows {
    /// Counts at most `capacity` flows.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            table: LruTable::new(capacity),
            totals: Totals::default(),
            evicted: 0,
            evicted_amount: Amount::default(),
        }
    }

    /// Counts a packet of `bytes`.
    #[inline]
    pub fn count(&mut self, headers: &Headers, bytes: usize, now: u64) {
        self.totals.of(headers).add(bytes);
        let Some(tuple) = headers.five_tuple() else { return };
        if let Some(flow) = self.table.get(&tuple, now) {
            flow.amount.add(bytes);
            flow.last = now;
            return;
        }
        let mut amount = Amount::default();
        amount.add(bytes);
        let flow = Flow { amount, first: now, last: now };
        if let Some((_, given_up)) = self.table.insert(tuple, flow, now) {
            self.evicted += 1;
            self.evicted_amount.add_all(given_up.amount);
        }
    }

    /// Counts a malformed packet of `bytes`.
    #[inline]
    pub fn count_malformed(&mut self, bytes: usize) {
        self.totals.malformed.add(bytes);
    }

    /// Totals by protocol.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Flows in the table, and evicted flows.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.table.len() as u64, self.evicted)
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
pub(crate) struct Gathering {
    from: usize,
    keep: usize,
    by: Rank,
    /// Smallest on top.
    largest: BinaryHeap<Reverse<(u64, FiveTuple)>>,
}

impl Gathering {
    pub(crate) fn new(keep: usize, by: Rank) -> Self {
        Self { from: 0, keep, by, largest: BinaryHeap::with_capacity(keep + 1) }
    }

    /// Scans the next `slots` of the table; true after the last part.
    pub(crate) fn step(&mut self, flows: &Flows, slots: usize) -> bool {
        let (part, next) = flows.table.part(self.from, slots);
        for (tuple, flow) in part {
            let size = self.by.of(flow.amount);
            let beyond = self.largest.len() >= self.keep;
            if beyond && self.largest.peek().is_none_or(|Reverse((smallest, _))| size <= *smallest) {
                continue;
            }
            self.largest.push(Reverse((size, *tuple)));
            if beyond {
                self.largest.pop();
            }
        }
        self.from = next.unwrap_or(0);
        next.is_none()
    }

    /// The snapshot, with current amounts.
    pub(crate) fn finish(self, flows: &Flows, thread: u16) -> Snapshot {
        let found = self.largest.into_iter().filter_map(|Reverse((_, tuple))| {
            // Skips flows evicted since they were found.
            flows.table.peek(&tuple).map(|(_, flow)| (tuple, *flow))
        });
        Snapshot {
            thread,
            totals: flows.totals,
            tracked: flows.table.len() as u64,
            evicted: flows.evicted,
            evicted_amount: flows.evicted_amount,
            largest: found.collect(),
        }
    }
}

impl Rank {
    pub(crate) const fn of(self, amount: Amount) -> u64 {
        match self {
            Self::Bytes => amount.bytes,
            Self::Packets => amount.packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let mut flows = Flows::new(capacity);
            let mut model: HashMap<FiveTuple, Amount> = HashMap::new();
            let mut total = Amount::default();
            for (now, (flow, payload)) in (0..).zip(packets) {
                let frame = frame(flow, payload);
                let headers = netvm_wire::parse(&frame).unwrap();
                flows.count(&headers, frame.len(), now);
                total.add(frame.len());
                model.entry(headers.five_tuple().unwrap()).or_default().add(frame.len());
            }
            prop_assert_eq!(flows.totals().udp, total);
            let mut sum = flows.evicted_amount;
            for (tuple, flow) in flows.table.iter() {
                sum.add_all(flow.amount);
                let whole = model[tuple];
                prop_assert!(flow.amount.packets <= whole.packets && flow.amount.bytes <= whole.bytes);
                if flows.evicted == 0 {
                    prop_assert_eq!(flow.amount, whole);
                }
            }
            prop_assert_eq!(sum, total);

            let mut gathering = Gathering::new(keep, by);
            while !gathering.step(&flows, slots) {}
            let mut sizes: Vec<_> =
                gathering.finish(&flows, 0).largest.iter().map(|(_, flow)| by.of(flow.amount)).collect();
            let mut all: Vec<_> = flows.table.iter().map(|(_, flow)| by.of(flow.amount)).collect();
            sizes.sort_unstable_by_key(|size| Reverse(*size));
            all.sort_unstable_by_key(|size| Reverse(*size));
            all.truncate(keep);
            prop_assert_eq!(sizes, all);
        }
    }

    #[test]
    fn every_kind_has_its_total() {
        let mut flows = Flows::new(100);
        for frame in testing::every_kind() {
            flows.count(&netvm_wire::parse(&frame).unwrap(), frame.len(), 0);
        }
        flows.count_malformed(13);
        let totals = flows.totals();
        let packets = totals.parts().map(|amount| amount.packets);
        assert_eq!(packets, [8, 8, 0, 2, 2, 3, 1, 1]);
        assert_eq!(totals.malformed.bytes, 13);
    }
}
