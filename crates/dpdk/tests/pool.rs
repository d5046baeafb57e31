// SPDX-License-Identifier: Apache-2.0
//! Pools over the caller's memory, and the ownership of their packets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{bytes, eal, layout, memory, null, packet, pool, pool_over, ring_port};
use dpdk::{Batch, BufferLayout, HEADROOM, HeapMemory, PacketMemory, Pool, PoolError, PoolOptions, Store};
use proptest::prelude::*;

fn layouts() -> impl Strategy<Value = (BufferLayout, PoolOptions)> {
    let first = (0_usize..3).prop_flat_map(|kind| match kind {
        0 => Just(0).boxed(),
        1 => (0_usize..1 << 16).boxed(),
        _ => (0_usize..1024).prop_map(|n| n * 64).boxed(),
    });
    let stride = prop_oneof![192_u32..4096, Just(2048), Just(9344), Just(65_472)];
    let store = prop_oneof![Just(Store::Stack), Just(Store::Ring)];
    (first, stride, 1_u32..700, 0_u16..=HEADROOM, 0_u32..=512, store).prop_map(
        |(first, stride, buffers, headroom, cache, store)| {
            let layout = BufferLayout { first, stride, buffers, headroom };
            (layout, PoolOptions { node: None, cache: cache.min(buffers * 2 / 3), store })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_buffer_has_its_mbuf_and_every_mbuf_its_buffer((layout, options) in layouts()) {
        let memory = memory(layout);
        let base = memory.base().as_ptr() as usize + layout.first;
        let pool = pool_over("layout", memory, layout, options).unwrap();
        prop_assert_eq!((pool.available(), pool.in_use()), (layout.buffers, 0));
        let mut seen = vec![false; layout.buffers as usize];
        let mut held = Vec::new();
        loop {
            let mut batch = Batch::new();
            // One by one at the end: a pool gives either all requested packets or none.
            if pool.alloc_into(&mut batch, 7) == 0 && pool.alloc_into(&mut batch, 1) == 0 {
                break;
            }
            for packet in &batch {
                let buffer = pool.buffer_of(packet);
                prop_assert!(!std::mem::replace(&mut seen[buffer as usize], true), "buffer {} twice", buffer);
                prop_assert_eq!(packet.buf_addr() as usize, base + buffer as usize * layout.stride as usize);
                prop_assert_eq!(u32::from(packet.buf_len()), layout.stride);
                prop_assert_eq!((packet.data_off(), packet.data_len(), packet.nb_segs()), (HEADROOM, 0, 1));
                prop_assert_eq!(pool.mbuf_of(buffer), Some(packet.as_ptr()));
                prop_assert!(pool.owns(packet));
            }
            held.push(batch);
        }
        prop_assert!(seen.into_iter().all(|seen| seen));
        prop_assert_eq!((pool.available(), pool.mbuf_of(layout.buffers)), (0, None));
        drop(held);
        prop_assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let good = layout(64);
    let make = |layout: BufferLayout, options| pool_over("bad", memory(good), layout, options);
    let options = PoolOptions { cache: 32, ..PoolOptions::default() };
    assert!(make(good, options).is_ok());
    let refused = |layout, options| make(layout, options).unwrap_err();
    assert!(matches!(refused(BufferLayout { buffers: 0, ..good }, options), PoolError::Empty(_)));
    assert!(matches!(refused(BufferLayout { stride: 191, ..good }, options), PoolError::Stride { .. }));
    assert!(matches!(
        refused(BufferLayout { stride: (128 << 10) + 1, buffers: 1, ..good }, options),
        PoolError::Stride { .. }
    ));
    assert!(matches!(refused(BufferLayout { headroom: 129, ..good }, options), PoolError::Headroom { .. }));
    assert!(matches!(refused(BufferLayout { buffers: 65, ..good }, options), PoolError::Outside { .. }));
    assert!(matches!(
        refused(BufferLayout { first: usize::MAX, ..good }, options),
        PoolError::Outside { .. }
    ));
    let error = refused(good, PoolOptions { cache: 43, ..options });
    assert_eq!(error.to_string(), "pool bad: caches of 43 packets with 64 buffers; use at most 42");
    let nul = pool_over("a\0b", memory(good), good, options).unwrap_err();
    assert!(matches!(nul, PoolError::Name(_)));
}

#[test]
fn too_little_eal_memory_is_said() {
    struct Claimed;
    // SAFETY: the memory is not as described, but the pool cannot be made, so nothing writes to it.
    unsafe impl PacketMemory for Claimed {
        fn base(&self) -> NonNull<u8> {
            NonNull::<u64>::dangling().cast()
        }
        fn len(&self) -> usize {
            1 << 40
        }
    }
    let many = BufferLayout { first: 0, stride: 256, buffers: 16 << 20, headroom: 0 };
    let error = pool_over("huge", Arc::new(Claimed), many, PoolOptions::default()).unwrap_err();
    assert!(matches!(error, PoolError::Refused { errno: libc::ENOMEM, .. }), "{error}");
    assert!(error.to_string().contains("MiB of DPDK's memory"), "{error}");
}

#[test]
fn a_buffer_keeps_its_bytes_and_nothing_else_is_written() {
    let layout = BufferLayout { first: 4096, stride: 320, buffers: 8, headroom: 0 };
    let memory = memory(layout);
    let options = PoolOptions { cache: 0, ..PoolOptions::default() };
    let pool = pool_over("bytes", Arc::clone(&memory) as _, layout, options).unwrap();
    let written = packet(&pool, &[0xab; 192]);
    assert_eq!((written.pkt_len(), written.data_len()), (192, 192));
    let at = layout.first + pool.buffer_of(&written) as usize * 320 + usize::from(HEADROOM);
    // SAFETY: the whole memory; no other thread writes to it.
    let all = unsafe { std::slice::from_raw_parts(memory.base().as_ptr(), memory.len()) };
    assert!(
        all.iter().enumerate().all(|(i, &byte)| byte == if (at..at + 192).contains(&i) { 0xab } else { 0 })
    );
    assert_eq!(bytes(&written), [0xab; 192]);
}

#[test]
fn bounds_keep_to_the_buffer() {
    let pool = pool(4);
    let mut packet = packet(&pool, b"hello");
    assert!(packet.copy_from(&[0; 1921]).is_err() && packet.copy_from(&[0; 70_000]).is_err());
    assert_eq!(bytes(&packet), b"hello");
    packet.set_bounds(HEADROOM + 1, 3).unwrap();
    assert_eq!(bytes(&packet), b"ell");
    packet.set_bounds(0, 2048).unwrap();
    packet.set_bounds(2048, 0).unwrap();
    let error = packet.set_bounds(2000, 49).unwrap_err();
    assert_eq!((error.offset, error.length, error.buffer, error.segments), (2000, 49, 2048, 1));
    assert!(packet.set_bounds(u16::MAX, u16::MAX).is_err());
    assert_eq!((packet.data_off(), packet.data_len()), (2048, 0));
}

#[test]
fn batches_own_their_packets() {
    let pool = pool(256);
    let mut batch = Batch::new();
    assert_eq!(pool.alloc_into(&mut batch, 1000), Batch::CAPACITY);
    assert_eq!((batch.room(), pool.alloc_into(&mut batch, 1)), (0, 0));
    let extra = packet(&pool, b"extra");
    let extra = batch.push(extra).unwrap_err();
    assert_eq!((bytes(&extra).as_slice(), pool.in_use()), (&b"extra"[..], 65));
    drop(extra);
    drop(batch.pop());
    assert_eq!((batch.len(), pool.in_use()), (63, 63));

    // A drain that is not finished frees the rest.
    let kept: Vec<_> = batch.drain().take(3).collect();
    assert_eq!((batch.len(), kept.len(), pool.in_use()), (0, 3, 3));
    for packet in kept {
        batch.push(packet).unwrap();
    }

    // Moving between batches, to the end of which, and in order.
    let mut other = Batch::new();
    assert_eq!(pool.alloc_into(&mut other, 62), 62);
    let order: Vec<_> = other.raw().iter().chain(batch.raw()).copied().collect();
    assert_eq!(other.append(&mut batch), 2);
    assert_eq!((other.len(), batch.len(), pool.in_use()), (64, 1, 65));
    assert_eq!(other.raw().iter().chain(batch.raw()).copied().collect::<Vec<_>>(), order);

    // Reordering through the slice keeps each packet once.
    other.as_mut_slice().reverse();
    std::mem::swap(&mut other.as_mut_slice()[0], &mut batch.as_mut_slice()[0]);
    other.clear();
    assert_eq!((other.len(), pool.in_use()), (0, 1));

    // The caller owns released packets.
    let released = batch.release()[0];
    drop(batch);
    assert_eq!(pool.in_use(), 1);
    // SAFETY: released above, and without another owner.
    drop(unsafe { released.own() });
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_batch_of_two_pools_goes_back_to_both() {
    let (one, two) = (pool(64), pool(64));
    let mut batch = Batch::new();
    for pool in [&one, &two, &one] {
        assert_eq!(pool.alloc_into(&mut batch, 8), 8);
    }
    assert!(
        one.owns(&batch.as_slice()[0]) && !one.owns(&batch.as_slice()[8]) && two.owns(&batch.as_slice()[8])
    );
    assert_eq!((one.in_use(), two.in_use()), (16, 8));
    batch.clear();
    assert_eq!((batch.len(), one.in_use(), two.in_use()), (0, 0, 0));
}

#[test]
fn frames_are_where_they_were_asked_for_and_never_outside_their_buffers() {
    let pool = pool(64);
    let mut batch = Batch::new();
    assert_eq!(pool.alloc_frames_into(&mut batch, 8, 256, 1792), 8);
    for packet in batch.as_slice() {
        assert_eq!((packet.data_off(), packet.data_len(), packet.pkt_len()), (256, 1792, 1792));
        assert_eq!((packet.nb_segs(), packet.refcnt()), (1, 1));
    }
    assert_eq!(pool.alloc_frames_into(&mut batch, 1, 256, 1793), 0);
    batch.clear();
    assert_eq!(pool.alloc_into(&mut batch, 8), 8);
    assert!(batch.as_slice().iter().all(|packet| packet.data_off() == HEADROOM && packet.pkt_len() == 0));
}

#[test]
fn a_stack_gives_the_buffers_used_last() {
    let options = PoolOptions { cache: 0, store: Store::Stack, ..PoolOptions::default() };
    let pool = pool_over("lifo", memory(layout(1024)), layout(1024), options).unwrap();
    let mut batch = Batch::new();
    pool.alloc_into(&mut batch, 32);
    batch.as_mut_slice()[0].copy_from(&[1]).unwrap();
    batch.as_mut_slice()[0].set_mark(7);
    assert_eq!(pool.copy_of(&batch.as_slice()[0]).unwrap().mark(), 7);
    let mut first: Vec<_> = batch.raw().to_vec();
    batch.clear();
    pool.alloc_into(&mut batch, 32);
    assert!(batch.as_slice().iter().all(|mbuf| mbuf.mark() == 0));
    let mut second: Vec<_> = batch.raw().to_vec();
    first.sort_by_key(|mbuf| mbuf.as_ptr());
    second.sort_by_key(|mbuf| mbuf.as_ptr());
    assert_eq!(first, second);
}

/// Records that it was dropped.
struct Watched {
    memory: HeapMemory,
    gone: Arc<AtomicBool>,
}

// SAFETY: all by HeapMemory.
unsafe impl PacketMemory for Watched {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

fn watched(name: &str) -> (Pool, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let memory = Watched { memory: HeapMemory::new(128 * 2048).unwrap(), gone: Arc::clone(&gone) };
    let options = PoolOptions { cache: 64, ..PoolOptions::default() };
    (pool_over(name, Arc::new(memory), layout(128), options).unwrap(), gone)
}

#[test]
fn a_pool_is_freed_with_its_memory_once_all_packets_are_back() {
    let (pool, gone) = watched("whole");
    let _registered = eal().register_thread().unwrap();
    let mut batch = Batch::new();
    pool.alloc_into(&mut batch, 64);
    batch.clear();
    assert!(!gone.load(Ordering::Relaxed));
    drop(pool);
    assert!(gone.load(Ordering::Relaxed));
}

#[test]
fn a_packet_outlives_its_pool() {
    let (pool, gone) = watched("left");
    let left = packet(&pool, b"still here");
    drop(pool);
    assert!(!gone.load(Ordering::Relaxed));
    assert_eq!(bytes(&left), b"still here");
    drop(left);
}

#[test]
fn pools_come_and_go_while_other_threads_free_at_full_speed() {
    let stop = AtomicBool::new(false);
    let busy = pool(512);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let _registered = eal().register_thread().unwrap();
                let mut batch = Batch::new();
                while !stop.load(Ordering::Relaxed) {
                    busy.alloc_into(&mut batch, 32);
                    batch.clear();
                }
            });
        }
        for _ in 0..50 {
            let (pool, gone) = watched("comes");
            let mut batch = Batch::new();
            pool.alloc_into(&mut batch, 64);
            // Freed by another thread, and the pool dropped right after.
            scope.spawn(move || drop(batch)).join().unwrap();
            drop(pool);
            assert!(gone.load(Ordering::Relaxed));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(busy.in_use(), 0);
}

#[test]
fn caches_of_a_thread_that_ends_are_usable_by_others() {
    let pool = pool(100);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _registered = eal().register_thread().unwrap();
            let mut batch = Batch::new();
            pool.alloc_into(&mut batch, 60);
        });
    });
    let (mut one, mut two) = (Batch::new(), Batch::new());
    assert_eq!((pool.alloc_into(&mut one, 50), pool.alloc_into(&mut two, 50)), (50, 50));
}

#[test]
fn null_to_null_counts_and_leaks_nothing() {
    let pool = pool(1024);
    let before = pool.available();
    let (mut from, mut to) = (null(&pool), null(&pool));
    let mut batch = Batch::new();
    let (mut received, mut sent) = (0, 0);
    for _ in 0..1000 {
        received += from.rx[0].burst_of(&mut batch, 32);
        for packet in &batch {
            assert_eq!((packet.pkt_len(), packet.port()), (64, from.port.number()));
        }
        sent += to.tx[0].burst(&mut batch);
        assert!(batch.is_empty());
    }
    assert_eq!((received, sent), (32_000, 32_000));
    assert_eq!(from.port.stats().unwrap().rx_packets, 32_000);
    assert_eq!(to.port.stats().unwrap().tx_packets, 32_000);
    assert_eq!(pool.available(), before);
    assert_eq!(from.rx[0].burst(&mut batch), Batch::CAPACITY);
}

#[test]
fn what_a_full_queue_does_not_take_stays_in_the_batch() {
    let pool = pool(2048);
    let mut port = ring_port(&pool);
    let mut batch = Batch::new();
    for burst in 0..16 {
        pool.alloc_into(&mut batch, 64);
        for (i, packet) in (&mut batch).into_iter().enumerate() {
            packet.copy_from(&u16::try_from(burst * 64 + i).unwrap().to_be_bytes()).unwrap();
        }
        if burst < 15 {
            assert_eq!(port.tx[0].burst(&mut batch), 64);
        }
    }
    // 960 are in; the queue holds 1,023.
    assert_eq!(port.tx[0].burst(&mut batch), 63);
    assert_eq!(batch.len(), 1);
    assert_eq!(bytes(&batch.as_slice()[0]), 1023_u16.to_be_bytes());
    assert_eq!((port.tx[0].burst(&mut batch), batch.len()), (0, 1));

    let mut back = Batch::new();
    for expected in 0..1023_u16 {
        if back.is_empty() {
            assert!(port.rx[0].burst(&mut back) > 0);
            back.as_mut_slice().reverse();
        }
        assert_eq!(bytes(&back.pop().unwrap()), expected.to_be_bytes());
    }
    assert_eq!((port.tx[0].burst(&mut batch), port.rx[0].burst(&mut back), pool.in_use()), (1, 1, 1));
    drop((port, back));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_port_stays_open_while_a_queue_is_held() {
    let pool = pool(256);
    let weak = Arc::downgrade(&pool);
    let mut started = null(&pool);
    let number = started.port.number();
    let mut rx = started.rx.remove(0);
    drop((started, pool));
    let mut batch = Batch::new();
    assert_eq!(rx.burst_of(&mut batch, 32), 32);
    assert_eq!((rx.port(), batch.as_slice()[0].port()), (number, number));
    batch.clear();
    drop(rx);
    assert!(weak.upgrade().is_none());
}
