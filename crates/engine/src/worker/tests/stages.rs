// SPDX-License-Identifier: Apache-2.0
//! Packets from stage to stage: receive, deliver, collect, act, switching, transmit; and what an NF may return.

mod evpn;
mod hostile_tunnels;
mod inner_flows;
mod tunnels;
pub(super) mod virtual_ports;

use netvm_model::{FlowMonitorConfig, Forward};
use netvm_ring::{Descriptor, VerdictKind};

use super::rig::{CHAIN, RING, Rig, udp};
use crate::counters::MonitorCounts;
use crate::drop_reason::{DropReason, Violation};
use crate::ids::PortId;
use crate::worker::handoff::Held;
use crate::worker::handoff::tests::{PORT, two};
use crate::worker::{Command, Event, FlowMonitor, Span};

const TO_CHAIN: [Forward; 3] = [Forward::Chain(CHAIN), Forward::None, Forward::None];

#[test]
fn a_port_forwards_to_another_as_a_whole_and_in_order() {
    let mut rig = Rig::new(&[Forward::Port(PortId(1)), Forward::None]);
    let frames: Vec<_> = (0..100).map(|n| udp(1, 2, n)).collect();
    frames.iter().for_each(|frame| rig.receive(0, frame));
    while rig.turn() > 0 {}
    assert_eq!(rig.sent(1), frames);
    let counters = &rig.counters().ports;
    assert_eq!((counters[0].rx_packets.get(), counters[1].tx_packets.get()), (100, 100));
    rig.assert_nothing_leaked();
}

#[test]
fn packets_for_a_port_of_a_worker_that_has_no_room_are_dropped_under_its_reason() {
    let mut rig = Rig::new(&[Forward::Port(PORT)]);
    let [mut from, to] = two(80);
    std::mem::swap(&mut rig.worker.dp.ports.handoff, &mut from);
    (0..100).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    while rig.turn() > 0 {}
    assert_eq!(rig.dropped_at(PORT.index(), DropReason::HandoffFull), 20);
    assert_eq!(rig.dropped_at(PORT.index(), DropReason::TxFull), 0);
    assert_eq!(rig.counters().woken_workers.get(), 0, "it does not sleep");
    drop(to);
    std::mem::swap(&mut rig.worker.dp.ports.handoff, &mut from);
    drop(from);
    rig.assert_nothing_leaked();
}

#[test]
fn a_port_without_forward_drops_under_its_reason() {
    let mut rig = Rig::new(&[Forward::None]);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    assert_eq!(rig.dropped_at(0, DropReason::NoRule), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_that_a_device_has_not_sent_are_counted_when_its_port_closes() {
    let mut rig = Rig::new(&[Forward::Port(PortId(1)), Forward::None]);
    rig.wires[1].lock().unwrap().is_full = true;
    (0..70).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    while rig.turn() > 0 {}
    let dropped = |rig: &Rig| [DropReason::TxFull, DropReason::PortDown].map(|why| rig.dropped_at(1, why));
    assert_eq!(dropped(&rig), [6, 0], "the others wait");
    rig.close(1);
    assert_eq!(dropped(&rig), [6, 64]);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    assert_eq!(dropped(&rig), [6, 65], "later packets have no port");
    assert_eq!(rig.counters().ports[1].tx_packets.get(), 0);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_that_wait_in_a_queue_leave_by_it_when_another_worker_has_it() {
    for has_own in [true, false] {
        let [mut from, mut to] = [(); 2].map(|()| Rig::new(&[Forward::Port(PortId(1)), Forward::None]));
        let frames: Vec<_> = (0..10).map(|n| udp(1, 2, n)).collect();
        from.wires[1].lock().unwrap().is_full = true;
        frames.iter().for_each(|frame| from.receive(0, frame));
        from.turn();
        if !has_own {
            to.close(1);
        }
        let taken = from.answer_to(Command::TakeQueue(PortId(1), Held::new(PortId(1))));
        let Some(Event::QueueTaken(Some(queue))) = taken else { panic!("not taken") };
        assert!(to.answer_to(Command::GiveQueue(queue)).is_none());
        to.turn();
        assert!(from.sent(1).is_empty(), "the device takes none yet");
        from.wires[1].lock().unwrap().is_full = false;
        to.turn();
        assert_eq!(from.sent(1), frames);
        from.assert_nothing_leaked();
    }
}

#[test]
fn packets_pass_every_nf_of_a_chain_and_leave() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(2, &[]);
    let frames: Vec<_> = (0..40).map(|n| udp(1, 2, n)).collect();
    frames.iter().for_each(|frame| rig.receive(0, frame));
    rig.turn();
    for hop in 0..2 {
        let burst = rig.nfs[hop].take();
        assert_eq!(burst.len(), 40);
        assert!(burst.iter().all(|d| (d.chain(), usize::from(d.hop())) == (CHAIN.0, hop)));
        assert_eq!(rig.nfs[hop].tx.push(&burst), 40);
        assert!(rig.sent(1).is_empty());
        rig.turn();
    }
    assert_eq!(rig.sent(1), frames);
    let chain = &rig.counters().chains[CHAIN.index()];
    assert_eq!((chain.entered.get(), chain.left.get()), (40, 40));
    rig.assert_nothing_leaked();
}

#[test]
fn the_latency_of_a_packet_is_measured_by_hop_chain_and_port() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(2, &[]);
    (0..9).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    for hop in 0..2 {
        let burst = rig.nfs[hop].take();
        rig.nfs[hop].tx.push(&burst);
        rig.turn();
    }
    let (hop, ports) = (|hop| Span::Hops(CHAIN, hop, hop), Span::Ports(PortId(0), PortId(1)));
    assert_eq!(rig.measured(), [hop(0), hop(1), Span::Chain(CHAIN), ports]);
    // The NF drops the next one that is followed: its hop is measured and nothing else; another takes its place.
    for tick in [3, 4] {
        rig.tick(tick);
        (0..4).for_each(|n| {
            rig.receive(0, &udp(1, 2, n));
            rig.turn();
        });
        let burst = rig.nfs[0].take();
        assert_eq!(burst.len(), 4);
        let dropped: Vec<_> = burst.iter().map(|d| d.with_verdict(VerdictKind::Drop, 0)).collect();
        rig.nfs[0].tx.push(&dropped);
        rig.turn();
        assert_eq!(rig.measured(), [hop(0)], "{tick}");
    }
    rig.assert_nothing_leaked();
}

#[test]
fn flows_of_monitored_ports_are_counted_and_their_records_leave_when_they_end() {
    let mut rig = Rig::new(&[Forward::Port(PortId(1)), Forward::Port(PortId(0))]);
    let config = FlowMonitorConfig { idle_timeout: 1, ..FlowMonitorConfig::default() };
    let (monitor, records) = FlowMonitor::new(&config, MonitorCounts::default());
    rig.worker.dp.monitor = Some(Box::new(monitor));
    let mut records = records.unwrap();
    (0..5).for_each(|n| rig.receive(0, &udp(1, 2, n % 2)));
    rig.receive(0, &[0xff; 30]);
    // A whole packet of which only the front is copied.
    rig.receive(0, &super::rig::ip(1, 2).udp(1, 7).payload(&[1; 300]).to_vec().unwrap());
    // A question of DNS, whose name begins in the front and ends behind it.
    let labels: Vec<u8> =
        (0..30).flat_map(|n| [8, b'l', b'a', b'b', b'e', b'l', b'-', b'a', b'0' + n % 10]).collect();
    let question = [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &labels[..27 * 9], &[0, 0, 1, 0, 1]].concat();
    rig.receive(0, &super::rig::ip(3, 4).udp(5, 53).payload(&question).to_vec().unwrap());
    rig.turn();
    assert_eq!(rig.sent(1).len(), 8);
    rig.tick(5);
    rig.turn();
    assert!(records.pop().is_err(), "no flow has ended");
    for tick in 12..40 {
        rig.tick(tick);
        (0..9).for_each(|_| {
            rig.turn();
        });
    }
    let mut ended: Vec<_> = std::iter::from_fn(|| records.pop().ok()).collect();
    ended.sort_unstable_by_key(|record| (record.total().packets, record.total().bytes));
    let amounts: Vec<_> =
        ended.iter().map(|record| (record.total().packets, record.total().bytes, record.ingress)).collect();
    assert_eq!(amounts, [(1, 30, 0), (1, 302, 0), (1, 342, 0), (2, 98, 0), (3, 147, 0)]);
    let names: Vec<_> = ended.iter().filter_map(|record| record.name).collect();
    let [name] = names.as_slice() else { panic!("{names:?}") };
    assert!(name.as_str().starts_with("label-a0.label-a1.") && name.as_str().len() == 127, "{name:?}");
    let counters = &rig.counters().monitor;
    assert_eq!((counters.packets.get(), counters.flows.get(), counters.lost_records.get()), (8, 0, 0));
    rig.assert_nothing_leaked();
}

#[test]
fn a_full_ring_drops_at_the_entry_and_later_packets_pass() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[]);
    (0..RING as u16 + 10).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    while rig.turn() > 0 {}
    assert_eq!(rig.dropped_in_chain(DropReason::ChainFull), 10);
    let burst = rig.nfs[0].take();
    assert_eq!(burst.len(), RING as usize);
    rig.nfs[0].tx.push(&burst);
    rig.receive(0, &udp(1, 2, 999));
    rig.turn();
    assert_eq!(rig.sent(1).len(), RING as usize);
    let late = rig.nfs[0].take();
    assert_eq!(late.len(), 1);
    rig.nfs[0].tx.push(&late);
    rig.turn();
    assert_eq!(rig.sent(1), [udp(1, 2, 999)]);
    rig.assert_nothing_leaked();
}

/// What an NF makes of a descriptor.
type Change = fn(Descriptor) -> Descriptor;

/// Hands one packet to the only NF of a chain, lets it return what `change` makes of it, and returns the rig.
fn returned(change: Change) -> Rig {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[PortId(2)]);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let burst: Vec<_> = rig.nfs[0].take().into_iter().map(change).collect();
    assert_eq!(rig.nfs[0].tx.push(&burst), 1);
    rig.turn();
    rig
}

#[test]
fn verdicts_are_carried_out_or_refused_under_their_reason() {
    let cases: [(Change, Option<usize>, Option<DropReason>); 9] = [
        (|d| d, Some(1), None),
        (|d| d.with_verdict(VerdictKind::Port, 2), Some(2), None),
        (|d| d.with_verdict(VerdictKind::Port, 1), None, Some(DropReason::PortDenied)),
        (|d| d.with_verdict(VerdictKind::Port, 77), None, Some(DropReason::UnknownPort)),
        (|d| d.with_verdict(VerdictKind::Drop, 0), None, Some(DropReason::Verdict)),
        (|d| d.with_verdict(VerdictKind::Role, 9), None, Some(DropReason::UnknownRole)),
        (|d| d.with_raw_verdict(63), None, Some(DropReason::BadAction)),
        (|d| d.with_span(d.offset() + 14, d.length() - 14), Some(1), None),
        (|d| d.with_hop(1), None, None),
    ];
    for (n, (change, out, reason)) in cases.into_iter().enumerate() {
        let rig = returned(change);
        let sent = [1, 2].map(|port| rig.sent(port).len());
        assert_eq!(sent, [1, 2].map(|port| usize::from(out == Some(port))), "case {n}");
        let drops: Vec<_> = DropReason::ALL.into_iter().filter(|r| rig.dropped_in_chain(*r) > 0).collect();
        assert_eq!(drops, Vec::from_iter(reason), "case {n}");
        rig.assert_nothing_leaked();
    }
    let rig = returned(|d| d.with_hop(1));
    assert_eq!(rig.counters().links[0].drops.get(DropReason::BadChain), 1);
}

#[test]
fn a_span_outside_the_buffer_frees_the_packet() {
    let rig = returned(|d| d.with_span(d.offset(), u16::MAX));
    assert!(rig.sent(1).is_empty());
    assert_eq!(rig.counters().links[0].drops.get(DropReason::BadSpan), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn invented_and_doubled_descriptors_bring_nothing_and_are_counted() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[]);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let real = rig.nfs[0].take()[0];
    let unused = Descriptor::new(u32::from(real.buffer() == 0), real.offset(), real.length());
    let outside = Descriptor::new(u32::MAX >> 8, real.offset(), real.length());
    rig.nfs[0].tx.push(&[real, real, unused, outside]);
    rig.turn();
    assert_eq!(rig.sent(1), [udp(1, 2, 3)]);
    let violations = &rig.counters().links[0].violations;
    assert_eq!(violations[Violation::BufferNotOut as usize].get(), 2);
    assert_eq!(violations[Violation::BufferOutOfRange as usize].get(), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn the_switch_floods_learns_and_then_sends_to_one_port() {
    let mut rig = Rig::new(&[Forward::Normal; 3]);
    let (request, reply) = (udp(1, 2, 3), udp(2, 1, 3));
    rig.receive(0, &request);
    rig.turn();
    assert_eq!([0, 1, 2].map(|port| rig.sent(port).len()), [0, 1, 1], "flooded");
    rig.receive(1, &reply);
    rig.turn();
    assert_eq!([0, 1, 2].map(|port| rig.sent(port)), [vec![reply], vec![], vec![]]);
    rig.receive(0, &request);
    rig.turn();
    assert_eq!([0, 1, 2].map(|port| rig.sent(port)), [vec![], vec![request], vec![]]);
    rig.receive(2, &udp(3, 3, 3));
    rig.turn();
    assert_eq!(rig.dropped_at(2, DropReason::Filtered), 1, "its destination is where it comes from");
    rig.assert_nothing_leaked();
}
