// SPDX-License-Identifier: Apache-2.0
//! A ring on the heap, for tests and models.

use core::ptr::NonNull;

use crate::descriptor::{Descriptor, LAP};
use crate::memory::{Header, LAYOUT_VERSION, Line, RingMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A ring that owns its memory.
#[derive(Debug)]
pub struct HeapRing {
    header: NonNull<Header>,
    words: NonNull<[AtomicU64]>,
}

impl HeapRing {
    /// A ring of `capacity` slots, whose indexes begin at `first`.
    #[must_use]
    pub fn new(capacity: u32, first: u32) -> Self {
        let line = |value| Line(AtomicU32::new(value));
        let header = Box::new(Header {
            version: AtomicU32::new(LAYOUT_VERSION),
            capacity: AtomicU32::new(capacity),
            tail: line(first),
            head: line(first),
            waiting: line(0),
        });
        let words = (0..2 * capacity).map(|_| AtomicU64::new(0)).collect();
        let ring = Self { header: Box::leak(header).into(), words: Box::leak::<'static>(words).into() };
        let memory = ring.memory();
        for n in 0..capacity {
            // Every slot holds the lap bit of the lap before, as in a ring that has run up to `first`.
            let index = first.wrapping_add(n);
            memory.slot(index).store(Descriptor::default(), LAP ^ memory.lap(index));
        }
        ring
    }

    /// The ring's memory, valid while `self` lives.
    #[must_use]
    pub fn memory(&self) -> RingMemory {
        RingMemory::over(self.header, self.words.cast(), (self.words.len() / 2) as u32)
    }

    /// Overwrites the tail, as a hostile producer may.
    pub fn claim_tail(&self, tail: u32) {
        self.memory().header().tail.0.store(tail, Ordering::Release);
    }

    /// Overwrites the head, as a hostile consumer may.
    pub fn claim_head(&self, head: u32) {
        self.memory().header().head.0.store(head, Ordering::Release);
    }
}

impl Drop for HeapRing {
    fn drop(&mut self) {
        // SAFETY: both came from Box::leak in `new` and are freed only here.
        unsafe {
            drop(Box::from_raw(self.header.as_ptr()));
            drop(Box::from_raw(self.words.as_ptr()));
        }
    }
}

// SAFETY: the ring's memory is atomics; HeapRing owns it and hands out views only.
unsafe impl Send for HeapRing {}
// SAFETY: as above.
unsafe impl Sync for HeapRing {}
