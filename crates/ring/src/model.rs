// SPDX-License-Identifier: Apache-2.0
//! loom models: small runs under every interleaving and reordering that the memory model allows.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::{Descriptor, HeapRing};

fn numbered(n: u32) -> Descriptor {
    Descriptor::new(n, n as u16, n as u16).on_path(n as u16, 0, 0, 0)
}

/// Three descriptors pass a ring of two slots: each arrives whole, once and in order.
#[test]
fn descriptors_arrive_whole_and_in_order() {
    loom::model(|| {
        let ring = Arc::new(HeapRing::new(2, u32::MAX - 1));
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                // SAFETY: the only producer.
                let mut producer = unsafe { ring.memory().producer() };
                let mut next = 1;
                while next <= 3 {
                    if producer.push(&[numbered(next)]) == 1 {
                        next += 1;
                    } else {
                        thread::yield_now();
                    }
                }
            })
        };
        // SAFETY: the only consumer.
        let mut consumer = unsafe { ring.memory().consumer() };
        let mut expected = 1;
        while expected <= 3 {
            let mut out = [Descriptor::default(); 2];
            let count = consumer.pop(&mut out);
            for got in &out[..count] {
                assert_eq!(*got, numbered(expected));
                expected += 1;
            }
            if count == 0 {
                thread::yield_now();
            }
        }
        writer.join().unwrap();
        assert_eq!(consumer.faults(), 0);
    });
}

/// A consumer that goes to sleep while a descriptor is published sees it or is woken.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let ring = Arc::new(HeapRing::new(2, 0));
        let woken = Arc::new(AtomicBool::new(false));
        let writer = {
            let (ring, woken) = (ring.clone(), woken.clone());
            thread::spawn(move || {
                // SAFETY: the only producer.
                let mut producer = unsafe { ring.memory().producer() };
                assert_eq!(producer.push(&[numbered(7)]), 1);
                if producer.needs_wakeup() {
                    woken.store(true, Ordering::Relaxed);
                }
            })
        };
        // SAFETY: the only consumer.
        let mut consumer = unsafe { ring.memory().consumer() };
        let sleeps = consumer.prepare_wait();
        writer.join().unwrap();
        assert!(!sleeps || woken.load(Ordering::Relaxed), "sleeps forever on a ring that is not empty");
    });
}
