// SPDX-License-Identifier: Apache-2.0
//! Which packets leave by a port with a shaper, and when.

use netvm_switch::TICKS_PER_SECOND;

use super::rig::{Rig, ip, rules};
use crate::drop_reason::DropReason;
use crate::ids::PortId;

/// Bytes of a frame.
const SIZE: usize = 250;

/// 125 frames a second, in bursts of 18; packets from `p0` leave by `p1`.
fn rig(queues: &str) -> Rig {
    let qos = format!("qos = {{ bits = 250_000, bit_burst = 36_000, queues = [{queues}] }}");
    Rig::of(&rules(&["forward = { out = \"p1\" }", &qos], &[]))
}

fn frame(dscp: u8, number: u16) -> Vec<u8> {
    // Ethernet, IPv4 and UDP.
    const HEADERS: usize = 42;
    ip(1, 2).dscp(dscp).udp(number, 1).payload(&[0; SIZE - HEADERS]).to_vec().unwrap()
}

/// Takes what leaves in the next second.
fn second(rig: &mut Rig, from: u64) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    for tick in from..from + u64::from(TICKS_PER_SECOND) {
        rig.tick(tick);
        while rig.turn() > 0 {}
        sent.append(&mut rig.sent(1));
    }
    sent
}

#[test]
fn priority_goes_first_and_the_rate_holds() {
    let mut rig = rig(r#"{ name = "voice", dscp = "ef", priority = true }, { name = "rest", codel_ms = 0 }"#);
    let late: Vec<_> = (0..50).map(|n| frame(0, n)).collect();
    let urgent: Vec<_> = (0..5).map(|n| frame(46, n)).collect();
    late.iter().chain(&urgent).for_each(|frame| rig.receive(0, frame));
    rig.turn();
    let at_once = rig.sent(1);
    assert_eq!(at_once, [&urgent[..], &late[..13]].concat());
    let mut sent = at_once;
    sent.append(&mut second(&mut rig, 2));
    assert_eq!(sent, [&urgent[..], &late[..]].concat(), "nothing is lost, and all is in order");
    (0..100).for_each(|n| rig.receive(0, &frame(0, n)));
    let start = 2 + u64::from(TICKS_PER_SECOND);
    let mut in_half = 0;
    for tick in start..start + u64::from(TICKS_PER_SECOND) / 2 {
        rig.tick(tick);
        while rig.turn() > 0 {}
        in_half += rig.sent(1).len();
    }
    assert!((60..=18 + 63).contains(&in_half), "{in_half} frames in half a second");
    assert_eq!(in_half + second(&mut rig, start + u64::from(TICKS_PER_SECOND)).len(), 100);
    rig.assert_nothing_leaked();
}

#[test]
fn a_full_queue_drops_under_its_reason() {
    let mut rig = rig(r#"{ name = "few", packets = 10 }"#);
    (0..40).for_each(|n| rig.receive(0, &frame(0, n)));
    rig.turn();
    assert_eq!(rig.dropped_at(1, DropReason::QueueFull), 30);
    assert_eq!(rig.sent(1).len(), 10);
    rig.assert_nothing_leaked();
}

#[test]
fn a_standing_queue_drops_under_its_reason() {
    let mut rig = rig(r#"{ name = "rest" }"#);
    (0..150).for_each(|n| rig.receive(0, &frame(0, n)));
    let sent = second(&mut rig, 2).len() + second(&mut rig, 2 + u64::from(TICKS_PER_SECOND)).len();
    let dropped = rig.dropped_at(1, DropReason::Codel);
    assert!(dropped > 3, "{dropped} of 150 frames that stand for a second");
    assert_eq!(sent as u64 + dropped, 150);
    rig.assert_nothing_leaked();
}

#[test]
fn a_shaper_that_is_removed_lets_go_of_what_waits() {
    let mut rig = rig(r#"{ name = "rest" }"#);
    let frames: Vec<_> = (0..60).map(|n| frame(0, n)).collect();
    frames.iter().for_each(|frame| rig.receive(0, frame));
    rig.turn();
    let mut sent = rig.sent(1);
    assert_eq!(sent.len(), 18);
    let queue = rig.worker.dp.ports.get_mut(PortId(1)).unwrap();
    assert!(queue.set_shaper(None).is_none());
    while rig.turn() > 0 {}
    sent.append(&mut rig.sent(1));
    assert_eq!(sent, frames);
    rig.receive(0, &frames[0]);
    rig.turn();
    assert_eq!(rig.sent(1).len(), 1, "packets go past it");
    rig.assert_nothing_leaked();
}

#[test]
fn packets_in_the_shaper_of_a_port_that_closes_are_counted() {
    let mut rig = rig(r#"{ name = "rest" }"#);
    (0..60).for_each(|n| rig.receive(0, &frame(0, n)));
    rig.turn();
    assert_eq!(rig.sent(1).len(), 18);
    rig.close(1);
    assert_eq!(rig.dropped_at(1, DropReason::PortDown), 42);
    rig.assert_nothing_leaked();
}
