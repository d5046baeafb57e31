// SPDX-License-Identifier: Apache-2.0
//! Programs with ports, in a whole worker: the test plays the program, by the wires of its ports.

mod flows;

use std::sync::Arc;

use netvm_model::Forward;
use netvm_wire::{FrameBuilder, MacAddr};

use super::rig::{CHAIN, GROUP, Rig, udp};
use super::traces::{only, steps_of, without_lookups};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, RoleId, TraceId, WorkerId};
use crate::snapshot::{ChainPath, PairPorts, PairReturn, PairTarget, Passed, Snapshot, Target};
use crate::worker::handoff::tests::two;
use crate::worker::record::{LiveTrace, Share};
use crate::worker::state::nf_links::start_queue::MAX_OF_ROLE;
use crate::worker::trace::{Lost, NfVerdict, Step};
use crate::worker::{Command, Latency, LatencySample, Span};

const CLIENT: PortId = PortId(0);
const SERVER: PortId = PortId(1);
/// The program's ports.
const LEFT: PortId = PortId(2);
const RIGHT: PortId = PortId(3);
const ROLE: RoleId = RoleId(0);
const HOP: Span = Span::Hops(CHAIN, 0, 0);

/// A chain from the client through a program to the server.
fn rig() -> Rig {
    let mut rig = Rig::new(&[Forward::Chain(CHAIN), Forward::None, Forward::None, Forward::None]);
    let snapshot = Arc::new(with_target(&rig.worker.snapshot, ready()));
    rig.worker.snapshot = snapshot;
    rig
}

fn ready() -> Target {
    Target::Pair(PairTarget { hop: 0, side: 0, routes: false, ports: Box::new([LEFT]) })
}

/// A chain of one hop.
fn path(target: Target, output: PortId) -> ChainPath {
    ChainPath {
        entry: target.clone(),
        targets: vec![target, Target::Port(output)],
        groups: vec![GROUP],
        roles: vec![ROLE.0],
        hashed: false,
        watched: Vec::new(),
        longest: vec![0],
        crossings: Vec::new(),
    }
}

const fn passed(chain: ChainId, from: PortId) -> Passed {
    Passed { chain, hop: 0, from: Some(from) }
}

const fn back(port: PortId, other: PortId, passed: [Option<Passed>; 2]) -> PairReturn {
    PairReturn { port, other, passed, is_up: true, flows: None, mac: None, raises_ttl: false }
}

/// With the program at the only hop of the chain.
fn with_target(before: &Snapshot, target: Target) -> Snapshot {
    let path = path(target, SERVER);
    let back = |port, other, passed| back(port, other, [passed, None]);
    let mut snapshot = before.clone();
    snapshot.chains = vec![Some(path)];
    snapshot.pairs =
        PairPorts::new(vec![back(LEFT, RIGHT, None), back(RIGHT, LEFT, Some(passed(CHAIN, CLIENT)))]);
    snapshot
}

/// The same packet behind a router: other addresses, a lower TTL and another checksum.
fn routed(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 7, 7, 7, 7, 7, 2, 8, 8, 8, 8, 8]);
    frame[22] -= 1;
    frame[24..26].copy_from_slice(&[0x12, 0x34]);
    frame
}

/// What the program gets, and sends on by its right port as `changed`.
fn pass(rig: &mut Rig, changed: impl Fn(&[u8]) -> Vec<u8>) -> usize {
    let frames = rig.sent(LEFT.index());
    frames.iter().for_each(|frame| rig.receive(RIGHT.index(), &changed(frame)));
    rig.turn();
    frames.len()
}

#[test]
fn a_measured_packet_is_known_again_when_it_comes_back() {
    let mut rig = rig();
    // The program passes it on as it is, or as a router does.
    for (tick, changed) in [(2, (|frame| frame.to_vec()) as fn(&[u8]) -> Vec<u8>), (4, routed)] {
        rig.tick(tick);
        let mut measured = Vec::new();
        // Some bursts are left out.
        for number in 0..4 {
            rig.receive(0, &udp(1, 2, number));
            rig.turn();
            measured.extend(rig.measured());
        }
        assert_eq!(measured, [Span::Ports(CLIENT, LEFT)]);
        assert_eq!(pass(&mut rig, changed), 4);
        assert_eq!(rig.measured(), [HOP, Span::Chain(CHAIN), Span::Ports(CLIENT, SERVER)]);
        assert_eq!(rig.sent(SERVER.index()).len(), 4);
    }
    rig.assert_nothing_leaked();
}

#[test]
fn another_packet_is_not_taken_for_the_measured_one() {
    let mut rig = rig();
    rig.receive(0, &udp(1, 2, 80));
    rig.turn();
    rig.measured();
    // As NAT does, or as the next datagram of the flow.
    let builder = || FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
    let ip =
        |builder: FrameBuilder<'static>| builder.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let other_flow = ip(builder()).udp(1001, 80).payload(b"payload").to_vec().unwrap();
    let next = ip(builder()).udp(1000, 80).payload(b"another").to_vec().unwrap();
    for frame in [other_flow, next] {
        rig.receive(RIGHT.index(), &frame);
        rig.turn();
        assert!(!rig.measured().contains(&HOP));
    }
    // It waits for the packet, and measures no other one of this worker's meanwhile.
    pass(&mut rig, <[u8]>::to_vec);
    assert!(rig.measured().contains(&HOP));
}

#[test]
fn a_packet_that_another_worker_receives_from_the_program_is_known_again_there() {
    let mut rigs = [rig(), rig()];
    let awaited = Arc::default();
    let mut id = WorkerId(0);
    let samples = rigs.each_mut().map(|rig| {
        let (samples, taken) = rtrb::RingBuffer::new(8);
        rig.worker.dp.latency = Latency::new(id, samples, Arc::clone(&awaited));
        id = WorkerId(1);
        rig.worker.dp.latency.measure(true);
        taken
    });
    let [mut of_first, mut of_second] = samples;
    rigs[0].receive(0, &udp(1, 2, 80));
    rigs[0].turn();
    let frame = rigs[0].sent(LEFT.index()).remove(0);
    rigs[1].receive(RIGHT.index(), &frame);
    rigs[1].turn();
    let spans = |of: &mut rtrb::Consumer<LatencySample>| {
        std::iter::from_fn(|| of.pop().ok()).map(|sample| sample.span).collect::<Vec<_>>()
    };
    assert_eq!(spans(&mut of_first), [Span::Ports(CLIENT, LEFT)]);
    assert_eq!(spans(&mut of_second), [HOP, Span::Chain(CHAIN), Span::Ports(CLIENT, SERVER)]);
}

const fn to_program() -> Step {
    Step::ToNf { role: ROLE, hop: 0 }
}

const fn from_program() -> Step {
    Step::FromNf { role: ROLE, hop: 0, verdict: NfVerdict::Next }
}

#[test]
fn a_trace_goes_on_with_the_next_packet_of_the_flow_that_comes_back() {
    let mut rig = rig();
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 80));
    rig.turn();
    assert!(rig.traced().is_empty(), "the program has it");
    // Another flow is another packet.
    rig.receive(RIGHT.index(), &udp(1, 2, 81));
    rig.turn();
    let other = without_lookups(only(&mut rig));
    assert_eq!(other, [Step::In(RIGHT), from_program(), Step::Left, Step::Out(SERVER)]);
    pass(&mut rig, routed);
    let steps = without_lookups(only(&mut rig));
    let end = [to_program(), Step::Out(LEFT), Step::CameBack(RIGHT), from_program()];
    assert!(steps.windows(4).any(|some| *some == end), "{steps:?}");
    assert_eq!(steps.last(), Some(&Step::Out(SERVER)), "{steps:?}");
    rig.assert_nothing_leaked();
}

#[test]
fn packets_of_a_flow_are_taken_in_order_and_those_that_do_not_come_back_are_given_up() {
    let mut rig = rig();
    rig.start_trace(1, None);
    for number in [1, 2] {
        rig.receive(0, &udp(1, 2, 80));
        rig.turn();
        assert_eq!(rig.sent(LEFT.index()).len(), 1, "{number}");
    }
    rig.receive(RIGHT.index(), &udp(1, 2, 80));
    rig.turn();
    let first = rig.traced().remove(0);
    assert_eq!(first.packet.count, 0);
    let recorder = rig.worker.dp.recorder.as_mut().unwrap();
    let later = netvm_clock::cycles() + netvm_clock::cycles_in_micros(1_100_000);
    let second = recorder.take_ended(later).unwrap();
    assert_eq!(second.packet.count, 1);
    let lost = second.events.list().last().map(|event| format!("{:?}", event.what)).unwrap();
    assert!(lost.contains(&format!("{:?}", Lost::InProgram)), "{lost}");
}

#[test]
fn a_packet_that_does_not_get_into_the_program_is_not_waited_for() {
    let mut rig = rig();
    drop(rig.worker.dp.ports.remove(LEFT));
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 80));
    rig.turn();
    let steps = only(&mut rig);
    assert!(matches!(steps[..], [.., Step::ToNf { .. }, Step::Dropped(_)]), "{steps:?}");
}

#[test]
fn the_worker_of_the_other_port_waits_for_a_traced_packet() {
    let mut rigs = [rig(), rig()];
    // The second worker has the program's right port.
    drop(rigs[0].worker.dp.ports.remove(RIGHT));
    for (n, ((rig, mut handoff), mut trace)) in
        (0..).zip(rigs.iter_mut().zip(two(80)).zip(LiveTrace::for_workers(2, None, None)))
    {
        rig.worker.dp.id = WorkerId(n);
        if n == 0 {
            handoff.set_owner(RIGHT, Some(WorkerId(1)));
        }
        rig.worker.dp.ports.handoff = handoff;
        trace.set_id(TraceId(1));
        rig.command(Command::AddTrace(Box::new(trace)));
    }
    let [first, second] = &mut rigs;
    first.receive(0, &udp(1, 2, 80));
    first.turn();
    let frame = first.sent(LEFT.index()).remove(0);
    second.receive(RIGHT.index(), &frame);
    second.turn();
    let [begin, end] = [first.traced().remove(0), second.traced().remove(0)];
    assert_eq!((begin.packet, begin.received), (end.packet, end.received));
    assert!(steps_of(first, &begin).ends_with(&[to_program(), Step::Out(LEFT)]), "{begin:?}");
    let of_end = steps_of(second, &end);
    assert!(of_end.starts_with(&[Step::CameBack(RIGHT), from_program()]), "{of_end:?}");
    assert_eq!(of_end.last(), Some(&Step::Out(SERVER)));
    assert!(Share::are_whole([begin.share, end.share].into_iter()));
}

/// The worker follows a snapshot with this target, as one of the manager.
fn follow(rig: &mut Rig, target: Target) {
    let snapshot = with_target(&rig.worker.snapshot, target);
    rig.command(Command::Snapshot(Arc::new(snapshot)));
    while rig.turn() > 0 {}
}

#[test]
fn packets_wait_for_a_program_that_starts_and_enter_it_in_order() {
    let mut rig = rig();
    follow(&mut rig, Target::Start(ROLE));
    let frames: Vec<_> = (0..70).map(|port| udp(1, 2, port)).collect();
    for (n, frame) in frames.iter().enumerate() {
        rig.receive(0, frame);
        if n % 20 == 0 {
            rig.turn();
        }
    }
    while rig.turn() > 0 {}
    // It still starts.
    follow(&mut rig, Target::Start(ROLE));
    assert!(rig.sent(LEFT.index()).is_empty() && rig.sent(SERVER.index()).is_empty());
    let chain = |rig: &Rig| {
        let chain = &rig.counters().chains[CHAIN.index()];
        (chain.entered.get(), chain.left.get())
    };
    assert_eq!(chain(&rig), (0, 0));
    follow(&mut rig, ready());
    assert_eq!(rig.sent(LEFT.index()), frames);
    assert_eq!(chain(&rig), (70, 0));
    assert_eq!(rig.worker.dp.start_queue.len(), 0);
    rig.assert_nothing_leaked();
}

#[test]
fn no_more_packets_wait_than_there_is_room_for_and_the_rest_is_counted() {
    let mut rig = rig();
    follow(&mut rig, Target::Start(ROLE));
    rig.worker.dp.start_queue.take_room(ROLE, MAX_OF_ROLE - 2);
    (0..5).for_each(|port| rig.receive(0, &udp(1, 2, port)));
    rig.turn();
    assert_eq!(rig.dropped_in_chain(DropReason::StartQueueFull), 3);
    // It does not come, and the chain is passed by.
    follow(&mut rig, Target::Port(SERVER));
    assert_eq!(rig.sent(SERVER.index()), [udp(1, 2, 0), udp(1, 2, 1)]);
    rig.assert_nothing_leaked();
}

#[test]
fn packets_that_wait_are_dropped_and_counted_if_the_program_does_not_come_or_the_worker_ends() {
    let mut rig = rig();
    for (number, end) in [(1, Some(Target::Drop(DropReason::NfDown))), (2, None)] {
        follow(&mut rig, Target::Start(ROLE));
        rig.receive(0, &udp(1, 2, 80));
        rig.turn();
        match end {
            Some(target) => follow(&mut rig, target),
            None => rig.worker.finish(),
        }
        assert_eq!(rig.dropped_in_chain(DropReason::NfDown), number);
    }
    rig.assert_nothing_leaked();
}

#[test]
fn a_traced_packet_waits_and_goes_on() {
    let mut rig = rig();
    follow(&mut rig, Target::Start(ROLE));
    rig.start_trace(1, None);
    rig.receive(0, &udp(1, 2, 80));
    rig.turn();
    follow(&mut rig, Target::Port(SERVER));
    let steps = without_lookups(only(&mut rig));
    assert!(steps.contains(&Step::Waiting(ROLE)) && steps.last() == Some(&Step::Out(SERVER)), "{steps:?}");
}

#[test]
fn what_a_failed_program_returns_is_dropped_as_others_have_overtaken_it() {
    let mut rig = rig();
    let first = udp(1, 2, 80);
    rig.receive(0, &first);
    rig.turn();
    let mut snapshot = with_target(&rig.worker.snapshot, Target::Port(SERVER));
    let returns = [back(LEFT, RIGHT, [None; 2]), back(RIGHT, LEFT, [Some(passed(CHAIN, CLIENT)), None])];
    let down = returns.map(|one| PairReturn { is_up: false, ..one });
    snapshot.pairs = PairPorts::new(down.into());
    rig.command(Command::Snapshot(Arc::new(snapshot)));
    let second = udp(1, 2, 81);
    rig.receive(0, &second);
    rig.turn();
    assert_eq!(pass(&mut rig, <[u8]>::to_vec), 1);
    assert_eq!(rig.sent(SERVER.index()), [second]);
    assert_eq!(rig.dropped_at(RIGHT.index(), DropReason::LateFromHop), 1);
    rig.assert_nothing_leaked();
}
