// SPDX-License-Identifier: Apache-2.0
//! Packets that pass ports without a device: each of these ports sends and receives them.

use std::sync::Arc;

use netvm_model::{Forward, Host};
use netvm_wire::VlanId;

use super::super::rig::{Rig, port, udp};
use super::super::stages::virtual_ports::{linked, patch, shaped, tagged, to, vlan};
use super::{only, steps_of, to_port, traced, without_lookups};
use crate::drop_reason::DropReason;
use crate::ids::{PortId, TraceId};
use crate::snapshot::{MAX_PASSED, Snapshot};
use crate::worker::Command;
use crate::worker::record::LiveTrace;
use crate::worker::trace::Step;

const fn received(port: u16) -> Step {
    Step::In(PortId(port))
}

const fn sent(port: u16) -> Step {
    Step::Out(PortId(port))
}

#[test]
fn packets_are_followed_through_a_link() {
    let mut rig = Rig::of(&linked());
    rig.start_trace(1, None);
    (0..3).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    let all = traced(&mut rig);
    assert_eq!(all.len(), 3);
    for steps in all {
        assert_eq!(without_lookups(steps), [received(0), sent(1), received(2), sent(3)]);
    }
    rig.assert_nothing_leaked();
}

#[test]
fn a_link_without_its_other_end_has_not_sent_a_packet() {
    let mut host = linked();
    host.ports[2] = patch(2, 3, to(3));
    let mut rig = Rig::of(&host);
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let down = Step::Dropped(DropReason::PortDown);
    assert_eq!(without_lookups(only(&mut rig)), [received(0), down]);
}

#[test]
fn a_packet_is_followed_until_it_leaves_a_loop() {
    let mut host = linked();
    host.ports[2].policy.forward = to(1);
    let mut rig = Rig::of(&host);
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let steps = without_lookups(only(&mut rig));
    let turns = (0..MAX_PASSED).flat_map(|_| [sent(1), received(2)]);
    let end = [sent(1), Step::Dropped(DropReason::ForwardingLoop)];
    let expected: Vec<_> = std::iter::once(received(0)).chain(turns).chain(end).collect();
    assert_eq!(steps, expected);
    rig.assert_nothing_leaked();
}

#[test]
fn copies_are_followed_through_a_link_and_to_the_other_ports() {
    let switched = |n| port(n, Forward::Normal);
    let ports =
        vec![switched(0), patch(1, 2, Forward::Normal), patch(2, 1, to(3)), port(3, to(0)), switched(4)];
    let mut rig = Rig::of(&Host { ports, ..Host::default() });
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let flooded = |port| Step::Flooded(PortId(port));
    let through = [flooded(1), sent(1), received(2), sent(3)];
    let expected = [&[received(0), Step::Switched(None)][..], &through, &[flooded(4), sent(4)]].concat();
    assert_eq!(without_lookups(only(&mut rig)), expected);
    rig.assert_nothing_leaked();
}

#[test]
fn all_copies_that_a_loop_makes_are_followed() {
    let switched = |n| port(n, Forward::Normal);
    let ports = vec![switched(0), patch(1, 2, Forward::Normal), patch(2, 1, Forward::Normal), switched(3)];
    let mut rig = Rig::of(&Host { ports, ..Host::default() });
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let steps = only(&mut rig);
    let count = |wanted: &Step| steps.iter().filter(|step| *step == wanted).count();
    for port in [0, 3] {
        assert_eq!(count(&sent(port)), rig.sent(port.into()).len(), "{steps:?}");
    }
    let dropped: u64 = [1, 2].map(|port| rig.dropped_at(port, DropReason::ForwardingLoop)).iter().sum();
    assert_eq!(count(&Step::Dropped(DropReason::ForwardingLoop)) as u64, dropped, "{steps:?}");
    assert!(dropped > 1);
    rig.assert_nothing_leaked();
}

#[test]
fn a_packet_is_followed_while_the_shaper_of_a_link_delays_it() {
    let frame = udp(1, 2, 3);
    let mut host = shaped(&frame);
    host.ports[1].policy.qos.iter_mut().flat_map(|qos| &mut qos.queues).for_each(|queue| queue.packets = 2);
    let mut rig = Rig::of(&host);
    rig.tick(100);
    rig.start_trace(1, None);
    (0..4).for_each(|_| rig.receive(0, &frame));
    rig.turn();
    let all: Vec<_> = traced(&mut rig).into_iter().map(without_lookups).collect();
    let passed = vec![received(0), sent(1), received(2), sent(3)];
    let full = vec![received(0), Step::Dropped(DropReason::QueueFull)];
    assert_eq!(all, [passed.clone(), full.clone(), full]);
    rig.turn();
    assert!(traced(&mut rig).is_empty(), "it waits");
    rig.tick(101);
    rig.turn();
    assert_eq!(without_lookups(only(&mut rig)), passed);
}

#[test]
fn a_packet_is_dropped_with_the_port_whose_shaper_delays_it() {
    let frame = udp(1, 2, 3);
    let mut rig = Rig::of(&shaped(&frame));
    rig.tick(100);
    rig.start_trace(1, None);
    (0..2).for_each(|_| rig.receive(0, &frame));
    rig.turn();
    assert_eq!(traced(&mut rig).len(), 1, "the other one waits");
    rig.worker.snapshot =
        Arc::new(Snapshot { virtual_ports: Box::default(), ..Snapshot::clone(&rig.worker.snapshot) });
    rig.close(1);
    rig.turn();
    assert_eq!(without_lookups(only(&mut rig)), [received(0), Step::Dropped(DropReason::PortDown)]);
    rig.assert_nothing_leaked();
}

#[test]
fn tags_that_ports_push_and_pop_are_steps() {
    let ports = vec![
        port(0, Forward::None),
        port(1, Forward::None),
        vlan(2, 0, 10, to(3)),
        vlan(3, 1, 20, Forward::None),
    ];
    let mut rig = Rig::of(&Host { ports, ..Host::default() });
    rig.start_trace(1, None);
    rig.receive(0, &tagged(&udp(1, 2, 3), 10));
    rig.turn();
    let tag = |n| VlanId::new(n).unwrap();
    let expected =
        [received(0), Step::TagPopped(tag(10)), received(2), sent(3), Step::TagPushed(tag(20)), sent(1)];
    assert_eq!(without_lookups(only(&mut rig)), expected);
    rig.assert_nothing_leaked();
}

#[test]
fn a_port_without_a_device_chooses_the_packets_that_it_receives() {
    let mut host = linked();
    host.ports[2].policy.forward = to(1);
    for host in [linked(), host] {
        let mut rig = Rig::of(&host);
        let mut trace = LiveTrace::for_workers(1, Some(PortId(2)), Some(&to_port(7))).remove(0);
        trace.set_id(TraceId(1));
        rig.command(Command::AddTrace(Box::new(trace)));
        (6..9).for_each(|n| rig.receive(0, &udp(1, 2, n)));
        rig.turn();
        // Once, although a loop brings them back.
        let records = rig.traced();
        assert_eq!(records.len(), 1);
        let steps = steps_of(&rig, &records[0]);
        assert_eq!(steps[0], received(2), "{steps:?}");
        assert!(matches!(steps.last(), Some(Step::Out(PortId(3)) | Step::Dropped(_))), "{steps:?}");
    }
}
