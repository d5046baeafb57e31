//! Ports without a device: what one sends, another receives in the same turn.

use netvm_model::{Forward, Host, PortConfig, PortKind, QosConfig, QueueConfig, QueueId, Rate};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::state::burst::MAX_PASSED;
use crate::worker::tests::rig::{Rig, port, udp};

fn patch(n: u16, peer: u16, forward: Forward) -> PortConfig {
    PortConfig { kind: PortKind::Patch { peer: PortId(peer) }, ..port(n, forward) }
}

const fn to(port: u16) -> Forward {
    Forward::Port(PortId(port))
}

/// Port 0 sends by the link of ports 1 and 2, which sends by port 3.
fn linked() -> Host {
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
    // Each end of five links is in the switch, and floods to all others.
    let mut ports = vec![port(0, Forward::Normal)];
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

#[test]
fn a_shaper_delays_what_a_port_without_a_device_sends() {
    let mut host = linked();
    let frame = udp(1, 2, 3);
    let bits = frame.len() as u64 * 8;
    let queue = QueueConfig {
        id: QueueId(0),
        name: "all".to_owned(),
        packets: 100,
        weight: 1,
        ..QueueConfig::default()
    };
    // At least one packet in each tick of a tenth of a second, and one at once.
    let bits = Rate { per_second: bits * 11, burst: bits };
    host.ports[1].policy.qos = Some(QosConfig { bits, queues: vec![queue] });
    let mut rig = Rig::of(&host);
    rig.tick(100);
    (0..3).for_each(|_| rig.receive(0, &frame));
    rig.turn();
    assert_eq!(rig.sent(3).len(), 1);
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
