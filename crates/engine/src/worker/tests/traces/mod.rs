// SPDX-License-Identifier: Apache-2.0
//! Traces of real packets, in a whole worker: what they say is what happens.

mod agreement;
mod nfs;
mod virtual_ports;
mod workers;

use netvm_capture_ring::{Filter, Instruction};
use netvm_model::{Forward, RuleId};

use super::rig::{CHAIN, RING, Rig, rules, udp};
use crate::drop_reason::DropReason;
use crate::ids::{PortId, RoleId, TraceId};
use crate::manager::traces::render;
use crate::worker::Command;
use crate::worker::record::{LiveTrace, TraceRecord};
use crate::worker::trace::{NfVerdict, Step};

const TO_CHAIN: [Forward; 3] = [Forward::Chain(CHAIN), Forward::None, Forward::None];

pub(super) fn steps_of(rig: &Rig, record: &TraceRecord) -> Vec<Step> {
    let events = record.events.list();
    assert!(events.is_sorted_by_key(|event| event.cycles), "{events:?}");
    assert!(events.iter().all(|event| event.cycles >= record.received), "{record:?}");
    render::steps(&record.events, &rig.worker.snapshot.policy)
}

/// The steps of the traced packets that have ended since the last call, in the order in which they were received.
fn traced(rig: &mut Rig) -> Vec<Vec<Step>> {
    let mut records = rig.traced();
    records.sort_by_key(|record| record.packet);
    records.iter().map(|record| steps_of(rig, record)).collect()
}

/// The steps of the only packet.
pub(super) fn only(rig: &mut Rig) -> Vec<Step> {
    let mut all = traced(rig);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Without the look-ups in the rules of ports that have none.
pub(super) fn without_lookups(steps: Vec<Step>) -> Vec<Step> {
    let is_lookup = |step: &Step| matches!(step, Step::Key(_) | Step::Default { .. });
    steps.into_iter().filter(|step| !is_lookup(step)).collect()
}

/// A filter for UDP packets to a port.
fn to_port(port: u16) -> Filter {
    let program = [(0x28, 0, 0, 36), (0x15, 0, 1, port.into()), (0x06, 0, 0, 1), (0x06, 0, 0, 0)];
    Filter::new(&program.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })).unwrap()
}

/// The UDP port that the packet was for when rules saw it.
fn port_of(steps: &[Step]) -> u16 {
    let key = steps.iter().find_map(|step| if let Step::Key(key) = step { Some(key) } else { None });
    key.unwrap().destination_port
}

const fn to_nf(number: u8) -> Step {
    Step::ToNf { role: RoleId(number as u16), hop: number }
}

const fn from_nf(number: u8, verdict: NfVerdict) -> Step {
    Step::FromNf { role: RoleId(number as u16), hop: number, verdict }
}

#[test]
fn packets_are_followed_until_a_rule_drops_them() {
    let rule = "match = { protocol = \"udp\", destination_ports = 23 }\ndrop = true";
    let mut rig = Rig::of(&rules(&["forward = { out = \"p1\" }", ""], &[rule]));
    rig.start_trace(1, None);
    [23, 24].iter().for_each(|port| rig.receive(0, &udp(1, 2, *port)));
    rig.turn();
    let all = traced(&mut rig);
    let rule = Step::Rules { rules: vec![RuleId(0)], decided: true };
    assert!(all[0].ends_with(&[rule, Step::Dropped(DropReason::Rule)]), "{all:?}");
    assert!(all[1].ends_with(&[Step::Default { allowed: true }, Step::Out(PortId(1))]), "{all:?}");
    assert_eq!(all.len(), 2);
    rig.assert_nothing_leaked();
}

#[test]
fn a_packet_for_a_full_ring_is_dropped_after_it_has_come_so_far() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[]);
    (0..RING as u16).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    while rig.turn() > 0 {}
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 999));
    rig.turn();
    let steps = only(&mut rig);
    assert!(steps.ends_with(&[to_nf(0), Step::Dropped(DropReason::ChainFull)]), "{steps:?}");
}

#[test]
fn a_flooded_packet_is_followed_to_every_port() {
    let mut rig = Rig::new(&[Forward::Normal; 4]);
    rig.start_trace(1, None);
    (0..3).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    let ports = (1..4).flat_map(|port| [Step::Flooded(PortId(port)), Step::Out(PortId(port))]);
    let expected: Vec<Step> = std::iter::once(Step::Switched(None)).chain(ports).collect();
    let all = traced(&mut rig);
    assert!(all.len() == 3 && all.iter().all(|steps| steps.ends_with(&expected)), "{all:?}");
    // Without a buffer for a copy, the trace says so.
    rig.command(Command::RemoveTrace(TraceId(1)));
    rig.start_trace(2, None);
    let held = rig.hold_all_buffers_but(2);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let steps = only(&mut rig);
    let lost = [Step::Flooded(PortId(2)), Step::Dropped(DropReason::NoBuffer)];
    assert!(steps.windows(2).any(|pair| *pair == lost), "{steps:?}");
    drop(held);
    rig.assert_nothing_leaked();
}

#[test]
fn copies_for_mirrors_are_not_followed() {
    let mirror = "match = { protocol = \"udp\" }\nmirror = \"p2\"";
    let mut rig = Rig::of(&rules(&["forward = { out = \"p1\" }", "", ""], &[mirror]));
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    assert_eq!((rig.sent(1).len(), rig.sent(2).len()), (1, 1));
    let steps = only(&mut rig);
    assert!(
        steps.contains(&Step::Mirrored(PortId(2))) && !steps.contains(&Step::Out(PortId(2))),
        "{steps:?}"
    );
    rig.assert_nothing_leaked();
}

#[test]
fn a_port_that_is_closed_has_not_sent_a_packet() {
    let mut rig = Rig::new(&[Forward::Port(PortId(1)), Forward::None]);
    drop(rig.worker.dp.ports.remove(PortId(1)));
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let steps = only(&mut rig);
    assert!(!steps.contains(&Step::Out(PortId(1))), "{steps:?}");
    assert_eq!(steps.last(), Some(&Step::Dropped(DropReason::PortDown)));
    rig.assert_nothing_leaked();
}

#[test]
fn a_packet_that_a_shaper_drops_was_not_sent() {
    let qos = "qos = { bits = 250_000, bit_burst = 36_000, queues = [{ name = \"few\", packets = 2 }] }";
    let mut rig = Rig::of(&rules(&["forward = { out = \"p1\" }", qos], &[]));
    rig.start_trace(1, None);
    (0..4).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    let ends: Vec<_> = traced(&mut rig).iter().map(|steps| steps.last().unwrap().clone()).collect();
    let (sent, dropped) = (Step::Out(PortId(1)), Step::Dropped(DropReason::QueueFull));
    assert_eq!(ends, [sent.clone(), sent, dropped.clone(), dropped]);
    assert_eq!(rig.dropped_at(1, DropReason::QueueFull), 2);
}

#[test]
fn a_filter_and_a_port_choose_the_packets() {
    let mut rig = Rig::new(&[Forward::Port(PortId(1)), Forward::Port(PortId(0))]);
    rig.start_trace(1, Some(&to_port(7)));
    rig.start_trace(2, Some(&to_port(8)));
    (0..10).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    let chosen = |rig: &mut Rig| {
        let records = rig.traced();
        let of = |record: &TraceRecord| (record.trace, port_of(&steps_of(rig, record)));
        let mut found: Vec<_> = records.iter().map(of).collect();
        found.sort_unstable();
        found
    };
    assert_eq!(chosen(&mut rig), [(TraceId(1), 7), (TraceId(2), 8)]);
    rig.receive(0, &udp(1, 2, 9));
    rig.turn();
    assert!(traced(&mut rig).is_empty(), "no filter accepts it");
    // A short packet does not have what the filter reads.
    rig.receive(0, &[0xff; 14]);
    rig.turn();
    assert!(traced(&mut rig).is_empty());
    rig.command(Command::RemoveTrace(TraceId(1)));
    (7..9).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    assert_eq!(chosen(&mut rig), [(TraceId(2), 8)]);
    rig.command(Command::RemoveTrace(TraceId(2)));
    assert!(rig.worker.dp.recorder.is_none(), "stages look for it no longer");

    let mut trace = LiveTrace::for_workers(1, Some(PortId(1)), None).remove(0);
    trace.set_id(TraceId(3));
    rig.command(Command::AddTrace(Box::new(trace)));
    rig.receive(0, &udp(1, 2, 1));
    rig.receive(1, &udp(2, 1, 2));
    rig.turn();
    assert_eq!(chosen(&mut rig), [(TraceId(3), 2)]);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_are_followed_as_long_as_there_are_records() {
    let mut rig = Rig::new(&[Forward::Port(PortId(1)), Forward::None]);
    rig.start_trace(1, None);
    let follow = |rig: &mut Rig| {
        (0..20).for_each(|n| {
            rig.receive(0, &udp(1, 2, n));
            rig.turn();
        });
        rig.traced()
    };
    let mut records = follow(&mut rig);
    let count = records.len();
    assert!((2..20).contains(&count));
    assert!(follow(&mut rig).is_empty());
    rig.command(Command::ReuseRecord(records.remove(0)));
    let again = follow(&mut rig);
    assert_eq!(again.len(), 1);
    let steps = steps_of(&rig, &again[0]);
    assert_eq!(
        (&steps[0], steps.last()),
        (&Step::In(PortId(0)), Some(&Step::Out(PortId(1)))),
        "it was empty again"
    );
    // What a trace has that has ended is not used again.
    rig.command(Command::RemoveTrace(TraceId(1)));
    rig.command(Command::ReuseRecord(records.remove(0)));
    assert!(follow(&mut rig).is_empty());
    rig.assert_nothing_leaked();
}
