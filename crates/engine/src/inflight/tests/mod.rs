// SPDX-License-Identifier: Apache-2.0
//! What the state machine promises, case by case; `model` has the rest.

mod kept;
mod model;
mod steps;

use dpdk::{Batch, Mbuf};
use model::{BUFFERS, LENGTH, OFFSET, Rig, SHORT, link, nf_thread};
use netvm_ring::Span;
use steps::{ReturnPattern, Step};

use super::sweep::SweepScope;
use super::{MAX_CHANGES, queue};
use crate::ids::LinkId;

fn give_back(rig: &mut Rig, of: usize, by: usize, pattern: ReturnPattern) {
    rig.step(Step::Return { worker: 0, of, by, count: 64, pattern, to_other_worker: false });
}

#[test]
fn a_new_queue_is_closed_until_the_next_tick() {
    let mut rig = Rig::new();
    rig.hand_out(0, 0, 10);
    assert_eq!((rig.in_queue(0, 0), rig.in_table(0)), (0, 10));
    rig.step(Step::Tick);
    rig.hand_out(0, 0, 10);
    assert_eq!((rig.in_queue(0, 0), rig.in_table(0)), (10, 10));
    assert_eq!(rig.memory.in_flight.buffers_with(nf_thread(0)), 20);
    rig.step(Step::Spill);
    assert_eq!((rig.in_queue(0, 0), rig.in_table(0)), (0, 20));
    rig.empty();
}

#[test]
fn a_full_queue_leaves_packets_to_the_table() {
    let mut rig = Rig::new();
    rig.step(Step::Tick);
    for _ in 0..9 {
        rig.hand_out(0, 0, 64);
    }
    assert_eq!((rig.in_queue(0, 0), rig.in_table(0)), (queue::CAPACITY, 64));
    for _ in 0..9 {
        give_back(&mut rig, 0, 0, ReturnPattern::InOrder);
    }
    assert!(rig.model.is_empty());
}

#[test]
fn the_last_of_a_chain_returns_what_the_first_was_handed_in_order() {
    let mut rig = Rig::new();
    rig.step(Step::Tick);
    for _ in 0..10 {
        rig.hand_out(0, 0, 64);
        give_back(&mut rig, 0, 1, ReturnPattern::InOrder);
    }
    let last = rig.thread(0, 1);
    assert_eq!((last.source, last.changes, last.order_given_up), (link(0, 0), 1, false));
    rig.workers[0].remove_thread(link(0, 0)).unwrap();
    let last = rig.thread(0, 1);
    assert_eq!(last.source, link(0, 1), "the source is gone");
}

#[test]
fn order_is_given_up_for_a_tick() {
    let mut rig = Rig::new();
    rig.step(Step::Tick);
    rig.hand_out(0, 0, 64);
    rig.hand_out(0, 1, 64);
    give_back(&mut rig, 0, 0, ReturnPattern::Reversed);
    assert_eq!((rig.in_queue(0, 1), rig.in_table(0)), (0, 64), "all queues spill");
    rig.hand_out(0, 1, 64);
    assert_eq!(rig.in_queue(0, 1), 0, "all queues are closed");
    rig.step(Step::Tick);
    rig.hand_out(0, 1, 64);
    assert_eq!(rig.in_queue(0, 1), 64);
    rig.empty();
}

#[test]
fn a_source_that_changes_often_is_given_up() {
    let mut rig = Rig::new();
    rig.step(Step::Tick);
    for n in 0..=usize::from(MAX_CHANGES) + 1 {
        rig.hand_out(0, n % 2, 1);
        give_back(&mut rig, n % 2, 0, ReturnPattern::InOrder);
    }
    let thread = rig.thread(0, 0);
    assert_eq!((thread.changes, thread.order_given_up), (MAX_CHANGES, true));
}

#[test]
fn what_a_dead_producer_did_not_publish_is_swept_by_its_owner() {
    let mut rig = Rig::new();
    rig.step(Step::Tick);
    rig.hand_out(0, 0, 3);
    let buffers: Vec<_> = rig.threads[0].held.iter().map(|d| d.buffer()).collect();
    // It wrote the first into the ring of thread 1, with the owner table; the second without; the third nowhere.
    rig.memory.region().set_owner(buffers[0], nf_thread(1).0);
    let stranded = vec![(buffers[0], nf_thread(1)), (buffers[1], nf_thread(1)), (BUFFERS, nf_thread(1))];
    rig.model.get_mut(&buffers[0]).unwrap().nf_thread = nf_thread(1);
    rig.sweep(0, SweepScope::Gone { nf_threads: 0, stranded, held: None }, |out| {
        out.nf_thread == nf_thread(1)
    });
    rig.check();
    assert_eq!(rig.model.len(), 2);
    rig.empty();
}

#[test]
fn a_packet_without_a_whole_header_comes_back_only_as_it_was_handed_out() {
    for (is_in_order, pattern) in [
        (true, ReturnPattern::InOrder),
        (true, ReturnPattern::Stunted),
        (true, ReturnPattern::Trimmed),
        (false, ReturnPattern::InOrder),
        (false, ReturnPattern::Stunted),
        (false, ReturnPattern::Trimmed),
    ] {
        let mut rig = Rig::new();
        if is_in_order {
            rig.step(Step::Tick);
        }
        rig.hand_out(0, 0, 60);
        assert_eq!(rig.in_queue(0, 0), if is_in_order { 60 } else { 0 });
        assert!(rig.threads[0].held.iter().any(|descriptor| descriptor.length() == SHORT));
        // The model says which of them are packets.
        give_back(&mut rig, 0, 0, pattern);
        assert!(rig.model.is_empty(), "{pattern:?}");
    }
}

#[test]
fn nothing_is_handed_to_a_thread_that_does_not_exist() {
    let mut rig = Rig::new();
    let mut batch = Batch::new();
    rig.memory.pool.alloc_frames_into(&mut batch, 4, OFFSET, LENGTH);
    let never = |_: &[Mbuf], _: &[Span]| unreachable!();
    assert!(!rig.workers[0].hand_out(LinkId(99), 4, &mut batch, never));
    assert_eq!(batch.len(), 4);
}
