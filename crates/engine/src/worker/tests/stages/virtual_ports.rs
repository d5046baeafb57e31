// SPDX-License-Identifier: Apache-2.0
//! Ports without a device: what one sends, another receives in the same turn.

use netvm_model::{Forward, Host, PortConfig, PortKind, QosConfig, QueueConfig, QueueId, Rate};
use netvm_wire::VlanId;

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::MAX_PASSED;
use crate::worker::tests::rig::{Rig, port, udp};

pub(in crate::worker::tests) fn patch(n: u16, peer: u16, forward: Forward) -> PortConfig {
    PortConfig { kind: PortKind::Patch { peer: PortId(peer) }, ..port(n, forward) }
}

pub(in crate::worker::tests) const fn to(port: u16) -> Forward {
    Forward::Port(PortId(port))
}

/// Port 0 sends by the link of ports 1 and 2, which sends by port 3.
pub(in crate::worker::tests) fn linked() -> Host {
    let ports = vec![port(0, to(1)), patch(1, 2, Forward::None), patch(2, 1, to(3)), port(3, Forward::None)];
    Host { ports, ..Host::default() }
}

#[test]
fn packets_pass_a_link_in_one_turn_and_in_order() {
    let mut rig = Rig::of(&linked());
    let frames: Vec<_> = (0..40).map(|n| udp(1, 2, n)).collect();
    frames.iter().for_each(|frame| rig.receive(0, frame));
    rig.turn();
    assert_eq!(rig.sent(3), frames);
    let counters = &rig.counters().ports;
    let sum: u64 = frames.iter().map(|frame| frame.len() as u64).sum();
    assert_eq!((counters[1].tx_packets.get(), counters[1].tx_bytes.get()), (40, sum));
    assert_eq!((counters[2].rx_packets.get(), counters[2].rx_bytes.get()), (40, sum));
    assert_eq!((counters[1].rx_packets.get(), counters[2].tx_packets.get()), (0, 0));
    rig.assert_nothing_leaked();
}

#[test]
fn a_link_without_its_other_end_is_down() {
    let mut host = linked();
    host.ports[2] = patch(2, 3, to(3));
    let mut rig = Rig::of(&host);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    assert_eq!(rig.dropped_at(1, DropReason::PortDown), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_leave_a_loop_of_links() {
    let mut host = linked();
    host.ports[2].policy.forward = to(1);
    let mut rig = Rig::of(&host);
    (0..10).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    assert_eq!(rig.dropped_at(2, DropReason::ForwardingLoop), 10);
    assert_eq!(rig.counters().ports[2].rx_packets.get(), 10 * u64::from(MAX_PASSED));
    assert_eq!(rig.worker.dp.bursts.len(), usize::from(MAX_PASSED) + 1, "all are back");
    // The next packets pass as before.
    let mut rig = Rig::of(&linked());
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    assert_eq!(rig.sent(3).len(), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_that_a_loop_multiplies_are_bounded_in_each_turn() {
    // Each end of five links is in the switch, and floods to all others. Port 0 is not, or its device would keep all
    // buffers.
    let mut ports = vec![port(0, to(1))];
    for n in (1..11).step_by(2) {
        ports.extend([patch(n, n + 1, Forward::Normal), patch(n + 1, n, Forward::Normal)]);
    }
    let mut rig = Rig::of(&Host { ports, ..Host::default() });
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let count = |port: usize| {
        rig.counters().ports[port].rx_packets.get() + rig.dropped_at(port, DropReason::ForwardingLoop)
    };
    let passed: u64 = (1..11).map(count).sum();
    // What has already been copied for the other ports of each level is dropped.
    assert!((1 << 16..(1 << 16) + 200).contains(&passed), "{passed}");
    rig.assert_nothing_leaked();
}

/// [`linked`] with a shaper of port 1: one frame at once, then at least one in each tick of a tenth of a second.
pub(in crate::worker::tests) fn shaped(frame: &[u8]) -> Host {
    let mut host = linked();
    let bits = frame.len() as u64 * 8;
    let queue = QueueConfig {
        id: QueueId(0),
        name: "all".to_owned(),
        packets: 100,
        weight: 1,
        ..QueueConfig::default()
    };
    let bits = Rate { per_second: bits * 11, burst: bits };
    host.ports[1].policy.qos = Some(QosConfig { bits, queues: vec![queue] });
    host
}

/// [`shaped`], at tick 100: one of three frames is sent, two wait in the shaper.
fn with_two_in_shaper() -> Rig {
    let frame = udp(1, 2, 3);
    let mut rig = Rig::of(&shaped(&frame));
    rig.tick(100);
    (0..3).for_each(|_| rig.receive(0, &frame));
    rig.turn();
    assert_eq!(rig.sent(3).len(), 1);
    rig
}

#[test]
fn a_port_without_a_device_that_closes_passes_on_what_its_shaper_has() {
    let mut rig = with_two_in_shaper();
    rig.close(1);
    rig.turn();
    assert_eq!(rig.sent(3).len(), 2);
    assert_eq!(rig.dropped_at(1, DropReason::PortDown), 0);
    rig.assert_nothing_leaked();
}

#[test]
fn a_shaper_delays_what_a_port_without_a_device_sends() {
    let mut rig = with_two_in_shaper();
    for tick in 101..104 {
        rig.turn();
        assert!(rig.sent(3).is_empty(), "not in the same moment");
        rig.tick(tick);
        rig.turn();
        assert_eq!(rig.sent(3).len(), usize::from(tick < 103), "after {tick} ticks");
    }
    let counters = &rig.counters().ports;
    assert_eq!((counters[1].tx_packets.get(), counters[2].rx_packets.get()), (3, 3));
    rig.assert_nothing_leaked();
}

pub(in crate::worker::tests) fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// A port for a tag of `parent`.
pub(in crate::worker::tests) fn vlan(n: u16, parent: u16, tag: u16, forward: Forward) -> PortConfig {
    let kind = PortKind::Vlan { parent: PortId(parent), tag: VlanId::new(tag).unwrap() };
    PortConfig { kind, ..port(n, forward) }
}

#[test]
fn a_port_for_a_tag_receives_and_sends_without_it() {
    // Ports 3 and 4 for tags of port 0, ports 5 and 6 for a tag behind one of port 1.
    let ports = vec![
        port(0, to(2)),
        port(1, Forward::None),
        port(2, Forward::None),
        vlan(3, 0, 10, to(6)),
        vlan(4, 0, 20, to(0)),
        vlan(5, 1, 30, Forward::None),
        vlan(6, 5, 40, Forward::None),
    ];
    let mut rig = Rig::of(&Host { ports, ..Host::default() });
    let frame = |n: u16| udp(1, 2, n);
    // The last one has a priority, too.
    let frames = [
        tagged(&frame(0), 10),
        frame(1),
        tagged(&frame(2), 20),
        tagged(&frame(3), 30),
        tagged(&frame(4), 0x600a),
    ];
    frames.iter().for_each(|frame| rig.receive(0, frame));
    rig.turn();
    assert_eq!(rig.sent(1), [0, 4].map(|n| tagged(&tagged(&frame(n), 40), 30)), "with both tags");
    assert_eq!(rig.sent(2), [frame(1), tagged(&frame(3), 30)], "the port's own");
    assert_eq!(rig.sent(0), [frame(2)], "out of port 0 itself");
    let counters = &rig.counters().ports;
    let of = |n: usize| (counters[n].rx_packets.get(), counters[n].tx_packets.get());
    assert_eq!([of(0), of(1), of(3), of(4), of(6)], [(5, 1), (0, 2), (2, 0), (1, 0), (0, 2)]);
    rig.assert_nothing_leaked();
}
