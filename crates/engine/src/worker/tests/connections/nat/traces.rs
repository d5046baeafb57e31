// SPDX-License-Identifier: Apache-2.0
//! Traces say what NAT does, and by which rule. The hypothetical packet agrees with the first one of a connection.

use std::sync::Arc;

use super::{INSIDE, LAN, OUTSIDE, REMOTE, SERVER, WAN, host, masquerade, nat64, publish, rig, udp};
use crate::ids::{PortId, TraceId};
use crate::manager::traces::render;
use crate::memory::Memory;
use crate::worker::tests::rig::Rig;
use crate::worker::trace::{NatEnd, Step, Translated};
use crate::worker::{Command, Hypothetical, Tracer};

/// The steps of a packet of traffic.
fn real(rig: &mut Rig, from: PortId, frame: &[u8]) -> Vec<Step> {
    rig.start_trace(1, None);
    rig.receive(from.index(), frame);
    rig.turn();
    let mut records = rig.traced();
    assert_eq!(records.len(), 1, "{records:?}");
    rig.command(Command::RemoveTrace(TraceId(1)));
    render::steps(&records.remove(0).events, &rig.worker.snapshot.policy)
}

fn hypothetical(rig: &Rig, from: PortId, frame: &[u8]) -> Vec<Step> {
    let mut tracer = Tracer::new(Arc::new(Memory::for_tests(512, 0, 16))).unwrap();
    tracer.translate(None).unwrap();
    let (snapshot, tick) = (&rig.worker.snapshot, rig.worker.dp.clock.tick);
    let mut trace = || tracer.trace(snapshot, Hypothetical::of(from, frame), tick).unwrap();
    let first = render::steps(&trace(), &snapshot.policy);
    // Nothing is left of it.
    assert_eq!(render::steps(&trace(), &snapshot.policy), first);
    first
}

fn end(address: &str, port: u16) -> NatEnd {
    NatEnd { address: address.parse::<std::net::IpAddr>().unwrap().into(), port }
}

/// By a rule of this number, the source or the destination of a packet between these ends becomes another one.
fn by_rule(rule: u16, before: [NatEnd; 2], after: [NatEnd; 2]) -> Step {
    Step::Translated(Translated { before, after, is_nat64: false, rule: Some(rule) })
}

fn place(steps: &[Step], is_it: impl Fn(&Step) -> bool) -> usize {
    steps.iter().position(is_it).unwrap_or_else(|| panic!("{steps:#?}"))
}

const fn is_key(step: &Step) -> bool {
    matches!(step, Step::Key(_))
}

#[test]
fn the_rule_and_what_it_translates_are_steps_in_both_directions() {
    let mut rig = rig(host("", "", ""), &[publish(WAN), masquerade([1024, 65535])]);
    let (remote, outside) = (end(REMOTE, 1000), end(OUTSIDE, 8080));
    let server = end(SERVER, 80);
    let query = udp(REMOTE, OUTSIDE, [1000, 8080]);
    let expected = by_rule(0, [remote, outside], [remote, server]);
    let before = hypothetical(&rig, WAN, &query);
    let first = real(&mut rig, WAN, &query);
    assert_eq!(first, before);
    // Rules see the translated packet.
    assert!(place(&first, |step| *step == expected) < place(&first, is_key), "{first:#?}");
    let answer = real(&mut rig, LAN, &udp(SERVER, REMOTE, [80, 1000]));
    let expected = by_rule(0, [server, remote], [outside, remote]);
    assert!(place(&answer, |step| *step == expected) > place(&answer, is_key), "{answer:#?}");
    let (inside, remote, outside) = (end(INSIDE, 5000), end(REMOTE, 53), end(OUTSIDE, 5000));
    let query = udp(INSIDE, REMOTE, [5000, 53]);
    let before = hypothetical(&rig, LAN, &query);
    let first = real(&mut rig, LAN, &query);
    assert_eq!(first, before);
    place(&first, |step| *step == by_rule(1, [inside, remote], [outside, remote]));
    let answer = real(&mut rig, WAN, &udp(REMOTE, OUTSIDE, [53, 5000]));
    place(&answer, |step| *step == by_rule(1, [remote, outside], [remote, inside]));
    rig.assert_nothing_leaked();
}

#[test]
fn nat64_is_a_step_after_the_rules_which_see_the_packet_as_it_arrived() {
    let mut rig = nat64::nat64();
    let query = udp(nat64::HOST, nat64::SERVER_INSIDE, [5000, 53]);
    let before = hypothetical(&rig, LAN, &query);
    let first = real(&mut rig, LAN, &query);
    assert_eq!(first, before);
    let translated = Translated {
        before: [end(nat64::HOST, 5000), end(nat64::SERVER_INSIDE, 53)],
        after: [end(nat64::POOL, 5000), end(nat64::SERVER, 53)],
        is_nat64: true,
        rule: None,
    };
    let sees = |step: &Step| matches!(step, Step::Key(key) if key.source == translated.before[0].address);
    let is_it = |step: &Step| *step == Step::Translated(translated);
    assert!(place(&first, sees) < place(&first, is_it), "{first:#?}");
    rig.assert_nothing_leaked();
}
