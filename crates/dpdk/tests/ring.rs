// SPDX-License-Identifier: Apache-2.0
//! DPDK's ring between two threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{bytes, eal, packet, pool};
use dpdk::{Batch, RingError};

#[test]
fn packets_cross_in_order_and_none_is_lost() {
    const COUNT: u32 = 200_000;

    let pool = pool(1024);
    let (mut producer, mut consumer) = dpdk::ring(eal(), 256, None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _registered = eal().register_thread().unwrap();
            let mut batch = Batch::new();
            let mut next = 0_u32;
            while next < COUNT || !batch.is_empty() {
                if batch.is_empty() {
                    pool.alloc_into(&mut batch, 32.min((COUNT - next) as usize));
                    for packet in &mut batch {
                        packet.copy_from(&next.to_be_bytes()).unwrap();
                        next += 1;
                    }
                }
                if producer.enqueue(&mut batch) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let _registered = eal().register_thread().unwrap();
        let (mut batch, mut expected) = (Batch::new(), 0_u32);
        while expected < COUNT {
            if consumer.dequeue(&mut batch, 32) == 0 {
                std::thread::yield_now();
            }
            for packet in &batch {
                assert_eq!(bytes(packet), expected.to_be_bytes());
                expected += 1;
            }
            batch.clear();
        }
    });
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_full_ring_leaves_the_rest_and_frees_what_it_holds() {
    let pool = pool(64);
    let (mut producer, mut consumer) = dpdk::ring(eal(), 8, None).unwrap();
    let mut batch = Batch::new();
    for n in 0..10 {
        batch.push(packet(&pool, &[n])).unwrap();
    }
    assert_eq!((producer.enqueue(&mut batch), batch.len()), (7, 3));
    assert_eq!(bytes(&batch.as_slice()[0]), [7]);
    let mut out = Batch::new();
    assert_eq!(consumer.dequeue(&mut out, 2), 2);
    assert_eq!((bytes(&out.as_slice()[0]), bytes(&out.as_slice()[1])), (vec![0], vec![1]));
    drop((producer, batch, out));
    assert_eq!(pool.in_use(), 5);
    drop(consumer);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn slots_are_a_power_of_two() {
    for slots in [0, 1, 3, 1 << 21] {
        assert_eq!(dpdk::ring(eal(), slots, None).unwrap_err(), RingError::Slots(slots));
    }
}
