// SPDX-License-Identifier: Apache-2.0
//! Batches: packets are split among them in order, and none is lost or freed twice.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{bytes, packet, pool};
use dpdk::{Batch, Pool};

/// A batch of packets of one byte each: their places.
fn numbered(pool: &Pool, count: u8) -> Batch {
    let mut batch = Batch::new();
    for n in 0..count {
        batch.add(packet(pool, &[n]));
    }
    batch
}

fn numbers(batch: &Batch) -> Vec<u8> {
    batch.into_iter().map(|packet| bytes(packet)[0]).collect()
}

#[test]
fn a_partition_keeps_the_order_and_every_packet() {
    let pool = pool(64);
    for (count, divisor) in [(0, 2), (1, 2), (10, 3), (64, 2), (64, 1), (64, 65)] {
        let mut batch = numbered(&pool, count);
        let others = batch.partition(|packet| bytes(packet)[0].is_multiple_of(divisor));
        let (even, odd): (Vec<u8>, Vec<u8>) = (0..count).partition(|n: &u8| n.is_multiple_of(divisor));
        assert_eq!((numbers(&batch), numbers(&others)), (even, odd));
        assert_eq!(pool.in_use(), u32::from(count));
        drop((batch, others));
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn a_batch_retains_what_is_accepted_and_frees_the_rest() {
    let pool = pool(64);
    let mut batch = numbered(&pool, 9);
    batch.retain(|packet| bytes(packet)[0] > 5);
    assert_eq!(numbers(&batch), [6, 7, 8]);
    assert_eq!(pool.in_use(), 3);
    batch.retain(|_| false);
    assert!(batch.is_empty());
    assert_eq!(pool.in_use(), 0);
    assert_eq!(numbers(&Batch::from(packet(&pool, &[7]))), [7]);
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn no_packet_is_added_without_room() {
    let pool = pool(128);
    let mut batch = numbered(&pool, 64);
    assert_eq!(batch.room(), 0);
    batch.add(packet(&pool, &[64]));
}
