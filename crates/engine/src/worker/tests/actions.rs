// SPDX-License-Identifier: Apache-2.0
//! The act stage: rules that police, tag, mirror and reject, in a whole worker.

use netvm_wire::{FlowKey, IpProto, TcpFlags, VlanId, checksum, parse};

use super::rig::{RING, Rig, ip, mac, rules, tcp, udp};
use crate::drop_reason::DropReason;

/// Port 0 sends to port 1; port 2 is besides.
const PORTS: &[&str] = &["forward = { out = \"p1\" }", "", ""];

fn rig(rule: &str) -> Rig {
    Rig::of(&rules(PORTS, &[rule]))
}

fn vlan_of(frame: &[u8]) -> Option<VlanId> {
    parse(frame).unwrap().key().vlan
}

#[test]
fn the_first_packets_of_a_burst_conform_and_the_others_are_policed() {
    let mut rig = rig("police = { packets = 1000, packet_burst = 10 }");
    let frames: Vec<_> = (0..30).map(|n| udp(1, 2, n)).collect();
    frames.iter().for_each(|frame| rig.receive(0, frame));
    rig.turn();
    let sent = rig.sent(1);
    assert_eq!(sent, frames[..sent.len()]);
    assert!((10..30).contains(&sent.len()), "{} of 30 conform", sent.len());
    assert_eq!(rig.dropped_at(0, DropReason::Policed), 30 - sent.len() as u64);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_of_a_burst_leave_by_many_ports_each_in_order() {
    const OUTPUTS: u16 = 20;
    let rule = |n: u16| format!("match = {{ protocol = \"udp\", destination_ports = {n} }}\nout = \"p{n}\"");
    let mut ports = vec!["forward = { out = \"p1\" }"];
    ports.resize(1 + usize::from(OUTPUTS), "");
    let made: Vec<_> = (1..=OUTPUTS).map(rule).collect();
    let made: Vec<_> = made.iter().map(String::as_str).collect();
    let mut rig = Rig::of(&rules(&ports, &made));
    // In no order, and some to each port.
    let frames: Vec<_> =
        (0..64u16).map(|n| (1 + n * 7 % OUTPUTS, udp(n as u8, 2, 1 + n * 7 % OUTPUTS))).collect();
    frames.iter().for_each(|(_, frame)| rig.receive(0, frame));
    while rig.turn() > 0 {}
    for port in 1..=OUTPUTS {
        let expected: Vec<_> =
            frames.iter().filter(|(to, _)| *to == port).map(|(_, frame)| frame.clone()).collect();
        assert!(expected.len() >= 3);
        assert_eq!(rig.sent(port.into()), expected, "port {port}");
    }
    rig.assert_nothing_leaked();
}

#[test]
fn tags_are_set_replaced_and_removed() {
    let ten = VlanId::new(10).unwrap();
    for (change, expected) in [("20", VlanId::new(20).ok()), ("\"none\"", None)] {
        for frame in [ip(1, 2).udp(1000, 3), ip(1, 2).vlan(ten).udp(1000, 3)] {
            let mut rig = rig(&format!("set_vlan = {change}"));
            let frame = frame.payload(b"payload").to_vec().unwrap();
            rig.receive(0, &frame);
            rig.turn();
            let sent = rig.sent(1);
            assert_eq!(sent.len(), 1);
            assert_eq!(vlan_of(&sent[0]), expected);
            let key = *parse(&frame).unwrap().key();
            assert_eq!(FlowKey { vlan: expected, ..key }, *parse(&sent[0]).unwrap().key());
            rig.assert_nothing_leaked();
        }
    }
}

#[test]
fn a_packet_without_room_for_a_tag_is_dropped_and_the_others_pass() {
    let mut rig = rig("set_vlan = 20");
    let room = rig.memory.region().geometry().stride as usize - usize::from(dpdk::HEADROOM);
    let mut full = udp(1, 2, 3);
    full.resize(room, 0);
    for frame in [udp(1, 2, 1), full, udp(1, 2, 2)] {
        rig.receive(0, &frame);
    }
    rig.turn();
    let sent: Vec<_> = rig.sent(1).iter().map(|f| parse(f).unwrap().key().destination_port).collect();
    let dropped = rig.dropped_at(0, DropReason::TooLong);
    assert_eq!((sent.len() as u64 + dropped, &sent[..1], sent.last()), (3, &[1][..], Some(&2)));
    rig.assert_nothing_leaked();
}

#[test]
fn a_copy_of_each_packet_leaves_by_the_mirror_port_with_the_new_tag() {
    let mut rig = rig("mirror = \"p2\"\nset_vlan = 20");
    (0..3).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    let (sent, copies) = (rig.sent(1), rig.sent(2));
    assert_eq!(sent.len(), 3);
    assert_eq!(sent, copies);
    assert!(copies.iter().all(|frame| vlan_of(frame) == VlanId::new(20).ok()));
    rig.assert_nothing_leaked();
}

#[test]
fn copies_without_a_buffer_are_drops_of_the_mirror_port_alone() {
    let mut rig = rig("mirror = \"p2\"");
    let held = rig.hold_all_buffers_but(40);
    (0..RING as u16 / 2).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    while rig.turn() > 0 {}
    assert_eq!(rig.sent(1).len(), RING as usize / 2);
    let copies = rig.sent(2).len() as u64;
    assert_eq!(copies + rig.dropped_at(2, DropReason::NoBuffer), u64::from(RING) / 2);
    assert!(rig.dropped_at(2, DropReason::NoBuffer) > 0);
    drop(held);
    rig.assert_nothing_leaked();
}

#[test]
fn rejected_packets_are_answered_by_the_port_that_they_came_by() {
    let mut rig = rig("reject = true");
    for frame in [tcp(1, 2, TcpFlags::SYN), udp(1, 2, 3)] {
        rig.receive(0, &frame);
    }
    rig.turn();
    assert_eq!(rig.dropped_at(0, DropReason::Rejected), 2);
    assert!(rig.sent(1).is_empty());
    let answers = rig.sent(0);
    let protocols = answers.iter().map(|answer| {
        let headers = parse(answer).unwrap();
        assert_eq!((headers.key().destination_mac, headers.key().source_mac), (mac(1), mac(2)));
        assert_eq!(checksum::verify(answer, &headers), Ok(()));
        headers.key().protocol
    });
    assert_eq!(protocols.collect::<Vec<_>>(), [IpProto::TCP, IpProto::ICMP]);
    rig.assert_nothing_leaked();
}

#[test]
fn a_flood_of_rejected_packets_is_answered_at_a_bounded_rate() {
    let mut rig = rig("reject = true");
    for _ in 0..50 {
        (0..40).for_each(|n| rig.receive(0, &udp(1, 2, n)));
        while rig.turn() > 0 {}
    }
    assert_eq!(rig.dropped_at(0, DropReason::Rejected), 2000);
    let answers = rig.sent(0).len();
    assert!((1..1500).contains(&answers), "{answers} answers to 2000 packets");
    rig.assert_nothing_leaked();
}
