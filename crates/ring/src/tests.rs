// SPDX-License-Identifier: Apache-2.0
//! Tests of descriptors, of the layout of slots, and of the two ends against a plain queue and hostile peers.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::memory::{BLOCK, word_position};
use crate::sync::Ordering;
use crate::{Consumer, Descriptor, HeapRing, Message, Producer, RingMemory, Span, VerdictKind};

fn ends(ring: &HeapRing) -> (Producer, Consumer) {
    // SAFETY: this test makes no other ends of the ring.
    unsafe { (ring.memory().producer(), ring.memory().consumer()) }
}

fn numbered(n: u32) -> Descriptor {
    Descriptor::new(n & Descriptor::MAX_BUFFER, n as u16, (n >> 3) as u16).on_path(n as u16, 1, 2, 3)
}

proptest! {
    /// Compares the ring with a plain queue, from any first index (wrap-around included).
    #[test]
    fn behaves_as_a_bounded_queue(first: u32, log in 1u32..6, steps in prop::collection::vec((any::<bool>(), 0usize..80), 1..60)) {
        let ring = HeapRing::new(1 << log, first);
        let (mut producer, mut consumer) = ends(&ring);
        let mut model = VecDeque::new();
        let (mut next, mut popped_before) = (0, Vec::new());
        for (push, count) in steps {
            if push {
                let batch: Vec<_> = (0..count as u32).map(|n| numbered(next + n)).collect();
                let pushed = producer.push(&batch);
                prop_assert_eq!(pushed, count.min((1 << log) - model.len()));
                model.extend(&batch[..pushed]);
                next += pushed as u32;
            } else {
                let mut out = vec![Descriptor::default(); count];
                let popped = consumer.pop(&mut out);
                prop_assert_eq!(popped, count.min(model.len()));
                for got in &out[..popped] {
                    prop_assert_eq!(Some(*got), model.pop_front());
                }
                popped_before.extend_from_slice(&out[..popped]);
            }
            let free = (1 << log) - model.len();
            let consumed: Vec<_> = ring.memory().consumed().collect();
            prop_assert_eq!(consumed.len(), free);
            let known = free.min(popped_before.len());
            prop_assert_eq!(&consumed[free - known..], &popped_before[popped_before.len() - known..]);
            prop_assert_eq!(ring.memory().occupancy() as usize, model.len());
        }
        prop_assert_eq!(producer.faults() + consumer.faults(), 0);
    }

    /// Pops matching descriptors up to the row of the first difference, and loses none.
    #[test]
    fn matching_descriptors_are_popped_in_rows(first: u32, count in 1u32..120, odd in 0u32..150, what in 0u8..3) {
        let ring = HeapRing::new(128, first);
        let (mut producer, mut consumer) = ends(&ring);
        let packet = |n: u32| Span::new(n, 64, 100);
        let at = |n: u32| Descriptor::of(packet(n)).on_path(7, 2, 0, 1);
        let sent: Vec<_> = (0..count).map(|n| match what {
            0 if n == odd => at(n + 1),
            1 if n == odd => at(n).with_span(64, 101),
            2 if n == odd => at(n).with_verdict(VerdictKind::Drop, 0),
            _ => at(n),
        }).collect();
        prop_assert_eq!(producer.push(&sent), sent.len());
        consumer.prefetch(128);
        let expected: Vec<_> = (0..150).map(packet).collect();
        let taken = consumer.pop_matching(&expected, at(0).verdict_key());
        let same = odd.min(count) as usize;
        prop_assert!(taken <= same && (taken == sent.len() || taken + BLOCK as usize > same));
        let mut rest = Vec::new();
        consumer.pop_cached(128, |descriptor| { rest.push(descriptor); true });
        prop_assert_eq!(&rest[..], &sent[taken..]);
    }

    /// Neither end reads or writes beyond the ring, whatever the peer claims.
    #[test]
    fn a_hostile_index_is_bounded(first: u32, claims in prop::collection::vec(any::<u32>(), 1..40)) {
        let ring = HeapRing::new(8, first);
        let (mut producer, mut consumer) = ends(&ring);
        let mut out = [Descriptor::default(); 16];
        for claim in claims {
            ring.claim_head(claim);
            prop_assert!(producer.push(&[numbered(claim); 16]) <= 8);
            ring.claim_tail(claim.rotate_left(7));
            prop_assert!(consumer.pop(&mut out) <= 8);
        }
    }

    /// Finds the slots that a producer wrote and did not publish, and none of the lap before.
    #[test]
    fn unpublished_slots_are_found(first: u32, published in 0u32..40, drained in 0u32..40, written in 0u32..8) {
        let ring = HeapRing::new(8, first);
        let (mut producer, mut consumer) = ends(&ring);
        for n in 0..published {
            if producer.push(&[numbered(n)]) == 0 {
                consumer.pop(&mut [Descriptor::default(); 3]);
                producer.push(&[numbered(n)]);
            }
        }
        for _ in 0..drained {
            consumer.pop(&mut [Descriptor::default()]);
        }
        let written = written.min(producer.room(written));
        for n in 0..written {
            producer.write(n, numbered(1000 + n));
        }
        let found: Vec<_> = ring.memory().unpublished().collect();
        let expected: Vec<_> = (0..written).map(|n| numbered(1000 + n)).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_new_producer_continues_behind_the_published_tail() {
    let ring = HeapRing::new(4, 0);
    let (mut producer, mut consumer) = ends(&ring);
    assert_eq!(producer.push(&[numbered(1), numbered(2)]), 2);
    // SAFETY: the first producer is not used again.
    let mut second = unsafe { ring.memory().producer() };
    assert_eq!(second.push(&[numbered(3), numbered(4), numbered(5)]), 2);
    let mut out = [Descriptor::default(); 4];
    assert_eq!(consumer.pop(&mut out), 4);
    assert_eq!(out, [1, 2, 3, 4].map(numbered));
}

#[test]
fn impossible_indexes_are_counted() {
    let ring = HeapRing::new(4, 0);
    let (mut producer, mut consumer) = ends(&ring);
    ring.claim_tail(5);
    assert_eq!((consumer.available(), consumer.faults()), (0, 1));
    ring.claim_tail(0);
    assert_eq!(producer.push(&[numbered(0); 4]), 4);
    ring.claim_head(5);
    assert_eq!((producer.room(1), producer.faults()), (0, 1));
}

#[test]
fn a_tail_that_goes_back_is_counted_and_ignored() {
    let ring = HeapRing::new(8, 0);
    let (mut producer, mut consumer) = ends(&ring);
    let mut out = [Descriptor::default(); 32];
    assert_eq!(producer.push(&[1, 2, 3, 4].map(numbered)), 4);
    assert_eq!(consumer.pop(&mut out[..2]), 2);
    ring.claim_tail(3);
    assert_eq!((consumer.pop(&mut out), &out[..2], consumer.faults()), (2, &[3, 4].map(numbered)[..], 1));
    assert_eq!((consumer.pop(&mut out), consumer.available()), (0, 0), "nothing is read twice");
}

#[test]
fn a_head_that_goes_back_does_not_reduce_the_room() {
    let ring = HeapRing::new(8, 0);
    let (mut producer, mut consumer) = ends(&ring);
    assert_eq!(producer.push(&[0; 8].map(numbered)), 8);
    assert_eq!(consumer.pop(&mut [Descriptor::default(); 6]), 6);
    assert_eq!(producer.room(1), 6);
    ring.claim_head(1);
    assert_eq!((producer.room(7), producer.faults()), (6, 1));
    ring.claim_head(8);
    assert_eq!((producer.room(7), producer.faults()), (8, 1), "a valid head is accepted again");
}

#[test]
fn invalid_capacities_are_refused() {
    for capacity in [0, 1, 3, 1 << 17] {
        assert!(RingMemory::check_capacity(capacity).is_err(), "{capacity}");
    }
    assert!(RingMemory::check_capacity(1 << 16).is_ok());
}

#[test]
fn every_slot_has_its_own_words_and_rows_are_contiguous() {
    // Miri takes minutes for large rings, and their words are found as those of small ones.
    let largest = if cfg!(miri) { 10 } else { 16 };
    for capacity in (1..=largest).map(|order| 1u32 << order) {
        let mut taken = vec![false; capacity as usize];
        for index in 0..capacity {
            let position = word_position(index, capacity);
            assert!(!core::mem::replace(&mut taken[position], true), "{index} of {capacity}");
            assert_eq!(word_position(index.wrapping_sub(capacity), capacity), position, "the lap before");
        }
    }
    let ring = HeapRing::new(64, 0);
    let memory = ring.memory();
    for index in 0..64 {
        let row = memory.row(index, 64);
        assert_eq!(row.len() as u32, BLOCK - index % BLOCK);
        for (n, slot) in (0..).zip(row.slots()) {
            let same = memory.slot(index + n);
            assert!(core::ptr::eq(slot.low, same.low) && core::ptr::eq(slot.high, same.high));
        }
    }
}

#[test]
fn a_high_word_that_the_peer_changed_is_rewritten() {
    let ring = HeapRing::new(4, 0);
    // SAFETY: this test makes no other ends of the ring.
    let (mut producer, mut consumer) = unsafe { (ring.memory().producer(), ring.memory().consumer()) };
    let sent = [Descriptor::new(1, 2, 64).on_path(3, 4, 5, 6); 4];
    for lap in 0..3 {
        assert_eq!(producer.push(&sent), 4);
        let mut got = [Descriptor::default(); 4];
        assert_eq!(consumer.pop(&mut got), 4);
        assert_eq!(got, sent, "lap {lap}");
        (0..4).for_each(|index| ring.memory().slot(index).high.store(!0, Ordering::Relaxed));
    }
}

#[test]
fn adjacent_blocks_are_a_quarter_of_the_ring_apart() {
    let blocks = 512 / BLOCK;
    let at = |block: u32| word_position(block * BLOCK, 512) as u32 / BLOCK;
    let follower = |block: u32| (0..blocks).find(|other| at(*other) == at(block) + 1);
    let much_later =
        |block: &u32| follower(*block).is_none_or(|other| other.wrapping_sub(*block) % blocks >= blocks / 4);
    assert!((0..blocks).filter(much_later).count() as u32 >= blocks * 7 / 8);
}

proptest! {
    #[test]
    fn every_field_keeps_its_value(
        buffer in 0..=Descriptor::MAX_BUFFER, offset: u16, length: u16, chain: u16, hop: u8, argument: u16,
        worker: u8, hash: u8, port: u16, span: (u16, u16), raw: u8,
    ) {
        let d = Descriptor::new(buffer, offset, length).on_path(chain, hop, argument, worker).with_hash(hash);
        prop_assert_eq!((d.buffer(), d.offset(), d.length()), (buffer, offset, length));
        prop_assert_eq!((d.chain(), d.hop(), d.argument()), (chain, hop, argument));
        prop_assert_eq!((d.worker(), d.hash(), d.verdict()), (worker, hash, VerdictKind::Next as u8));
        let sent = d.with_verdict(VerdictKind::Port, port).with_span(span.0, span.1).with_hop(hop.wrapping_add(1));
        prop_assert_eq!((sent.verdict(), sent.argument()), (VerdictKind::Port as u8, port));
        prop_assert_eq!((sent.buffer(), sent.offset(), sent.length()), (buffer, span.0, span.1));
        prop_assert_eq!((sent.chain(), sent.hop()), (chain, hop.wrapping_add(1)));
        prop_assert_eq!((sent.worker(), sent.hash()), (worker, hash));
        prop_assert_eq!(sent.with_raw_verdict(raw).verdict(), raw);
        prop_assert_eq!(Descriptor::from_words(sent.to_words()), sent);
    }

    #[test]
    fn only_known_verdict_numbers_convert(raw: u8) {
        match VerdictKind::from_raw(raw) {
            Some(verdict) => prop_assert_eq!(verdict as u8, raw),
            None => prop_assert!(raw > VerdictKind::Hold as u8),
        }
    }

    #[test]
    fn a_message_is_not_a_packet(worker: u8, packet: u64, raw: u8, buffer in 0..=Descriptor::MAX_BUFFER, port: u16) {
        let all = [
            Message::WithdrawVerdicts,
            Message::RequestBuffers(port),
            Message::Release(buffer),
            Message::Ingress { buffer, port },
        ];
        for message in all {
            let sent = Descriptor::control(message, worker);
            prop_assert_eq!((sent.message(), sent.worker(), sent.is_control()), (Some(message), worker, true));
        }
        let message = Descriptor::withdrawal(worker);
        prop_assert_eq!((message.message(), message.worker()), (Some(Message::WithdrawVerdicts), worker));
        prop_assert_eq!((message.is_control(), VerdictKind::from_raw(message.verdict())), (true, None));
        prop_assert!(!message.with_verdict(VerdictKind::Next, 0).is_control());
        let hostile = Descriptor::from_words([packet, 0]).with_raw_verdict(raw);
        prop_assert_eq!(hostile.is_control(), raw > 127);
        prop_assert_eq!(hostile.message().is_some(), (128..=131).contains(&raw));
        prop_assert!(!(hostile.is_control() && VerdictKind::from_raw(raw).is_some()));
    }
}
