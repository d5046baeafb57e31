// SPDX-License-Identifier: Apache-2.0
//! The two ends of a ring: [`Producer`] and [`Consumer`].
//!
//! In: a burst of descriptors. Out: the same descriptors, in order, at the other end. Each end owns one index and
//! caches the index of its peer. It loads the peer's cache line only when the cached index shows too little room, or no
//! descriptor.
//!
//! Orderings: the producer writes slots relaxed and publishes them with a release store of the tail, which the consumer
//! loads with acquire. The consumer releases slots in the same way through the head. Only the wake-up of a sleeping
//! consumer needs more, because both sides store and then load: see [`Producer::needs_wakeup`].

use crate::descriptor::{Descriptor, MaskedKey, Span};
use crate::memory::RingMemory;
use crate::sync::{AtomicU64, Ordering, full_fence};

impl RingMemory {
    /// The producer of this ring.
    ///
    /// # Safety
    /// All netvm processes together have at most one producer of this ring at a time. A producer made after the first
    /// is gone continues behind the last published descriptor.
    #[must_use]
    pub unsafe fn producer(self) -> Producer {
        let tail = self.header().tail.0.load(Ordering::Acquire);
        let cached_head = tail.wrapping_sub(self.capacity());
        Producer { memory: self, tail, cached_head, prefetched: tail, faults: 0 }
    }

    /// The consumer of this ring.
    ///
    /// # Safety
    /// As for [`RingMemory::producer`].
    #[must_use]
    pub unsafe fn consumer(self) -> Consumer {
        let head = self.header().head.0.load(Ordering::Acquire);
        Consumer { memory: self, head, cached_tail: head, faults: 0 }
    }
}

/// The end that writes descriptors.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    tail: u32,
    cached_head: u32,
    /// End of the slots that were prefetched.
    prefetched: u32,
    faults: u64,
}

impl Producer {
    /// Number of free slots. Loads the consumer's index only if the cached one leaves fewer than `wanted`.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let capacity = self.memory.capacity();
        let known = self.tail.wrapping_sub(self.cached_head);
        let room = capacity - known;
        if room >= wanted {
            return room;
        }
        let head = self.memory.header().head.0.load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        if used > known {
            // The consumer claims to have read unwritten slots, or to have gone back. Keep the room reported before:
            // the caller may have written there already.
            self.faults += 1;
            return room;
        }
        self.cached_head = head;
        capacity - used
    }

    /// Writes the `n`th descriptor after the last published one. The consumer sees it after [`Producer::publish`].
    /// `n` must be below [`Producer::room`], or the write overwrites a descriptor that the consumer may be reading.
    #[inline(always)]
    pub fn write(&mut self, n: u32, descriptor: Descriptor) {
        let index = self.tail.wrapping_add(n);
        self.memory.slot(index).store(descriptor, self.memory.lap(index));
    }

    /// [`Producer::write`] for each item, from the `n`th on; there must be room for all. The loop copies the ring's
    /// fields into locals so that they stay in registers: the compiler assumes that a store to shared memory may change
    /// anything behind a reference.
    #[inline(always)]
    pub fn write_each<T>(&mut self, n: u32, items: &[T], mut descriptor: impl FnMut(&T) -> Descriptor) {
        let (memory, mut index, mut rest) = (self.memory, self.tail.wrapping_add(n), items);
        while !rest.is_empty() {
            let (row, lap) = (memory.row(index, rest.len() as u32), memory.lap(index));
            for (slot, item) in row.slots().zip(rest) {
                slot.store(descriptor(item), lap);
            }
            index = index.wrapping_add(row.len() as u32);
            rest = &rest[row.len()..];
        }
    }

    /// Makes the next `count` written descriptors visible to the consumer.
    #[inline]
    pub fn publish(&mut self, count: u32) {
        debug_assert!(count <= self.memory.capacity() - self.tail.wrapping_sub(self.cached_head));
        self.tail = self.tail.wrapping_add(count);
        self.memory.header().tail.0.store(self.tail, Ordering::Release);
    }

    /// Writes and publishes as many descriptors as fit; returns how many.
    #[inline]
    pub fn push(&mut self, descriptors: &[Descriptor]) -> usize {
        let count = self.room(descriptors.len() as u32).min(descriptors.len() as u32);
        for (n, descriptor) in (0..count).zip(descriptors) {
            self.write(n, *descriptor);
        }
        if count > 0 {
            self.publish(count);
        }
        count as usize
    }

    /// Whether the consumer sleeps; call it once per published burst. Returns `true` once per sleep, and the caller
    /// must then wake the consumer.
    ///
    /// The fence pairs with the one in [`Consumer::prepare_wait`]: either the producer sees that the consumer waits, or
    /// the consumer sees the published descriptor, so no wake-up is lost. Clearing the flag may clear that of a later
    /// sleep. This is harmless, because the wake-up that follows ends that sleep too.
    #[inline]
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        full_fence();
        self.needs_wakeup_fenced()
    }

    /// [`Producer::needs_wakeup`] for a caller that made a [`full_fence`] after it published the burst. One late fence
    /// for many rings does not wait until the published index reaches the other core.
    #[inline]
    #[must_use]
    pub fn needs_wakeup_fenced(&self) -> bool {
        let waiting = &self.memory.header().waiting.0;
        let is_waiting = waiting.load(Ordering::Relaxed) != 0;
        if is_waiting {
            waiting.store(0, Ordering::Relaxed);
        }
        is_waiting
    }

    /// Prefetches, for writing, the slots of `descriptors` from the `n`th after the last published one. Skips slots
    /// that were prefetched before, and slots that the consumer may not have read yet: each of their lines would cross
    /// twice more.
    #[inline(always)]
    pub fn prefetch(&mut self, n: u32, descriptors: u32) {
        let room = self.memory.capacity() - self.tail.wrapping_sub(self.cached_head);
        let end = n.saturating_add(descriptors).min(room);
        let prefetched = self.prefetched.wrapping_sub(self.tail);
        let first = if prefetched <= self.memory.capacity() { n.max(prefetched) } else { n };
        if first < end {
            each_line(self.memory, self.tail.wrapping_add(first), end - first, prefetch_write);
            self.prefetched = self.tail.wrapping_add(end);
        }
    }

    /// Prefetches the published index for writing: the consumer's last load left its line shared.
    #[inline(always)]
    pub fn prefetch_index(&self) {
        prefetch_write(&self.memory.header().tail.0);
    }

    /// Number of descriptors in the ring, by the consumer's newest index.
    #[inline]
    pub fn occupancy(&mut self) -> u32 {
        let capacity = self.memory.capacity();
        capacity - self.room(capacity)
    }

    /// How often the consumer's index was impossible.
    #[must_use]
    pub const fn faults(&self) -> u64 {
        self.faults
    }

    /// The ring's memory.
    #[must_use]
    pub const fn memory(&self) -> RingMemory {
        self.memory
    }
}

/// The end that reads descriptors.
#[derive(Debug)]
pub struct Consumer {
    memory: RingMemory,
    head: u32,
    cached_tail: u32,
    faults: u64,
}

impl Consumer {
    /// Number of readable descriptors. Loads the producer's index only if the cached one shows none.
    #[inline]
    pub fn available(&mut self) -> u32 {
        let known = self.cached_tail.wrapping_sub(self.head);
        if known > 0 { known } else { self.refresh() }
    }

    #[inline]
    fn refresh(&mut self) -> u32 {
        let known = self.cached_tail.wrapping_sub(self.head);
        let tail = self.memory.header().tail.0.load(Ordering::Acquire);
        let available = tail.wrapping_sub(self.head);
        if available > self.memory.capacity() || available < known {
            // The producer claims more than fits, or to have gone back: keep the cached index.
            self.faults += 1;
            return known;
        }
        self.cached_tail = tail;
        available
    }

    /// Reads up to `out.len()` descriptors, oldest first, and releases their slots; returns how many.
    #[inline]
    pub fn pop(&mut self, out: &mut [Descriptor]) -> usize {
        let count = self.available();
        if (count as usize) < out.len() && count > 0 {
            self.refresh();
        }
        let (most, mut out) = (out.len(), out.iter_mut());
        self.pop_cached(most, |descriptor| out.next().map(|slot| *slot = descriptor).is_some())
    }

    /// The next descriptor below the cached index. A hostile producer may change it before it is popped.
    #[inline(always)]
    #[must_use]
    pub fn peek_cached(&self) -> Option<Descriptor> {
        let (low, high) = (self.cached_tail != self.head).then(|| self.memory.slot(self.head).load())?;
        Some(Descriptor::from_words([low, high]))
    }

    /// Reads at most `most` descriptors, oldest first, until `accepts` refuses one; releases the slots of the accepted
    /// ones and returns their number. Reads only below the cached index, which [`Consumer::prefetch`] refreshes, and so
    /// never waits for a line that the producer is writing.
    ///
    /// The next call reads a refused descriptor again, and may see another value.
    #[inline(always)]
    pub fn pop_cached(&mut self, most: usize, mut accepts: impl FnMut(Descriptor) -> bool) -> usize {
        let known = self.cached_tail.wrapping_sub(self.head).min(most as u32);
        let (memory, mut taken) = (self.memory, 0);
        'rows: while taken < known {
            for slot in memory.row(self.head.wrapping_add(taken), known - taken).slots() {
                let (low, high) = slot.load();
                if !accepts(Descriptor::from_words([low, high])) {
                    break 'rows;
                }
                taken += 1;
            }
        }
        self.release(taken);
        taken as usize
    }

    /// Pops descriptors below the cached index while they name exactly `packets`, in order, and match `key`. Compares
    /// row by row and stops before the first row with a difference. It has no branch per descriptor, so it is faster
    /// than [`Consumer::pop_cached`] when most descriptors match.
    #[inline(always)]
    pub fn pop_matching(&mut self, packets: &[Span], key: MaskedKey) -> usize {
        let known = self.cached_tail.wrapping_sub(self.head).min(packets.len() as u32);
        let (memory, mut taken) = (self.memory, 0);
        while taken < known {
            let row = memory.row(self.head.wrapping_add(taken), known - taken);
            let (mut spans, mut rest) = (0, 0);
            for (slot, span) in row.slots().zip(&packets[taken as usize..]) {
                let (low, high) = slot.load();
                spans |= span.differs_from(low);
                rest |= key.differs_from(high);
            }
            if spans | rest != 0 {
                break;
            }
            taken += row.len() as u32;
        }
        self.release(taken);
        taken as usize
    }

    /// Returns the next `taken` slots to the producer.
    #[inline(always)]
    fn release(&mut self, taken: u32) {
        if taken > 0 {
            self.head = self.head.wrapping_add(taken);
            self.memory.header().head.0.store(self.head, Ordering::Release);
        }
    }

    /// Prefetches the producer's index.
    #[inline(always)]
    pub fn prefetch_index(&self) {
        prefetch_read(&self.memory.header().tail.0);
    }

    /// Loads the producer's index if fewer than `descriptors` are known, and prefetches the slots of those that are
    /// published. Slots beyond the tail are skipped: a prefetch would take their lines from the producer.
    #[inline(always)]
    pub fn prefetch(&mut self, descriptors: u32) {
        if self.cached_tail.wrapping_sub(self.head) < descriptors {
            self.refresh();
        }
        self.prefetch_cached(descriptors);
    }

    /// [`Consumer::prefetch`] without a load of the producer's index.
    #[inline(always)]
    pub fn prefetch_cached(&self, descriptors: u32) {
        let known = self.cached_tail.wrapping_sub(self.head);
        each_line(self.memory, self.head, known.min(descriptors), prefetch_read);
    }

    /// Announces that the consumer is about to sleep. Returns `false` if descriptors came meanwhile and it must not.
    /// Call [`Consumer::end_wait`] in either case.
    #[must_use]
    pub fn prepare_wait(&mut self) -> bool {
        self.memory.header().waiting.0.store(1, Ordering::Relaxed);
        full_fence();
        self.available() == 0
    }

    /// Withdraws the announcement of [`Consumer::prepare_wait`].
    pub fn end_wait(&mut self) {
        self.memory.header().waiting.0.store(0, Ordering::Relaxed);
    }

    /// How often the producer's index was impossible.
    #[must_use]
    pub const fn faults(&self) -> u64 {
        self.faults
    }

    /// The ring's memory.
    #[must_use]
    pub const fn memory(&self) -> RingMemory {
        self.memory
    }
}

/// Calls `each` with a word of every cache line that holds low words of `count` slots from `index`, for some lines
/// twice. The high words are left out: they mostly stay in the caches of both sides.
#[inline(always)]
fn each_line(memory: RingMemory, index: u32, count: u32, mut each: impl FnMut(&AtomicU64)) {
    let mut done = 0;
    while done < count {
        // A row spans two lines at most.
        let lows = memory.row(index.wrapping_add(done), count - done).lows;
        let [first, ..] = lows else { break };
        each(first);
        each(&lows[lows.len() - 1]);
        done += lows.len() as u32;
    }
}

/// PREFETCHW; processors without it execute it as a no-op. An ordinary prefetch would bring the line in shared state,
/// and the later store would have to request it again.
#[inline(always)]
fn prefetch_write<T>(target: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) core::ptr::from_ref(target), options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    let _ = target;
}

#[inline(always)]
fn prefetch_read<T>(target: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            core::ptr::from_ref(target).cast(),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = target;
}
