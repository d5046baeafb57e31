// SPDX-License-Identifier: Apache-2.0
//! A real ring whose other end is hostile.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netvm_ring::{Consumer, Descriptor, Producer, RingMemory, ring_bytes, word_offsets};

use crate::input::Input;

const TAIL_AT: usize = 128;
const HEAD_AT: usize = 256;
const WAITING_AT: usize = 384;
/// The bit of a slot's first word that is reserved for the ring.
const LAP: u64 = 1 << 31;
/// More than any ring here holds.
const MAX_POP: usize = 80;

/// Plays the hostile producer or consumer of a ring, and compares the honest end with a model.
pub fn ring_peer(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let memory = Memory::new(2 << (choice % 6), input.u32());
    if choice & 0x80 == 0 {
        HostileProducer::new(&memory).play(&mut input);
    } else {
        HostileConsumer::new(&memory).play(&mut input);
    }
    let bound = memory.capacity as usize;
    assert!(memory.ring().unpublished().count() <= bound && memory.ring().occupancy() as usize <= bound);
    memory.assert_slack_untouched();
}

#[repr(C, align(128))]
struct Line(UnsafeCell<[u8; 128]>);

/// Memory of exactly a ring's size, so that an address sanitizer detects accesses outside.
struct Memory {
    lines: Box<[Line]>,
    capacity: u32,
}

impl Memory {
    /// An empty ring whose indexes start at `first`.
    fn new(capacity: u32, first: u32) -> Self {
        let count = ring_bytes(capacity).div_ceil(size_of::<Line>());
        let lines = (0..count).map(|_| Line(UnsafeCell::new([0; 128]))).collect();
        let this = Self { lines, capacity };
        this.ring().initialise();
        this.word(TAIL_AT).store(first, Ordering::Relaxed);
        this.word(HEAD_AT).store(first, Ordering::Relaxed);
        this
    }

    fn ring(&self) -> RingMemory {
        let base = NonNull::from(&*self.lines).cast();
        // SAFETY: the lines are aligned to 128 bytes, as many as the ring takes, and outlive the borrow of `self`.
        // Their bytes are in an UnsafeCell, so they may change behind shared references. One thread uses them.
        unsafe { RingMemory::from_raw(base, self.capacity) }.expect("a power of two from 2 to 64")
    }

    fn at<T>(&self, at: usize) -> &T {
        assert!(at.is_multiple_of(align_of::<T>()) && at + size_of::<T>() <= size_of_val(&*self.lines));
        // SAFETY: within the lines and aligned, as checked above; T is an atomic at every call, and one thread uses it.
        unsafe { NonNull::from(&*self.lines).cast::<u8>().add(at).cast::<T>().as_ref() }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        self.at(at)
    }

    fn slot(&self, index: u32) -> [&AtomicU64; 2] {
        word_offsets(index, self.capacity).map(|at| self.at(at))
    }

    fn words(&self, index: u32) -> [u64; 2] {
        self.slot(index).map(|word| word.load(Ordering::Relaxed))
    }

    fn write(&self, index: u32, words: [u64; 2]) {
        for (word, value) in self.slot(index).into_iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn all(&self) -> Vec<[u64; 2]> {
        (0..self.capacity).map(|index| self.words(index)).collect()
    }

    fn assert_slack_untouched(&self) {
        for at in (ring_bytes(self.capacity)..size_of_val(&*self.lines)).step_by(4) {
            assert_eq!(self.word(at).load(Ordering::Relaxed), 0, "write after the ring, at byte {at}");
        }
    }
}

/// An arbitrary index, or one near the valid index.
fn index(input: &mut Input<'_>, near: u32) -> u32 {
    let kind = input.u8();
    if kind & 1 == 0 { near.wrapping_add_signed(i32::from(input.u8() as i8)) } else { input.u32() }
}

/// A hostile producer, and a model of the honest consumer.
struct HostileProducer<'a> {
    memory: &'a Memory,
    consumer: Consumer,
    head: u32,
    /// The last plausible tail.
    tail: u32,
    faults: u64,
}

impl<'a> HostileProducer<'a> {
    fn new(memory: &'a Memory) -> Self {
        // SAFETY: the only consumer, and `memory` outlives it.
        let consumer = unsafe { memory.ring().consumer() };
        let head = memory.word(HEAD_AT).load(Ordering::Relaxed);
        Self { memory, consumer, head, tail: head, faults: 0 }
    }

    fn play(mut self, input: &mut Input<'_>) {
        while !input.is_empty() {
            match input.u8() % 6 {
                0 => self.memory.word(TAIL_AT).store(index(input, self.head), Ordering::Relaxed),
                1 => self.memory.write(index(input, self.tail), [input.u64(), input.u64()]),
                2 => self.memory.word(HEAD_AT).store(input.u32(), Ordering::Relaxed),
                3 => self.pop(usize::from(input.u8()) % MAX_POP),
                4 => self.publish(input.u8(), input.u64()),
                _ => self.wait(),
            }
            assert!(self.known() <= self.memory.capacity);
        }
        self.pop(MAX_POP);
    }

    fn known(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Readable entries by the current tail; `None` if the tail is impossible.
    fn claimed(&self) -> Option<u32> {
        let claimed = self.memory.word(TAIL_AT).load(Ordering::Relaxed).wrapping_sub(self.head);
        (self.known()..=self.memory.capacity).contains(&claimed).then_some(claimed)
    }

    /// Acts as an honest producer: writes descriptors, then the tail.
    fn publish(&self, count: u8, seed: u64) {
        let count = u32::from(count) % (self.memory.capacity - self.known() + 1);
        for n in 0..count {
            self.memory.write(self.tail.wrapping_add(n), [seed, u64::from(n)]);
        }
        self.memory.word(TAIL_AT).store(self.tail.wrapping_add(count), Ordering::Relaxed);
    }

    fn pop(&mut self, wanted: usize) {
        let (slots, claimed, known) = (self.memory.all(), self.claimed(), self.known());
        let looks = known == 0 || (known as usize) < wanted;
        let mut out = [Descriptor::default(); MAX_POP];
        let popped = self.consumer.pop(&mut out[..wanted]);
        assert_eq!(
            popped,
            wanted.min(claimed.unwrap_or(known) as usize),
            "known {known}, claimed {claimed:?}"
        );
        for (n, got) in (0..).zip(&out[..popped]) {
            let words = slots[(self.head.wrapping_add(n) % self.memory.capacity) as usize];
            assert_eq!(*got, Descriptor::from_words(words), "of index {}", self.head.wrapping_add(n));
        }
        if looks {
            self.accept(claimed);
        }
        self.head = self.head.wrapping_add(popped as u32);
        if popped > 0 {
            assert_eq!(self.memory.word(HEAD_AT).load(Ordering::Relaxed), self.head);
        }
        assert_eq!(self.consumer.faults(), self.faults);
        assert_eq!(self.memory.all(), slots, "the consumer wrote to a slot");
    }

    fn accept(&mut self, claimed: Option<u32>) {
        match claimed {
            Some(claimed) => self.tail = self.head.wrapping_add(claimed),
            None => self.faults += 1,
        }
    }

    fn wait(&mut self) {
        let (claimed, known) = (self.claimed(), self.known());
        assert_eq!(self.consumer.prepare_wait(), known == 0 && claimed.unwrap_or(0) == 0);
        assert_eq!(self.memory.word(WAITING_AT).load(Ordering::Relaxed), 1);
        self.consumer.end_wait();
        assert_eq!(self.memory.word(WAITING_AT).load(Ordering::Relaxed), 0);
        if known == 0 {
            self.accept(claimed);
        }
    }
}

/// A hostile consumer, and a model of the honest producer.
struct HostileConsumer<'a> {
    memory: &'a Memory,
    producer: Producer,
    tail: u32,
    /// Descriptors that the consumer may still be reading, by the last plausible head.
    used: u32,
    faults: u64,
    /// Expected contents of the slots.
    slots: Vec<[u64; 2]>,
}

impl<'a> HostileConsumer<'a> {
    fn new(memory: &'a Memory) -> Self {
        // SAFETY: the only producer, and `memory` outlives it.
        let producer = unsafe { memory.ring().producer() };
        let tail = memory.word(TAIL_AT).load(Ordering::Relaxed);
        Self { memory, producer, tail, used: memory.capacity, faults: 0, slots: memory.all() }
    }

    fn play(mut self, input: &mut Input<'_>) {
        while !input.is_empty() {
            match input.u8() % 6 {
                0 => self.memory.word(HEAD_AT).store(index(input, self.tail), Ordering::Relaxed),
                1 => {
                    let (index, words) = (index(input, self.tail), [input.u64(), input.u64()]);
                    self.memory.write(index, words);
                    self.slots[(index % self.memory.capacity) as usize] = words;
                }
                2 => self.memory.word(TAIL_AT).store(input.u32(), Ordering::Relaxed),
                3 => self.push(usize::from(input.u8()) % MAX_POP, input.u8()),
                4 => {
                    let wanted = u32::from(input.u8());
                    let expected = self.room(wanted);
                    assert_eq!(self.producer.room(wanted), expected);
                }
                _ => {
                    self.memory.word(WAITING_AT).store(input.u32(), Ordering::Relaxed);
                    let waits = self.memory.word(WAITING_AT).load(Ordering::Relaxed) != 0;
                    assert_eq!(self.producer.needs_wakeup(), waits);
                    let expected = self.memory.capacity - self.room(self.memory.capacity);
                    assert_eq!(self.producer.occupancy(), expected);
                }
            }
            assert!(self.used <= self.memory.capacity);
            assert_eq!(self.producer.faults(), self.faults);
            assert_eq!(
                self.memory.all(),
                self.slots,
                "the producer wrote to a slot that the consumer had not released"
            );
        }
    }

    /// The expected result of [`Producer::room`].
    fn room(&mut self, wanted: u32) -> u32 {
        if self.memory.capacity - self.used < wanted {
            let claimed = self.tail.wrapping_sub(self.memory.word(HEAD_AT).load(Ordering::Relaxed));
            if claimed <= self.used {
                self.used = claimed;
            } else {
                self.faults += 1;
            }
        }
        self.memory.capacity - self.used
    }

    fn push(&mut self, count: usize, seed: u8) {
        let descriptor =
            |n: u32| Descriptor::new(u32::from(seed) << 8 | n, n as u16, 60).on_path(7, seed, 3, 1);
        let descriptors: Vec<_> = (0..count as u32).map(descriptor).collect();
        let expected = self.room(count as u32).min(count as u32);
        assert_eq!(self.producer.push(&descriptors), expected as usize);
        for n in 0..expected {
            let index = self.tail.wrapping_add(n);
            let lap = if index & self.memory.capacity == 0 { LAP } else { 0 };
            let [low, high] = descriptor(n).to_words();
            self.slots[(index % self.memory.capacity) as usize] = [low | lap, high];
        }
        self.tail = self.tail.wrapping_add(expected);
        self.used += expected;
        if expected > 0 {
            assert_eq!(self.memory.word(TAIL_AT).load(Ordering::Relaxed), self.tail);
        }
    }
}
