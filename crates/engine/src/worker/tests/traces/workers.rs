// SPDX-License-Identifier: Apache-2.0
//! Packets that one worker receives, and another one sends or handles: both follow them.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_conntrack::FlowOwners;
use netvm_model::Forward;

use super::super::rig::{Rig, udp};
use super::{port_of, steps_of};
use crate::drop_reason::DropReason;
use crate::ids::{PortId, TraceId, WorkerId};
use crate::snapshot::Snapshot;
use crate::worker::Command;
use crate::worker::handoff::tests::{PORT, two};
use crate::worker::record::{LiveTrace, Share, TraceRecord};
use crate::worker::trace::{Lost, Step};

const OTHER: Step = Step::HandedOver(WorkerId(1));

/// Two workers with ports that all have this `forward`, and a trace. The first has no queue of [`PORT`].
fn pair(forward: Forward) -> [Rig; 2] {
    let mut rigs = [(); 2].map(|()| Rig::new(&[forward; 8]));
    drop(rigs[0].worker.dp.ports.remove(PORT));
    let traces = LiveTrace::for_workers(2, None, None);
    for (n, ((rig, handoff), mut trace)) in (0..).zip(rigs.iter_mut().zip(two(80)).zip(traces)) {
        rig.worker.dp.id = WorkerId(n);
        rig.worker.dp.ports.handoff = handoff;
        trace.set_id(TraceId(1));
        rig.command(Command::AddTrace(Box::new(trace)));
    }
    rigs
}

/// A turn of each, and the records of each packet that have ended: those of the first worker, then those of the second.
fn turn([first, second]: &mut [Rig; 2]) -> Vec<Vec<TraceRecord>> {
    first.turn();
    second.turn();
    let mut packets: BTreeMap<_, Vec<TraceRecord>> = BTreeMap::new();
    for record in first.traced().into_iter().chain(second.traced()) {
        packets.entry(record.packet).or_default().push(record);
    }
    packets.into_values().collect()
}

fn is_whole(records: &[TraceRecord]) -> bool {
    Share::are_whole(records.iter().map(|record| record.share))
}

#[test]
fn a_packet_is_followed_by_the_worker_that_sends_it() {
    let mut rigs = pair(Forward::Port(PORT));
    (0..3).for_each(|n| rigs[0].receive(0, &udp(1, 2, n)));
    let packets = turn(&mut rigs);
    assert_eq!((packets.len(), rigs[1].sent(PORT.index()).len()), (3, 3));
    for (n, records) in (0..).zip(&packets) {
        let [first, second] = &records[..] else { panic!("{records:?}") };
        assert_eq!((first.by, second.by, second.home), (WorkerId(0), WorkerId(1), WorkerId(0)));
        let steps = steps_of(&rigs[0], first);
        assert_eq!((port_of(&steps), steps.last()), (n, Some(&OTHER)), "{steps:?}");
        assert!(!steps.contains(&Step::Out(PORT)), "it has no queue of the port");
        assert_eq!(steps_of(&rigs[1], second), [Step::Out(PORT)]);
        assert!(first.events.list().last().unwrap().cycles <= second.events.list()[0].cycles);
        assert!(is_whole(records) && first.received == second.received);
    }
    rigs.iter().for_each(Rig::assert_nothing_leaked);
}

#[test]
fn each_copy_of_a_flooded_packet_ends_at_its_worker() {
    let mut rigs = pair(Forward::Normal);
    rigs[0].receive(0, &udp(1, 2, 3));
    let packets = turn(&mut rigs);
    let [records] = &packets[..] else { panic!("{packets:?}") };
    let [first, second] = &records[..] else { panic!("{records:?}") };
    let steps = steps_of(&rigs[0], first);
    let sent = steps.iter().filter(|step| matches!(step, Step::Out(_))).count();
    assert_eq!((sent, steps.last()), (6, Some(&OTHER)), "{steps:?}");
    assert_eq!(steps_of(&rigs[1], second), [Step::Out(PORT)]);
    assert!(is_whole(records));
    rigs.iter().for_each(Rig::assert_nothing_leaked);
}

#[test]
fn a_packet_for_a_full_ring_of_another_worker_is_dropped() {
    let mut rigs = pair(Forward::Port(PORT));
    rigs[0].command(Command::RemoveTrace(TraceId(1)));
    (0..80).for_each(|n| rigs[0].receive(0, &udp(1, 2, n)));
    while rigs[0].turn() > 0 {}
    rigs[0].start_trace(2, None);
    rigs[0].receive(0, &udp(1, 2, 99));
    rigs[0].turn();
    let records = rigs[0].traced();
    let steps = steps_of(&rigs[0], &records[0]);
    assert_eq!((records.len(), steps.last()), (1, Some(&Step::Dropped(DropReason::HandoffFull))));
    rigs[1].turn();
    rigs[1].turn();
    rigs.iter().for_each(Rig::assert_nothing_leaked);
}

#[test]
fn without_a_record_for_the_other_worker_a_trace_says_so() {
    let mut rigs = pair(Forward::Normal);
    let ports = &mut rigs[0].worker.dp.ports;
    for port in (2..7).map(PortId) {
        drop(ports.remove(port));
        ports.set_owner(port, Some(WorkerId(1)));
    }
    (0..4).for_each(|n| rigs[0].receive(0, &udp(1, 2, n)));
    let packets = turn(&mut rigs);
    assert_eq!(packets.len(), 4);
    for records in &packets {
        let steps = steps_of(&rigs[0], &records[0]);
        let count = |step: &Step| steps.iter().filter(|other| *other == step).count();
        // Ports 2 to 7.
        assert_eq!(count(&OTHER), 6, "{steps:?}");
        assert_eq!(count(&Step::Lost(Lost::Elsewhere)), 6 + 1 - records.len(), "{steps:?}");
        assert!(records.len() < 7 && is_whole(records));
        let others = records[1..].iter().flat_map(|record| steps_of(&rigs[1], record));
        assert!(others.into_iter().all(|step| matches!(step, Step::Out(_))));
    }
    rigs.iter().for_each(Rig::assert_nothing_leaked);
}

#[test]
fn a_packet_is_followed_by_the_worker_that_owns_its_flow() {
    let mut rigs = pair(Forward::Port(PortId(1)));
    for rig in &mut rigs {
        let mut snapshot = Snapshot::clone(&rig.worker.snapshot);
        snapshot.owned.add(PortId(0));
        snapshot.owners = Arc::new(FlowOwners::default().among(2));
        rig.worker.snapshot = Arc::new(snapshot);
    }
    let mut handed_over = 0;
    for n in 0..64 {
        rigs[0].receive(0, &udp(1, 2, n));
        for records in turn(&mut rigs) {
            assert!(is_whole(&records));
            let first = steps_of(&rigs[0], &records[0]);
            match &records[..] {
                [_] => assert!(first.ends_with(&[Step::Out(PortId(1))]) && port_of(&first) == n),
                [_, second] => {
                    assert_eq!(first, [Step::In(PortId(0)), OTHER]);
                    let second = steps_of(&rigs[1], second);
                    assert!(second.ends_with(&[Step::Out(PortId(1))]) && port_of(&second) == n, "{second:?}");
                    handed_over += 1;
                }
                _ => panic!("{records:?}"),
            }
            for record in records {
                rigs[0].command(Command::ReuseRecord(record));
            }
        }
    }
    assert!((1..64).contains(&handed_over), "{handed_over}");
    rigs.iter().for_each(Rig::assert_nothing_leaked);
}
