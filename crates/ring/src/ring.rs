//! The two ends of a ring.
//!
//! Each end works on its own index and on the last claim of the other side, and reads the other's line only when that
//! claim no longer suffices. Orderings: slots are written relaxed and published by a release store of the tail, read
//! by an acquire load; they are given back by a release store of the head, likewise. The wake-up of a sleeping
//! consumer is the one place that needs more (store, then load, on both sides): see [`Producer::wants_wake`].

use crate::descriptor::{CommonBits, Descriptor, Span};
use crate::memory::RingMemory;
use crate::sync::{AtomicU64, Ordering, full_fence};

/// The end that writes descriptors.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    tail: u32,
    head: u32,
    /// Slots up to this index have been asked for.
    asked: u32,
    faults: u64,
}

impl Producer {
    pub(crate) fn new(memory: RingMemory) -> Self {
        let tail = memory.header().tail.0.load(Ordering::Acquire);
        Self { memory, tail, head: tail.wrapping_sub(memory.capacity()), asked: tail, faults: 0 }
    }

    /// Room for at least `wanted` descriptors if there is, else what there is.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let capacity = self.memory.capacity();
        let known = self.tail.wrapping_sub(self.head);
        let room = capacity - known;
        if room >= wanted {
            return room;
        }
        let head = self.memory.header().head.0.load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(head);
        if used > known {
            // The consumer claims to have read slots that were never written, or moved backwards. Room that was granted once stays granted:
            // there may be descriptors in it.
            self.faults += 1;
            return room;
        }
        self.head = head;
        capacity - used
    }

    /// Writes the descriptor that is the `n`th after the last published one. Not seen by the consumer before
    /// [`Producer::publish`]; `n` must be below what [`Producer::room`] said, beyond that the consumer sees a mix.
    #[inline(always)]
    pub fn write(&mut self, n: u32, descriptor: Descriptor) {
        let index = self.tail.wrapping_add(n);
        self.memory.slot(index).store(descriptor, self.memory.lap(index));
    }

    /// [`Producer::write`] of one descriptor for each item, the first of them at `n`; there must be room for them. The ring's own
    /// fields stay in registers: as far as the compiler knows, a store to shared memory may change anything that lies behind
    /// a reference.
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
        debug_assert!(count <= self.memory.capacity() - self.tail.wrapping_sub(self.head));
        self.tail = self.tail.wrapping_add(count);
        self.memory.header().tail.0.store(self.tail, Ordering::Release);
    }

    /// Writes and publishes as many as there is room for; returns how many.
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

    /// Whether the consumer sleeps; call it once after publishing a burst. It returns `true` once per sleep, and the caller must then wake the
    /// consumer.
    ///
    /// The fence pairs with the one in [`Consumer::prepare_wait`]: of "descriptor published" and "consumer waits", at
    /// least one side sees the other's, so that no wake-up is lost. Taking the announcement back may take back that of a
    /// later sleep, which the wake-up that follows ends just as well.
    #[inline]
    #[must_use]
    pub fn wants_wake(&self) -> bool {
        full_fence();
        self.wants_wake_fenced()
    }

    /// As [`Producer::wants_wake`], for callers that executed a [`full_fence`] since they published the burst. One late fence for many rings does
    /// not wait for the published index to reach the other core.
    #[inline]
    #[must_use]
    pub fn wants_wake_fenced(&self) -> bool {
        let waiting = &self.memory.header().waiting.0;
        let wanted = waiting.load(Ordering::Relaxed) != 0;
        if wanted {
            waiting.store(0, Ordering::Relaxed);
        }
        wanted
    }

    /// Asks for the slots of `descriptors` to be brought into this core's cache, to be written soon, the first of them the `n`th
    /// after the last published one. Slots that may not have been read yet, as far as is known, are left alone: taking them from
    /// the consumer would have each of their lines cross twice more; so are those that were asked for before.
    #[inline(always)]
    pub fn prefetch(&mut self, n: u32, descriptors: u32) {
        let room = self.memory.capacity() - self.tail.wrapping_sub(self.head);
        let end = n.saturating_add(descriptors).min(room);
        let asked = self.asked.wrapping_sub(self.tail);
        let first = if asked <= self.memory.capacity() { n.max(asked) } else { n };
        if first < end {
            each_line(self.memory, self.tail.wrapping_add(first), end - first, prefetch_write);
            self.asked = self.tail.wrapping_add(end);
        }
    }

    /// Asks for the published index to be brought into this core's cache, to be written once a burst is: the consumer has
    /// looked at it since the last time.
    #[inline(always)]
    pub fn prefetch_index(&self) {
        prefetch_write(&self.memory.header().tail.0);
    }

    /// How many descriptors are in the ring by the consumer's last claim.
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

    /// The ring's place.
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
    tail: u32,
    faults: u64,
}

impl Consumer {
    pub(crate) fn new(memory: RingMemory) -> Self {
        let head = memory.header().head.0.load(Ordering::Acquire);
        Self { memory, head, tail: head, faults: 0 }
    }

    /// How many descriptors can be read now; looks at the producer's index only when none is known of.
    #[inline]
    pub fn available(&mut self) -> u32 {
        let known = self.tail.wrapping_sub(self.head);
        if known > 0 { known } else { self.refresh() }
    }

    #[inline]
    fn refresh(&mut self) -> u32 {
        let known = self.tail.wrapping_sub(self.head);
        let tail = self.memory.header().tail.0.load(Ordering::Acquire);
        let available = tail.wrapping_sub(self.head);
        if available > self.memory.capacity() || available < known {
            // The producer claims more than fits, or to have gone back: what was believed before stays.
            self.faults += 1;
            return known;
        }
        self.tail = tail;
        available
    }

    /// Reads up to `out.len()` descriptors, oldest first, and gives their slots back; returns how many.
    #[inline]
    pub fn pop(&mut self, out: &mut [Descriptor]) -> usize {
        let count = self.available();
        if (count as usize) < out.len() && count > 0 {
            self.refresh();
        }
        let (most, mut out) = (out.len(), out.iter_mut());
        self.take_known(most, |descriptor| out.next().map(|place| *place = descriptor).is_some())
    }

    /// The next of the known descriptors. The producer may change it before it is taken.
    #[inline(always)]
    #[must_use]
    pub fn peek_known(&self) -> Option<Descriptor> {
        let (low, high) = (self.tail != self.head).then(|| self.memory.slot(self.head).load())?;
        Some(Descriptor::from_words([low, high]))
    }

    /// Reads descriptors, oldest first and at most `most`, up to the first that `takes` does not take, and gives the slots
    /// of those that it took back; returns how many. Only those are read that [`Consumer::prefetch`] has asked for, or
    /// another look has found: without a wait for what the producer is just writing.
    ///
    /// What was not taken is read anew the next time, and may say something else then.
    #[inline(always)]
    pub fn take_known(&mut self, most: usize, mut takes: impl FnMut(Descriptor) -> bool) -> usize {
        let known = self.tail.wrapping_sub(self.head).min(most as u32);
        let (memory, mut taken) = (self.memory, 0);
        'rows: while taken < known {
            for slot in memory.row(self.head.wrapping_add(taken), known - taken).slots() {
                let (low, high) = slot.load();
                if !takes(Descriptor::from_words([low, high])) {
                    break 'rows;
                }
                taken += 1;
            }
        }
        self.give_back(taken);
        taken as usize
    }

    /// As [`Consumer::take_known`], of descriptors of these packets in this order that have the bits, as many as fill whole rows
    /// of slots with what is known of. No branch for each, which makes it faster where most are.
    #[inline(always)]
    pub fn take_same(&mut self, packets: &[Span], bits: CommonBits) -> usize {
        let known = self.tail.wrapping_sub(self.head).min(packets.len() as u32);
        let (memory, mut taken) = (self.memory, 0);
        while taken < known {
            let row = memory.row(self.head.wrapping_add(taken), known - taken);
            let (mut spans, mut rest) = (0, 0);
            for (slot, span) in row.slots().zip(&packets[taken as usize..]) {
                let (low, high) = slot.load();
                spans |= span.differs_from(low);
                rest |= bits.differs_from(high);
            }
            if spans | rest != 0 {
                break;
            }
            taken += row.len() as u32;
        }
        self.give_back(taken);
        taken as usize
    }

    /// The next `taken` slots have been read.
    #[inline(always)]
    fn give_back(&mut self, taken: u32) {
        if taken > 0 {
            self.head = self.head.wrapping_add(taken);
            self.memory.header().head.0.store(self.head, Ordering::Release);
        }
    }

    /// Asks for the producer's index to be brought into this core's cache, to be looked at soon.
    #[inline(always)]
    pub fn prefetch_index(&self) {
        prefetch_read(&self.memory.header().tail.0);
    }

    /// Looks at the producer's index and asks for the next `descriptors` that are there to be brought into this core's
    /// cache. Slots that are not written yet are left alone: fetching them would take them from the producer.
    #[inline(always)]
    pub fn prefetch(&mut self, descriptors: u32) {
        if self.tail.wrapping_sub(self.head) < descriptors {
            self.refresh();
        }
        self.prefetch_known(descriptors);
    }

    /// As [`Consumer::prefetch`], without a look at the producer's index.
    #[inline(always)]
    pub fn prefetch_known(&self, descriptors: u32) {
        let known = self.tail.wrapping_sub(self.head);
        each_line(self.memory, self.head, known.min(descriptors), prefetch_read);
    }

    /// Announces that the consumer is about to sleep. Returns whether it may: `false` when descriptors came meanwhile.
    /// Undone by [`Consumer::end_wait`] in either case.
    #[must_use]
    pub fn prepare_wait(&mut self) -> bool {
        self.memory.header().waiting.0.store(1, Ordering::Relaxed);
        full_fence();
        self.available() == 0
    }

    /// Takes the announcement back.
    pub fn end_wait(&mut self) {
        self.memory.header().waiting.0.store(0, Ordering::Relaxed);
    }

    /// How often the producer's index was impossible.
    #[must_use]
    pub const fn faults(&self) -> u64 {
        self.faults
    }

    /// The ring's place.
    #[must_use]
    pub const fn memory(&self) -> RingMemory {
        self.memory
    }
}

/// A word in each line that the low words of `count` slots from `index` on take; some lines twice. Their high words mostly stay
/// in the caches of both sides.
#[inline(always)]
fn each_line(memory: RingMemory, index: u32, count: u32, mut each: impl FnMut(&AtomicU64)) {
    let mut done = 0;
    while done < count {
        // A row lies in two lines at most.
        let lows = memory.row(index.wrapping_add(done), count - done).lows;
        let [first, ..] = lows else { break };
        each(first);
        each(&lows[lows.len() - 1]);
        done += lows.len() as u32;
    }
}

/// PREFETCHW, which processors without it take for nothing: an ordinary prefetch would bring the line as one that the peer
/// has as well, and the store would go there again.
#[inline(always)]
fn prefetch_write<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) core::ptr::from_ref(place), options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    let _ = place;
}

#[inline(always)]
fn prefetch_read<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            core::ptr::from_ref(place).cast(),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = place;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::{BLOCK, HeapRing};

    fn ends(ring: &HeapRing) -> (Producer, Consumer) {
        // SAFETY: the only ends of a ring made for this test.
        unsafe { (ring.memory().producer(), ring.memory().consumer()) }
    }

    fn numbered(n: u32) -> Descriptor {
        Descriptor::new(n & Descriptor::MAX_BUFFER, n as u16, (n >> 3) as u16).on_path(n as u16, 1, 2, 3)
    }

    proptest! {
        /// Against a queue that is plainly right, from any first index (wrap-around included).
        #[test]
        fn behaves_as_a_bounded_queue(first: u32, log in 1u32..6, steps in prop::collection::vec((any::<bool>(), 0usize..80), 1..60)) {
            let ring = HeapRing::new(1 << log, first);
            let (mut producer, mut consumer) = ends(&ring);
            let mut model = VecDeque::new();
            let mut next = 0;
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
                }
                prop_assert_eq!(ring.memory().occupancy() as usize, model.len());
            }
            prop_assert_eq!(producer.faults() + consumer.faults(), 0);
        }

        /// Packets that are where they are expected are taken up to the first that is not, less than a row before it; none is lost.
        #[test]
        fn what_is_the_same_is_taken_in_rows(first: u32, count in 1u32..120, odd in 0u32..150, what in 0u8..3) {
            let ring = HeapRing::new(128, first);
            let (mut producer, mut consumer) = ends(&ring);
            let packet = |n: u32| Span::new(n, 64, 100);
            let at = |n: u32| Descriptor::of(packet(n)).on_path(7, 2, 0, 1);
            let sent: Vec<_> = (0..count).map(|n| match what {
                0 if n == odd => at(n + 1),
                1 if n == odd => at(n).with_span(64, 101),
                2 if n == odd => at(n).with_verdict(crate::VerdictKind::Drop, 0),
                _ => at(n),
            }).collect();
            prop_assert_eq!(producer.push(&sent), sent.len());
            consumer.prefetch(128);
            let expected: Vec<_> = (0..150).map(packet).collect();
            let taken = consumer.take_same(&expected, at(0).verdict_bits());
            let same = odd.min(count) as usize;
            prop_assert!(taken <= same && (taken == sent.len() || taken + BLOCK as usize > same));
            let mut rest = Vec::new();
            consumer.take_known(128, |descriptor| { rest.push(descriptor); true });
            prop_assert_eq!(&rest[..], &sent[taken..]);
        }

        /// Whatever the peer claims, no end reads or writes beyond the ring, and an impossible claim is counted.
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

        /// What a producer wrote and did not publish is found, and nothing of the lap before it.
        #[test]
        fn unpublished_slots_are_told_from_old_ones(first: u32, published in 0u32..40, drained in 0u32..40, written in 0u32..8) {
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
    fn a_new_producer_continues_where_the_last_published() {
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
    fn a_tail_that_goes_back_is_counted_and_not_followed() {
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
    fn a_head_that_goes_back_takes_no_room_back() {
        let ring = HeapRing::new(8, 0);
        let (mut producer, mut consumer) = ends(&ring);
        assert_eq!(producer.push(&[0; 8].map(numbered)), 8);
        assert_eq!(consumer.pop(&mut [Descriptor::default(); 6]), 6);
        assert_eq!(producer.room(1), 6);
        ring.claim_head(1);
        assert_eq!((producer.room(7), producer.faults()), (6, 1));
        ring.claim_head(8);
        assert_eq!((producer.room(7), producer.faults()), (8, 1), "an honest head is believed again");
    }

    #[test]
    fn capacities_that_no_ring_has_are_refused() {
        for capacity in [0, 1, 3, 1 << 17] {
            assert!(RingMemory::check_capacity(capacity).is_err(), "{capacity}");
        }
        assert!(RingMemory::check_capacity(1 << 16).is_ok());
    }
}
