// SPDX-License-Identifier: Apache-2.0
//! Meters with each table against a slow, obvious one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netvm_flowmon::{Amount, DLeft, FlowTable, Meter, Record, Settings, Tagged};
use netvm_wire::{FiveTuple, FrameBuilder, MacAddr, TcpFlags};
use proptest::prelude::*;
use rtrb::RingBuffer;

const IDLE: u64 = 50;
const ACTIVE: u64 = 200;

#[derive(Clone, Debug)]
struct Packet {
    flow: u8,
    back: bool,
    payload: usize,
    flags: u8,
    wait: u64,
    /// Check all time-outs before it.
    expire: bool,
}

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let packet = (0u8..30, any::<bool>(), 0usize..300, 0u8..64, 0u64..20, prop::bool::weighted(0.2));
    let packet = packet.prop_map(|(flow, back, payload, flags, wait, expire)| Packet {
        flow,
        back,
        payload,
        flags,
        wait,
        expire,
    });
    prop::collection::vec(packet, 0..300)
}

/// Half of the flows are TCP over IPv4, half UDP over IPv6 in a VLAN.
fn frame(packet: &Packet) -> Vec<u8> {
    let (a, b): (IpAddr, IpAddr) = if packet.flow.is_multiple_of(2) {
        ([10, 0, 0, packet.flow].into(), [10, 0, 1, 1].into())
    } else {
        (format!("fd00::{}", packet.flow).parse().unwrap(), "fd00:1::1".parse().unwrap())
    };
    let macs = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
    let turn = |n: usize| if packet.back { 1 - n } else { n };
    let builder = FrameBuilder::new(macs[turn(0)], macs[turn(1)]);
    let (ends, ports) = ([a, b], [1000, 80]);
    let builder = builder.ip(ends[turn(0)], ends[turn(1)]).payload(&[0; 300][..packet.payload]);
    let (from, to) = (ports[turn(0)], ports[turn(1)]);
    if packet.flow.is_multiple_of(2) {
        builder.tcp(from, to, TcpFlags::from_bits_truncate(packet.flags)).to_vec().unwrap()
    } else {
        builder.udp(from, to).to_vec().unwrap()
    }
}

/// Counts of a direction and its TCP flags.
type Direction = (Amount, u8);

/// What is known of a flow: its first direction, that direction, the other, first and last time, reason.
type Seen = (FiveTuple, Direction, Direction, u64, u64, u8);

#[derive(Default)]
struct Reference {
    flows: BTreeMap<FiveTuple, Seen>,
    records: Vec<Seen>,
}

impl Reference {
    fn count(&mut self, frame: &[u8], now: u64) {
        let headers = netvm_wire::parse(frame).unwrap();
        let tuple = headers.five_tuple().unwrap();
        let none = (Amount::default(), 0);
        let flow = self.flows.entry(tuple.canonical()).or_insert((tuple, none, none, now, now, 0));
        let octets = (headers.payload_end() - headers.l3_offset()) as u64;
        let direction = if flow.0 == tuple { &mut flow.1 } else { &mut flow.2 };
        direction.0.add(Amount { packets: 1, bytes: frame.len() as u64, octets });
        direction.1 |= headers.key().tcp_flags.bits();
        flow.4 = now;
    }

    fn expire(&mut self, now: u64) {
        let records = &mut self.records;
        self.flows.retain(|_, flow| {
            if now - flow.4 >= IDLE {
                let (there, back) = (flow.1.1, flow.2.1);
                flow.5 = if (there | back) & 4 != 0 || there & back & 1 != 0 { 3 } else { 1 };
                // One that the active time-out has just cut has nothing more to report.
                if flow.1.0.packets + flow.2.0.packets > 0 {
                    records.push(*flow);
                }
                return false;
            }
            if now - flow.3 >= ACTIVE && flow.1.0.packets + flow.2.0.packets > 0 {
                flow.5 = 2;
                records.push(*flow);
                let none = (Amount::default(), 0);
                (flow.1, flow.2, flow.3) = (none, none, flow.4);
            }
            true
        });
    }

    fn finish(mut self) -> Vec<Seen> {
        for mut flow in self.flows.into_values() {
            if flow.1.0.packets + flow.2.0.packets > 0 {
                flow.5 = 4;
                self.records.push(flow);
            }
        }
        self.records.sort_unstable_by_key(|seen| (seen.0, seen.3, seen.4));
        self.records
    }
}

fn seen(record: &Record) -> Seen {
    let netvm_flowmon::Endpoints::Ip(tuple) = record.endpoints() else { unreachable!("only IP is sent") };
    let [there, back] = record.tcp_flags;
    (tuple, (record.there, there), (record.back, back), record.first, record.last, record.reason as u8)
}

/// The records of a meter, and how many flows were evicted.
fn run(table: impl FlowTable, packets: &[Packet], ring: usize) -> (Vec<Seen>, netvm_flowmon::Counts) {
    let settings = Settings { idle: IDLE, active: ACTIVE, sampling: 1, names: 8 };
    let (producer, mut consumer) = RingBuffer::new(ring);
    let mut meter = Meter::new(table, settings, Some(producer));
    let mut now = 1000;
    for packet in packets {
        now += packet.wait;
        if packet.expire {
            meter.commit();
            meter.expire(usize::MAX, now);
        }
        let frame = frame(packet);
        meter.packet(&frame, netvm_wire::parse(&frame).ok().as_ref(), (1, now));
    }
    meter.finish(|| false);
    assert_eq!(meter.table().len(), 0);
    let mut records: Vec<_> =
        std::iter::from_fn(|| consumer.pop().ok()).map(|record| seen(&record)).collect();
    records.sort_unstable_by_key(|seen| (seen.0, seen.3, seen.4));
    (records, meter.counts())
}

fn sum(records: &[Seen]) -> Amount {
    let mut total = Amount::default();
    for record in records {
        total.add(record.1.0);
        total.add(record.2.0);
    }
    total
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// While the table has room, records are those of the reference.
    #[test]
    fn records_are_those_of_the_reference(packets in packets()) {
        let mut reference = Reference::default();
        let mut now = 1000;
        for packet in &packets {
            now += packet.wait;
            if packet.expire {
                reference.expire(now);
            }
            reference.count(&frame(packet), now);
        }
        let expected = reference.finish();
        for (records, counts) in
            [run(DLeft::new(256), &packets, 2000), run(Tagged::new(256), &packets, 2000)]
        {
            prop_assert_eq!((counts.evicted, counts.lost_records), (0, 0));
            prop_assert_eq!(&records, &expected);
        }
    }

    /// When table or ring are too small, no packet is forgotten: it is in a record, or counted as lost.
    #[test]
    fn nothing_is_forgotten(packets in packets(), ring in 1usize..40) {
        for (records, counts) in [run(DLeft::new(1), &packets, ring), run(Tagged::new(1), &packets, ring)] {
            let mut total = sum(&records);
            total.add(counts.lost);
            prop_assert_eq!(total, counts.seen);
            prop_assert_eq!(total.packets, packets.len() as u64);
            prop_assert_eq!(counts.records, records.len() as u64);
        }
    }
}

/// Packets that are not taken one by one, of flows that the table has.
#[test]
fn packets_may_pass_unseen() {
    let settings = |sampling, names| Settings { idle: IDLE, active: ACTIVE, sampling, names };
    let frame = |flow, back| frame(&Packet { flow, back, payload: 10, flags: 0, wait: 0, expire: false });
    let key = |frame: &[u8]| *netvm_wire::parse(frame).unwrap().key();
    let unseen = Amount { packets: 5, bytes: 500, octets: 430 };
    let (producer, mut consumer) = RingBuffer::new(10);
    let mut meter = Meter::new(Tagged::new(16), settings(1, 0), Some(producer));
    let [there, back] = [false, true].map(|back| frame(2, back));
    meter.packet(&there, netvm_wire::parse(&there).ok().as_ref(), (1, 7));
    meter.commit();
    assert!(!meter.count_unseen(&key(&frame(3, false)), 8, unseen), "the table does not have it");
    assert!(meter.count_unseen(&key(&there), 9, unseen) && meter.count_unseen(&key(&back), 10, unseen));
    meter.finish(|| false);
    let record = consumer.pop().unwrap();
    assert_eq!(record.total().packets, 11);
    assert_eq!(meter.counts().seen.packets, 11);
    assert!(consumer.pop().is_err());
    // Where a name may still come, and where each packet counts by itself.
    for (sampling, names, packets, may) in [(1, 8, 1, false), (1, 8, 16, true), (2, 0, 16, false)] {
        let mut meter = Meter::new(Tagged::new(16), settings(sampling, names), None);
        for now in 0..packets {
            meter.packet(&there, netvm_wire::parse(&there).ok().as_ref(), (1, now));
        }
        meter.commit();
        assert_eq!(meter.count_unseen(&key(&there), 100, Amount::default()), may, "{sampling} {names}");
    }
}

/// A sampled meter counts one packet of N, and sees all.
#[test]
fn sampling_counts_one_of_n() {
    let settings = Settings { idle: IDLE, active: ACTIVE, sampling: 10, names: 0 };
    let (producer, mut consumer) = RingBuffer::new(10);
    let mut meter = Meter::new(Tagged::new(16), settings, Some(producer));
    let frame = frame(&Packet { flow: 2, back: false, payload: 10, flags: 2, wait: 0, expire: false });
    for now in 0..1000 {
        meter.packet(&frame, netvm_wire::parse(&frame).ok().as_ref(), (1, now));
    }
    meter.finish(|| false);
    let record = consumer.pop().unwrap();
    assert_eq!((record.there.packets, meter.counts().seen.packets), (100, 1000));
}
