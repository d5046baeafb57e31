// SPDX-License-Identifier: Apache-2.0
//! Tests both ends on an anonymous mapping: the test plays the kernel through a second view of it.

use super::*;

const OFFSETS: Offsets = Offsets { producer: 0, consumer: 64, flags: 128, desc: 192 };
const SIZE: u32 = 8;

fn memory() -> Mapping {
    Mapping::anonymous(4096).unwrap()
}

fn set(view: &View<u64>, producer: u32, consumer: u32) {
    view.producer().store(producer, Ordering::Relaxed);
    view.consumer().store(consumer, Ordering::Relaxed);
}

/// A producer whose indexes start at `start`.
fn producer(start: u32) -> Producer<u64> {
    let view = View::<u64>::new(memory(), &OFFSETS, SIZE).unwrap();
    set(&view, start, start);
    let mut ring = Producer { view, next: start, limit: start };
    ring.refresh();
    ring
}

fn consumer(start: u32) -> Consumer<u64> {
    let view = View::<u64>::new(memory(), &OFFSETS, SIZE).unwrap();
    set(&view, start, start);
    Consumer { view, next: start, limit: start }
}

#[test]
fn a_producer_survives_index_wraparound() {
    let mut ring = producer(u32::MAX - 2);
    let mut expected = u32::MAX - 2;
    for round in 0..40u64 {
        assert_eq!(ring.room(100), 8, "round {round}");
        for ahead in 0..5 {
            ring.write(ahead, round * 10 + ahead as u64);
        }
        ring.publish(5);
        assert!(ring.is_pending());
        assert_eq!(ring.room(100), 3);
        for ahead in 0..5u32 {
            // SAFETY: an entry of the ring; this thread plays both ends.
            let entry = unsafe { ring.view.entry(expected.wrapping_add(ahead)).read() };
            assert_eq!(entry, round * 10 + u64::from(ahead));
        }
        expected = expected.wrapping_add(5);
        assert_eq!(ring.view.producer().load(Ordering::Relaxed), expected);
        ring.view.consumer().store(expected, Ordering::Relaxed);
        assert!(!ring.is_pending());
    }
    assert!(expected < 1000, "the index did not wrap");
}

#[test]
fn a_consumer_survives_index_wraparound() {
    let mut ring = consumer(u32::MAX - 6);
    let mut at = u32::MAX - 6;
    for round in 0..40u64 {
        assert_eq!(ring.available(4), 0);
        for ahead in 0..7u32 {
            // SAFETY: an entry of the ring; this thread plays both ends.
            unsafe { ring.view.entry(at.wrapping_add(ahead)).write(round * 10 + u64::from(ahead)) };
        }
        at = at.wrapping_add(7);
        ring.view.producer().store(at, Ordering::Relaxed);
        assert_eq!(ring.available(4), 4);
        assert_eq!(
            (0..4).map(|i| ring.read(i)).collect::<Vec<_>>(),
            (0..4).map(|i| round * 10 + i).collect::<Vec<_>>()
        );
        ring.release(4);
        assert_eq!(ring.available(100), 3);
        assert_eq!(ring.read(2), round * 10 + 6);
        ring.release(3);
        assert_eq!(ring.view.consumer().load(Ordering::Relaxed), at);
    }
    assert!(at < 1000, "the index did not wrap");
}

#[test]
fn full_and_empty_rings_are_detected() {
    let mut ring = producer(0);
    assert_eq!(ring.room(3), 3);
    for i in 0..8 {
        ring.write(i, 1);
    }
    ring.publish(8);
    assert_eq!(ring.room(1), 0);
    ring.view.consumer().store(1, Ordering::Relaxed);
    assert_eq!(ring.room(8), 1);
    assert_eq!(consumer(0).available(8), 0);
}

#[test]
fn an_out_of_range_kernel_index_is_ignored() {
    let mut ring = producer(100);
    ring.publish(8);
    for wrong in [200, 99, u32::MAX, 0] {
        ring.view.consumer().store(wrong, Ordering::Relaxed);
        assert_eq!(ring.room(8), 0, "consumer index {wrong}");
    }
    let mut ring = consumer(100);
    for wrong in [109, 99, u32::MAX, 0] {
        ring.view.producer().store(wrong, Ordering::Relaxed);
        assert_eq!(ring.available(8), 0, "producer index {wrong}");
    }
}

#[test]
fn the_wakeup_flag_is_one_bit_of_the_flags() {
    let ring = producer(0);
    assert!(!ring.needs_wakeup());
    ring.view.flags().store(2, Ordering::Relaxed);
    assert!(!ring.needs_wakeup());
    ring.view.flags().store(3, Ordering::Relaxed);
    assert!(ring.needs_wakeup());
}

#[test]
fn offsets_outside_the_mapping_are_refused() {
    let refused = |offsets: Offsets, size| View::<u64>::new(memory(), &offsets, size).is_err();
    assert!(!refused(OFFSETS, 256));
    assert!(refused(OFFSETS, 512), "entries past the end");
    assert!(refused(OFFSETS, 6), "not a power of two");
    assert!(refused(OFFSETS, 0), "no entries");
    assert!(refused(Offsets { producer: 4094, ..OFFSETS }, SIZE), "index past the end");
    assert!(refused(Offsets { consumer: 66, ..OFFSETS }, SIZE), "index not aligned");
    assert!(refused(Offsets { desc: 196, ..OFFSETS }, SIZE), "entries not aligned");
    assert!(refused(Offsets { desc: u64::MAX, ..OFFSETS }, SIZE), "entry offset overflows");
}
