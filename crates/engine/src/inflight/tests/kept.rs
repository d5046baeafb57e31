// SPDX-License-Identifier: Apache-2.0
//! Buffers that NF threads keep.

use dpdk::Batch;
use netvm_ring::{Descriptor, Span, VerdictKind};

use super::model::{LENGTH, OFFSET, Rig, link, nf_thread};
use super::steps::Step;
use crate::drop_reason::Violation;
use crate::inflight::sweep::{SweepRequest, SweepScope, Sweeps, Swept};
use crate::inflight::{Returned, Turn};

const QUOTA: u32 = 8;

/// Lets thread 0 of worker 0 keep `count` new buffers. Returns their descriptors.
fn keep(rig: &mut Rig, count: usize) -> Vec<Descriptor> {
    let mut batch = Batch::new();
    rig.memory.pool.alloc_frames_into(&mut batch, count, OFFSET, LENGTH);
    let link = link(0, 0);
    rig.workers[0].threads[link.index()].as_mut().unwrap().may_keep = QUOTA;
    let mut kept = Vec::new();
    let packet = |span: &Span| Descriptor::of(*span).on_path(0, 0, 0, 0);
    let number = rig.workers[0].keep(link, &mut batch, |spans| kept.extend(spans.iter().map(packet)));
    assert_eq!((number, batch.len()), (kept.len(), count - kept.len()));
    kept
}

/// What comes back of descriptors that a thread of worker 0 returns, in runs with their numbers of packets.
fn returned(rig: &mut Rig, by: usize, descriptors: &[Descriptor]) -> Vec<(Returned, usize)> {
    let by = link(0, by);
    let mut all = Vec::new();
    rig.give(by, descriptors);
    let mut turn = Turn::new(by);
    loop {
        let mut run = Batch::new();
        let from_nf = &mut rig.threads[by.index()].from_nf;
        match rig.workers[0].take_back(&mut turn, from_nf, &mut run) {
            Returned::Nothing => return all,
            other => all.push((other, run.len())),
        }
    }
}

fn sweep(rig: &mut Rig, what: SweepScope) -> Swept {
    let mut sweeps = Sweeps::default();
    sweeps.add(SweepRequest { ticket: 1, table: rig.memory.in_flight.clone(), what });
    sweeps.step(&mut rig.workers[0]).expect("fewer buffers than a slice").0
}

fn gone(thread: usize) -> SweepScope {
    SweepScope::Gone { nf_threads: 1 << nf_thread(thread).0, stranded: Vec::new(), held: None }
}

#[test]
fn a_thread_keeps_as_much_as_its_quota_allows_and_returns_each_once() {
    let mut rig = Rig::new();
    let kept = keep(&mut rig, 20);
    assert_eq!((kept.len(), rig.workers[0].room_to_keep(link(0, 0))), (8, 0));
    let out =
        |rig: &Rig| (rig.memory.in_flight.buffers_out(), rig.memory.in_flight.buffers_with(nf_thread(0)));
    assert_eq!(out(&rig), (8, 8));
    assert_eq!(rig.memory.in_flight.buffers_to_return(nf_thread(0)), 0);
    let refused = |number| vec![(Returned::Refused(Violation::BufferNotOut), 0); number];
    assert_eq!(returned(&mut rig, 1, &kept[..2]), refused(2), "another thread does not have them");
    assert_eq!(returned(&mut rig, 0, &kept[..3]), [(Returned::Kept(kept[0]), 3)]);
    assert_eq!(returned(&mut rig, 0, &kept[..3]), refused(3), "they are not out any more");
    let dropped = kept[3].with_verdict(VerdictKind::Drop, 0);
    let runs = [(Returned::Kept(dropped), 1), (Returned::Kept(kept[4]), 1)];
    assert_eq!(returned(&mut rig, 0, &[dropped, kept[4]]), runs);
    let long = kept[5].with_span(OFFSET, 4000);
    assert_eq!(returned(&mut rig, 0, &[long, long]), [(Returned::BadBounds, 0), refused(1)[0]]);
    assert!(rig.workers[0].take_kept(link(0, 1), kept[6].buffer()).is_err());
    assert!(rig.workers[0].take_kept(link(0, 0), kept[6].buffer()).is_ok());
    assert!(rig.workers[0].take_kept(link(0, 0), kept[6].buffer()).is_err(), "released twice");
    assert_eq!((out(&rig), rig.workers[0].room_to_keep(link(0, 0))), ((1, 1), 7));
    assert_eq!(sweep(&mut rig, SweepScope::All).buffers, 1);
    assert_eq!(rig.memory.pool.in_use(), 0);
}

#[test]
fn packets_between_keep_their_order_and_their_queue() {
    let mut rig = Rig::new();
    rig.step(Step::Tick);
    let kept = keep(&mut rig, 4);
    rig.hand_out(0, 0, 10);
    assert_eq!(rig.in_queue(0, 0), 10);
    let out = std::mem::take(&mut rig.threads[0].held);
    let mixed = [&out[..3], &kept[..2], &out[3..]].concat();
    let runs = [(Returned::Packets(out[0]), 3), (Returned::Kept(kept[0]), 2), (Returned::Packets(out[3]), 7)];
    assert_eq!(returned(&mut rig, 0, &mixed), runs);
    assert!(!rig.thread(0, 0).order_given_up);
    assert_eq!(sweep(&mut rig, gone(0)).buffers, 2);
    rig.model.clear();
    rig.check();
}

#[test]
fn a_sweep_finds_what_a_dead_thread_kept_and_an_audit_leaves_what_a_live_one_keeps() {
    let mut rig = Rig::new();
    let kept = keep(&mut rig, 5);
    for descriptor in &kept {
        // It accuses another one.
        rig.memory.region().set_owner(descriptor.buffer(), nf_thread(1).0);
    }
    assert_eq!(rig.memory.in_flight.buffers_with(nf_thread(0)), 5);
    let current = rig.memory.in_flight.next_generation();
    assert_eq!(sweep(&mut rig, SweepScope::Older { current }).buffers, 0);
    assert_eq!(sweep(&mut rig, gone(1)).buffers, 0);
    let swept = sweep(&mut rig, gone(0));
    assert_eq!((swept.buffers, swept.kept), (5, 5));
    assert_eq!(rig.memory.pool.in_use(), 0);
}
