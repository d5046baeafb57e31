// SPDX-License-Identifier: Apache-2.0
//! The state machine against an obvious model: a map from each buffer that is out to the worker that handed it out.
//!
//! Two workers hand packets of one memory to two NF threads each. The NFs return them in any order, by each other's
//! rings, twice, with other bounds, by the other worker, or made up. Every descriptor must come to what the model says,
//! in order, and after each step queues, table and pool must hold exactly the model's packets.

use std::collections::HashMap;
use std::sync::Arc;

use dpdk::Batch;
use netvm_ring::{Consumer, Descriptor, Message, Producer};
use proptest::prelude::*;

use super::steps::{Step, changed, step};
use crate::drop_reason::Violation;
use crate::ids::{LinkId, NfThreadId, WorkerId};
use crate::inflight::sweep::{SweepRequest, SweepScope, Sweeps};
use crate::inflight::{InFlight, Returned, ThreadInFlight, Turn};
use crate::memory::Memory;

pub(super) const BUFFERS: u32 = 600;
pub(super) const WORKERS: usize = 2;
pub(super) const THREADS: usize = 2;
const RING: u32 = 1024;
pub(super) const OFFSET: u16 = 128;
pub(super) const LENGTH: u16 = 60;
/// The length of packets in each fifth buffer: no whole Ethernet header.
pub(super) const SHORT: u16 = 9;

/// An NF thread as one worker sees it: the worker's end of the ring, the NF's, and what the NF holds.
pub(super) struct Thread {
    pub(super) from_nf: Consumer,
    nf: Producer,
    pub(super) held: Vec<Descriptor>,
}

/// What is known of a packet that is out.
pub(super) struct Out {
    worker: usize,
    /// By the owner table.
    pub(super) nf_thread: NfThreadId,
    generation: u8,
}

pub(super) struct Rig {
    pub(super) memory: Memory,
    pub(super) workers: Vec<InFlight>,
    pub(super) threads: Vec<Thread>,
    pub(super) model: HashMap<u32, Out>,
    generation: u8,
}

impl Rig {
    pub(super) fn new() -> Self {
        let memory = Memory::for_tests(BUFFERS, (WORKERS * THREADS) as u16, RING);
        let mut workers: Vec<_> = (0..WORKERS as u8).map(|worker| InFlight::new(WorkerId(worker))).collect();
        let mut threads = Vec::new();
        for (worker, in_flight) in workers.iter_mut().enumerate() {
            for thread in 0..THREADS {
                let link = link(worker, thread);
                let table = Arc::clone(&memory.in_flight);
                in_flight.add_thread(link, ThreadInFlight::new(link, nf_thread(thread), table));
                let ring = memory.region().ring(link.0).unwrap();
                ring.initialise();
                // SAFETY: the only ends of this ring.
                let (nf, from_nf) = unsafe { (ring.producer(), ring.consumer()) };
                threads.push(Thread { from_nf, nf, held: Vec::new() });
            }
        }
        Self { memory, workers, threads, model: HashMap::new(), generation: 0 }
    }

    pub(super) fn hand_out(&mut self, worker: usize, thread: usize, count: usize) {
        let mut batch = Batch::new();
        let count = self.memory.pool.alloc_frames_into(&mut batch, count, OFFSET, LENGTH);
        if count == 0 {
            return;
        }
        for mbuf in batch.as_mut_slice() {
            let length = length_in(self.memory.pool.buffer_of(mbuf));
            mbuf.set_bounds(OFFSET, length).unwrap();
        }
        let to = link(worker, thread);
        let held = &mut self.threads[to.index()].held;
        let before = held.len();
        let is_out = self.workers[worker].hand_out(to, count, &mut batch, |packets, spans| {
            assert_eq!((packets.len(), spans.len()), (count, count));
            held.extend(spans.iter().map(|span| Descriptor::of(*span).on_path(0, 0, 0, worker as u8)));
        });
        assert!(is_out && batch.is_empty());
        for descriptor in &held[before..] {
            let out = Out { worker, nf_thread: nf_thread(thread), generation: self.generation };
            let length = length_in(descriptor.buffer());
            assert_eq!((descriptor.offset(), descriptor.length()), (OFFSET, length));
            assert_eq!(self.memory.region().owner(descriptor.buffer()), Some(nf_thread(thread).0));
            assert!(self.model.insert(descriptor.buffer(), out).is_none(), "handed out while it was out");
        }
    }

    /// An NF thread writes descriptors to its ring.
    pub(super) fn give(&mut self, by: LinkId, descriptors: &[Descriptor]) {
        let thread = &mut self.threads[by.index()];
        assert_eq!(thread.nf.push(descriptors), descriptors.len(), "the ring is large enough");
        thread.from_nf.prefetch(RING);
    }

    /// An NF thread returns descriptors to a worker, which takes all of them back: in order, each comes to what the
    /// model says.
    fn take_back(&mut self, worker: usize, by: usize, descriptors: &[Descriptor]) {
        let by = link(worker, by);
        self.give(by, descriptors);
        let mut left = descriptors;
        let mut turn = Turn::new(by);
        loop {
            let mut run = Batch::new();
            let from_nf = &mut self.threads[by.index()].from_nf;
            let returned = self.workers[worker].take_back(&mut turn, from_nf, &mut run);
            if returned == Returned::Nothing {
                assert!(run.is_empty());
                break;
            }
            let count = if let Returned::Packets(_) = returned { run.len() } else { 1 };
            assert!(count > 0 && count <= left.len());
            let (these, rest) = left.split_at(count);
            left = rest;
            if let Returned::Packets(first) = returned {
                for (descriptor, mbuf) in these.iter().zip(run.as_slice()) {
                    assert_eq!(self.expected(worker, *descriptor), Expected::Packet, "{descriptor:?}");
                    assert!(first.verdict_key().matches(*descriptor));
                    assert_eq!(self.memory.pool.buffer_of(mbuf), descriptor.buffer());
                    assert_eq!(
                        (mbuf.data_off(), mbuf.data_len(), mbuf.pkt_len()),
                        (descriptor.offset(), descriptor.length(), u32::from(descriptor.length()))
                    );
                    self.model.remove(&descriptor.buffer());
                }
            } else {
                assert_eq!(self.expected(worker, these[0]), Expected::Other(returned), "{:?}", these[0]);
                if returned == Returned::BadBounds {
                    self.model.remove(&these[0].buffer());
                }
            }
        }
        assert!(left.is_empty(), "{} descriptors were left in the ring", left.len());
    }

    fn expected(&self, worker: usize, descriptor: Descriptor) -> Expected {
        if descriptor.is_control() {
            return Expected::Other(match descriptor.message() {
                Some(message) => Returned::Message(message),
                None => Returned::Refused(Violation::UnknownMessage),
            });
        }
        if descriptor.buffer() >= self.memory.region().geometry().numbers() {
            return Expected::Other(Returned::Refused(Violation::BufferOutOfRange));
        }
        if self.model.get(&descriptor.buffer()).is_none_or(|out| out.worker != worker) {
            return Expected::Other(Returned::Refused(Violation::BufferNotOut));
        }
        let is_as_handed =
            (descriptor.offset(), descriptor.length()) == (OFFSET, length_in(descriptor.buffer()));
        let end = u32::from(descriptor.offset()) + u32::from(descriptor.length());
        if is_as_handed {
            return Expected::Packet;
        }
        if end > self.memory.region().geometry().stride || descriptor.length() < 14 {
            return Expected::Other(Returned::BadBounds);
        }
        Expected::Packet
    }

    pub(super) fn sweep(&mut self, worker: usize, what: SweepScope, is_due: impl Fn(&Out) -> bool) {
        let (mut sweeps, table) = (Sweeps::default(), Arc::clone(&self.memory.in_flight));
        sweeps.add(SweepRequest { ticket: 7, table, what });
        let (swept, _) = sweeps.step(&mut self.workers[worker]).expect("fewer buffers than a slice");
        let before = self.model.len();
        self.model.retain(|_, out| out.worker != worker || !is_due(out));
        assert_eq!((swept.ticket, swept.buffers), (7, (before - self.model.len()) as u64));
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::HandOut { worker, thread, count } => self.hand_out(worker, thread, count),
            Step::Return { worker, of, by, count, pattern, to_other_worker } => {
                let held = &mut self.threads[link(worker, of).index()].held;
                let count = count.min(held.len());
                let burst = changed(held.drain(..count).collect(), pattern);
                let to = if to_other_worker { (worker + 1) % WORKERS } else { worker };
                self.take_back(to, by, &burst);
            }
            Step::Forge { worker, by, words, action } => {
                let forged = Descriptor::from_words(words);
                let near = forged.buffer() % (BUFFERS + 2);
                let forged = Descriptor::new(near, forged.offset(), forged.length()).with_raw_verdict(action);
                self.take_back(worker, by, &[forged]);
            }
            Step::Withdraw { worker, by } => {
                let withdrawal = Descriptor::withdrawal(worker as u8);
                assert_eq!(withdrawal.message(), Some(Message::WithdrawVerdicts));
                self.take_back(worker, by, &[withdrawal]);
            }
            Step::Spill => self.workers.iter_mut().for_each(InFlight::spill),
            Step::Tick => self.workers.iter_mut().for_each(InFlight::expect_order_again),
            Step::NextGeneration => self.generation = self.memory.in_flight.next_generation(),
            Step::SweepGone { worker, thread } => {
                let gone = nf_thread(thread);
                let what = SweepScope::Gone { nf_threads: 1 << gone.0, stranded: Vec::new(), held: None };
                self.sweep(worker, what, |out| out.nf_thread == gone);
            }
            Step::SweepAll { worker } => self.sweep(worker, SweepScope::All, |_| true),
            Step::SweepOlder { worker } => {
                let current = self.generation;
                self.sweep(worker, SweepScope::Older { current }, |out| out.generation != current);
            }
        }
        self.check();
    }

    /// Queues and table hold the model's packets, each once, and the pool has all others.
    pub(super) fn check(&self) {
        let mut found = HashMap::new();
        for (worker, in_flight) in self.workers.iter().enumerate() {
            for thread in in_flight.threads.iter().flatten() {
                let mut queue = thread.queue.clone();
                while queue.len() > 0 {
                    let buffer = queue.front().0[0].buffer();
                    assert!(found.insert(buffer, worker).is_none(), "buffer {buffer} is in two queues");
                    queue.pop(1);
                }
            }
            let view = self.memory.in_flight.of(WorkerId(worker as u8));
            for buffer in (0..BUFFERS).filter(|buffer| view.has(*buffer)) {
                assert!(
                    found.insert(buffer, worker).is_none(),
                    "buffer {buffer} is in a queue and in the table"
                );
            }
        }
        let model: HashMap<_, _> = self.model.iter().map(|(buffer, out)| (*buffer, out.worker)).collect();
        assert_eq!(found, model);
        assert_eq!(self.memory.in_flight.buffers_out() as usize, model.len());
        assert_eq!(self.memory.pool.in_use() as usize, model.len());
    }

    /// Packets in an in-order queue.
    pub(super) fn in_queue(&self, worker: usize, thread: usize) -> usize {
        self.thread(worker, thread).queue.len()
    }

    /// Packets of a worker in the table.
    pub(super) fn in_table(&self, worker: usize) -> usize {
        let view = self.memory.in_flight.of(WorkerId(worker as u8));
        (0..BUFFERS).filter(|buffer| view.has(*buffer)).count()
    }

    pub(super) fn thread(&self, worker: usize, thread: usize) -> &ThreadInFlight {
        self.workers[worker].threads[link(worker, thread).index()].as_ref().unwrap()
    }

    /// All NFs are gone, so that the pool can be dropped whole.
    pub(super) fn empty(&mut self) {
        for (worker, thread) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            self.step(Step::SweepGone { worker, thread });
        }
        assert!(self.model.is_empty());
    }
}

#[derive(Debug, PartialEq)]
enum Expected {
    Packet,
    Other(Returned),
}

/// The length of packets that are handed out in a buffer.
fn length_in(buffer: u32) -> u16 {
    if buffer.is_multiple_of(5) { SHORT } else { LENGTH }
}

pub(super) fn link(worker: usize, thread: usize) -> LinkId {
    LinkId((worker * THREADS + thread) as u16)
}

/// 0 is the engine.
pub(super) fn nf_thread(thread: usize) -> NfThreadId {
    NfThreadId(thread as u8 + 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_packet_comes_back_once_whatever_nfs_return(steps in prop::collection::vec(step(), 1..60)) {
        let mut rig = Rig::new();
        rig.step(Step::Tick);
        for step in steps {
            rig.step(step);
        }
        rig.empty();
    }
}
