// SPDX-License-Identifier: Apache-2.0
//! The burst API: one thread of an NF. In: descriptors from its rx rings. Out: a [`Burst`] for the NF, and then
//! descriptors in its tx rings. The callback API ([`crate::run`]) is built on it.
//!
//! Cost: one load per turn to notice a new next-hop table, one publication of the counters per burst, no system call
//! while packets come, except to wake a sleeping peer and every 10 ms to check the engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_attach::messages::Message;
use netvm_clock as clock;
use netvm_ids::{ChainId, PortId, RoleId};
use netvm_region::{Command, CounterBlock, MAX_COUNTERS, NfCounter, TableReader};
use netvm_ring::Descriptor;

mod backoff;
mod burst;
mod outbox;

pub use burst::{Burst, ThreadContext};
pub use outbox::{Outbox, OwnedPacket};

use self::backoff::{Backoff, MAX_SLEEP, MAX_SLEEP_WHILE_FULL, Step};
use self::outbox::Kit;
use crate::packet::Verdict;
use crate::rx_rings::RxRings;
use crate::shared::messages::{MessageError, Outgoing};
use crate::shared::{Shared, Stop, Waiting};
use crate::tx_rings::TxRings;

/// Most packets of a burst.
pub const BURST: usize = 32;

/// How often a busy thread checks whether the engine is alive and wants the NF to stop.
const CHECK_MICROS: u64 = 10_000;

/// Longest timeout: a day.
const MAX_TIMEOUT_MICROS: u64 = 86_400_000_000;

/// The rings of one thread of an NF.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    thread: u16,
    table: TableReader,
    unconfirmed: bool,
    rx_rings: RxRings,
    tx_rings: TxRings,
    /// What the NF keeps beyond bursts.
    kit: Kit,
    backoff: Backoff,
    next_check: u64,
    check_interval: u64,
    /// This thread's eventfd has a count that was not read yet.
    is_signalled: bool,
    stopping: bool, // once the rings are empty
    leaving: bool,  // now
    counters: [u64; NfCounter::COUNT],
    descriptors: [Descriptor; BURST],
    verdicts: [Verdict; BURST],
    received_at: u64,
}

impl Endpoint {
    pub(crate) fn new(shared: Arc<Shared>, thread: u16, table: TableReader, waiting: Waiting) -> Self {
        let nf_thread = shared.control.header().nf_threads[usize::from(thread)];
        let mut this = Self {
            thread,
            table,
            unconfirmed: false,
            rx_rings: RxRings::new(Arc::clone(&shared), thread, nf_thread),
            tx_rings: TxRings::new(Arc::clone(&shared), thread, nf_thread),
            kit: Kit::new(&shared, thread),
            backoff: Backoff::new(waiting),
            next_check: 0,
            check_interval: clock::cycles_in_micros(CHECK_MICROS),
            is_signalled: false,
            stopping: false,
            leaving: false,
            counters: [0; NfCounter::COUNT],
            descriptors: [Descriptor::default(); BURST],
            verdicts: [Verdict::Next; BURST],
            received_at: 0,
            shared,
        };
        this.update_table();
        this
    }

    /// Waits for a burst. Returns `None` when the NF must end: the engine asked for it or is gone, or
    /// [`crate::Options::stop`] was requested.
    pub fn receive(&mut self) -> Option<Burst<'_>> {
        self.receive_with(|_| {})
    }

    /// As [`Endpoint::receive`], but also returns `None` after `timeout`; [`Endpoint::ended`] distinguishes the two.
    pub fn receive_for(&mut self, timeout: Duration) -> Option<Burst<'_>> {
        let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).min(MAX_TIMEOUT_MICROS);
        let until = clock::cycles().saturating_add(clock::cycles_in_micros(micros));
        let count = self.wait(Some(until), |_| {});
        Burst::of(self, count)
    }

    /// As [`Endpoint::receive`], but calls `idle` before each sleep, and now and then while the thread spins.
    pub(crate) fn receive_with(&mut self, idle: impl FnMut(&mut Self)) -> Option<Burst<'_>> {
        let count = self.wait(None, idle);
        Burst::of(self, count)
    }

    fn wait(&mut self, until: Option<u64>, mut idle: impl FnMut(&mut Self)) -> usize {
        loop {
            if self.leaving {
                return 0;
            }
            let count = self.poll();
            if count > 0 || self.stopping {
                return count;
            }
            if self.tx_rings.is_under_pressure() {
                // Clears backpressure as soon as there is room again.
                self.tx_rings.update_backpressure();
            }
            // Also after a sleep, but only after the packets that ended the sleep.
            if self.check_if_due() {
                idle(self);
                continue;
            }
            let left = match until.map(|until| until.checked_sub(clock::cycles())) {
                None => MAX_SLEEP,
                Some(Some(cycles)) => Duration::from_micros(cycles / clock::cycles_in_micros(1).max(1)),
                Some(None) => return 0,
            };
            match self.backoff.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => self.backoff.yield_core(),
                Step::Sleep => {
                    idle(self);
                    self.sleep(left);
                }
            }
        }
    }

    /// Returns a burst if there is one, without waiting. For programs that wait by other means; see
    /// [`Endpoint::ended`].
    pub fn try_receive(&mut self) -> Option<Burst<'_>> {
        let count = if self.leaving { 0 } else { self.poll() };
        if count == 0 {
            self.check_if_due();
        }
        Burst::of(self, count)
    }

    /// Whether the NF must end.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.stopping
    }

    /// Ends all threads of this NF.
    pub(crate) fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Number of this thread in the NF, from 0.
    #[must_use]
    pub const fn thread(&self) -> u16 {
        self.thread
    }

    /// The current number of the port with this name.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<PortId> {
        self.table.table().port_number(name).map(PortId)
    }

    /// The current number of the role with this name.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<RoleId> {
        self.table.table().role_number(name).map(RoleId)
    }

    /// The current number of the chain with this name, for [`crate::Steer`].
    #[must_use]
    pub fn chain(&self, name: &str) -> Option<ChainId> {
        self.table.table().chain_number(name).map(ChainId)
    }

    /// A number that changes whenever ports, roles or chains change.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.table.epoch()
    }

    /// Sends a message to all other NFs of a role in this NF's trust group, by way of netvmd.
    ///
    /// # Errors
    /// [`MessageError`]; it was not sent.
    pub fn send_message(&self, message: Outgoing) -> Result<(), MessageError> {
        self.shared.transport.send(&self.shared.control, &message.into())
    }

    /// The next message, if there is one and the NF takes messages ([`crate::Options::messages`]). Does not wait.
    pub fn next_message(&mut self) -> Option<Message> {
        self.shared.transport.next(&self.shared.control)
    }

    /// Publishes the NF's own counters, in the order of [`crate::Options::counters`].
    pub fn report(&self, counters: &[u64]) {
        for (to, value) in self.block().own.iter().zip(counters.iter().take(MAX_COUNTERS)) {
            to.store(*value, Ordering::Relaxed);
        }
    }

    /// Withdraws this thread's per-flow verdicts ([`Verdict::DropFlow`], [`Verdict::SkipFlow`],
    /// [`Verdict::SteerFlow`]).
    pub fn withdraw(&mut self) {
        self.tx_rings.withdraw();
    }

    /// Makes and sends packets between bursts, for example after a time-out. They leave when the outbox is dropped.
    pub fn outbox(&mut self) -> Outbox<'_> {
        Outbox::new(&mut self.kit, &mut self.tx_rings, &self.table).between_bursts()
    }

    /// Sets the time of [`Outbox::now`].
    pub(crate) const fn set_time(&mut self, time: Duration) {
        self.kit.set_time(time);
    }

    fn block(&self) -> &CounterBlock {
        self.shared.control.thread(self.thread)
    }

    #[inline]
    fn poll(&mut self) -> usize {
        if self.table.is_stale() || self.unconfirmed {
            self.update_table();
        }
        let received = self.rx_rings.receive(&mut self.descriptors);
        if received == 0 {
            return 0;
        }
        self.backoff.reset();
        self.received_at = clock::cycles();
        let count = self.retain_valid(received);
        self.verdicts[..count].fill(Verdict::Next);
        self.count(NfCounter::Received, count as u64);
        self.count(NfCounter::Bursts, 1);
        count
    }

    /// Moves descriptors with valid bounds to the front; returns how many. Others cannot be read or returned.
    #[inline(always)]
    fn retain_valid(&mut self, received: usize) -> usize {
        let shared = &self.shared;
        let is_valid = |d: &Descriptor| {
            shared
                .region_of(d.worker())
                .is_some_and(|r| r.geometry().contains(d.buffer(), d.offset(), d.length()))
        };
        if self.descriptors[..received].iter().all(is_valid) {
            return received;
        }
        let mut count = 0;
        for n in 0..received {
            if is_valid(&self.descriptors[n]) {
                self.descriptors[count] = self.descriptors[n];
                count += 1;
            }
        }
        count
    }

    #[cold]
    fn update_table(&mut self) {
        if self.table.refresh() {
            self.rx_rings.apply(self.table.table());
            self.tx_rings.apply(self.table.table());
            self.kit.follow();
            self.unconfirmed = true;
        }
        if self.unconfirmed && self.rx_rings.remove_retired() {
            self.unconfirmed = false;
            self.block().epoch.store(self.table.epoch(), Ordering::Release);
        }
    }

    #[inline(always)]
    fn count(&mut self, counter: NfCounter, by: u64) {
        self.counters[counter as usize] += by;
    }

    #[inline]
    fn publish_counters(&self) {
        let block = self.block();
        for (to, value) in block.standard.iter().zip(&self.counters) {
            to.store(*value, Ordering::Relaxed);
        }
        block.heartbeat.store(self.received_at, Ordering::Relaxed);
    }

    /// Moves the heartbeat at packet `n` of the burst.
    #[inline]
    fn beat(&self, n: usize) {
        self.block().heartbeat.store(self.received_at.wrapping_add(1 + n as u64), Ordering::Relaxed);
    }

    #[inline]
    fn send(&mut self, count: usize) {
        let before = clock::cycles();
        self.rx_rings.prefetch(BURST as u32);
        let (burst, verdicts) = (&self.descriptors[..count], &self.verdicts[..count]);
        let counts = if self.kit.is_used() {
            self.kit.dispatch(&mut self.tx_rings, &self.table, burst, verdicts)
        } else {
            self.tx_rings.dispatch(&self.table, burst, verdicts)
        };
        let now = clock::cycles();
        self.count(NfCounter::Next, counts.next);
        self.count(NfCounter::Dropped, counts.dropped);
        self.count(NfCounter::Port, counts.port);
        self.count(NfCounter::Role, counts.role);
        self.count(NfCounter::Detoured, counts.detoured);
        self.count(NfCounter::NfCycles, before.wrapping_sub(self.received_at));
        self.count(NfCounter::Cycles, now.wrapping_sub(self.received_at));
        self.publish_counters();
        if now >= self.next_check {
            self.check_if_due();
        }
        self.backoff.end_turn_if_over(now);
    }

    /// Checks, if it is time, whether the NF must end; returns whether it checked.
    fn check_if_due(&mut self) -> bool {
        let now = clock::cycles();
        if now < self.next_check {
            return false;
        }
        let engine_is_gone = self.shared.engine_is_gone();
        self.check_control(now, engine_is_gone);
        self.kit.release_leaving();
        if self.kit.is_used() {
            // Releases packets that the NF has dropped since.
            drop(self.outbox());
        }
        true
    }

    /// Checks at `now` whether the NF must end. It must if the engine is gone.
    fn check_control(&mut self, now: u64, engine_is_gone: bool) {
        self.next_check = now + self.check_interval;
        self.leaving = self.shared.stop.is_requested();
        self.stopping = self.leaving || engine_is_gone || self.shared.control.command() == Command::Stop;
    }

    fn sleep(&mut self, longest: Duration) {
        // Under backpressure the thread wakes early to clear it, in case that the ring's reader missed it.
        let most = if self.tx_rings.update_backpressure() { MAX_SLEEP_WHILE_FULL } else { MAX_SLEEP };
        let longest = longest.min(most);
        let Some(wake) = self.shared.eventfds.of_nf_thread(self.nf_thread()) else {
            return self.sleep_unwoken(longest);
        };
        // A silent peer sends packets without a wake-up: then the sleep must be short.
        let has_poll_only = self.rx_rings.has_poll_only();
        let longest = if has_poll_only { longest.min(self.backoff.next_sleep()) } else { longest };
        if core::mem::take(&mut self.is_signalled) {
            // Resets the count now, because packets were waiting when the thread woke. The descriptor does not block.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut is_over = false;
        if self.rx_rings.prepare_wait() && !self.table.is_stale() {
            self.counters[NfCounter::Sleeps as usize] += 1;
            self.publish_counters();
            let end = self.shared.sleep(wake, longest);
            self.is_signalled = end.is_signalled;
            is_over = !end.is_signalled;
            self.check_control(clock::cycles(), end.engine_is_gone);
        }
        self.rx_rings.end_wait();
        // Nobody has anything: the next sleep follows at once. To spin first would take the core from an NF that shares
        // it.
        if !has_poll_only && !is_over {
            self.backoff.reset();
        }
    }

    /// Sleeps without wake-ups: short at first, then longer.
    fn sleep_unwoken(&mut self, longest: Duration) {
        let sleep = self.backoff.next_sleep().min(longest);
        self.count(NfCounter::Sleeps, 1);
        self.publish_counters();
        std::thread::sleep(sleep);
    }

    fn nf_thread(&self) -> u8 {
        self.shared.control.header().nf_threads[usize::from(self.thread)]
    }
}
