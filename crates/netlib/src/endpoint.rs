//! One thread of an NF: takes bursts, sends them on. The burst API; the callback API ([`crate::run`]) is built on it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_region::{Command, CounterBlock, MAX_COUNTERS, StandardCounter, TableReader, clock};
use netvm_ring::Descriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attach::Shared;
use crate::function::ThreadContext;
use crate::packet::{Packet, PortId, RoleId, Verdict};
use crate::rx_rings::RxRings;
use crate::tx_rings::TxRings;
use crate::wait::{Backoff, LONGEST_SLEEP, Step, Waiting};

/// Packets that a burst holds at most.
pub const BURST: usize = 32;

/// How often a busy thread looks whether the engine is still there.
const LOOK_AROUND_MICROS: u64 = 10_000;

/// A day: what a longer timeout amounts to.
const LONGEST_TIMEOUT_MICROS: u64 = 86_400_000_000;

/// The rings of one thread of an NF.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    thread: u16,
    table: TableReader,
    unconfirmed: bool,
    rx_rings: RxRings,
    tx_rings: TxRings,
    backoff: Backoff,
    next_look: u64,
    look_every: u64,
    /// What wakes this thread has a count that was not taken yet.
    rung: bool,
    /// To end once the rings are empty.
    stopping: bool,
    /// To end now.
    leaving: bool,
    counters: [u64; StandardCounter::COUNT],
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
            backoff: Backoff::new(waiting),
            next_look: 0,
            look_every: clock::cycles_in_micros(LOOK_AROUND_MICROS),
            rung: false,
            stopping: false,
            leaving: false,
            counters: [0; StandardCounter::COUNT],
            descriptors: [Descriptor::default(); BURST],
            verdicts: [Verdict::Next; BURST],
            received_at: 0,
            shared,
        };
        this.follow_table();
        this
    }

    /// Takes a burst, waiting for it; `None` when the NF is to end: the engine said so or has gone, or
    /// [`crate::Options::stop`] was requested.
    pub fn receive(&mut self) -> Option<Burst<'_>> {
        self.receive_with(|_| {})
    }

    /// As [`Endpoint::receive`], but also returns `None` after `timeout`; [`Endpoint::ended`] distinguishes the two.
    pub fn receive_for(&mut self, timeout: Duration) -> Option<Burst<'_>> {
        let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).min(LONGEST_TIMEOUT_MICROS);
        let until = clock::cycles().saturating_add(clock::cycles_in_micros(micros));
        let count = self.wait(Some(until), |_| {});
        (count > 0).then_some(Burst { endpoint: self, count })
    }

    /// As [`Endpoint::receive`], with something to do while there is nothing to receive: before each sleep, and now and
    /// then while the thread spins.
    pub(crate) fn receive_with(&mut self, idle: impl FnMut(&mut Self)) -> Option<Burst<'_>> {
        let count = self.wait(None, idle);
        (count > 0).then_some(Burst { endpoint: self, count })
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
            if self.tx_rings.has_pressed() {
                // So that a chain is open again as soon as there is room in it.
                self.tx_rings.under_pressure();
            }
            // After a sleep too, but not before the packets that it was woken for.
            if self.look_around() {
                idle(self);
                continue;
            }
            let left = match until.map(|until| until.checked_sub(clock::cycles())) {
                None => LONGEST_SLEEP,
                Some(Some(cycles)) => Duration::from_micros(cycles / clock::cycles_in_micros(1).max(1)),
                Some(None) => return 0,
            };
            match self.backoff.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Sleep => {
                    idle(self);
                    self.sleep(left);
                }
            }
        }
    }

    /// Takes a burst if there is one; never waits. For programs that wait in their own way; see [`Endpoint::ended`].
    pub fn try_receive(&mut self) -> Option<Burst<'_>> {
        let count = if self.leaving { 0 } else { self.poll() };
        if count == 0 {
            self.look_around();
        }
        (count > 0).then_some(Burst { endpoint: self, count })
    }

    /// Whether the NF is to end.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.stopping
    }

    /// Which thread of the NF this is, from 0.
    #[must_use]
    pub const fn thread(&self) -> u16 {
        self.thread
    }

    /// The number of the port with this name, as of now.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<PortId> {
        self.table.table().port_number(name).map(PortId)
    }

    /// The number of the role with this name, as of now.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<RoleId> {
        self.table.table().role_number(name).map(RoleId)
    }

    /// Moves whenever ports, roles or chains have changed.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.table.epoch()
    }

    /// Shows the NF's own counters, in the order in which [`crate::Options::counters`] names them.
    pub fn report(&self, counters: &[u64]) {
        for (to, value) in self.block().own.iter().zip(counters.iter().take(MAX_COUNTERS)) {
            to.store(*value, Ordering::Relaxed);
        }
    }

    /// Takes back what this thread has said of whole flows ([`Verdict::DropFlow`], [`Verdict::SkipFlow`]).
    pub fn withdraw(&mut self) {
        self.tx_rings.withdraw();
    }

    fn block(&self) -> &CounterBlock {
        self.shared.control.thread(self.thread)
    }

    #[inline]
    fn poll(&mut self) -> usize {
        if self.table.is_stale() || self.unconfirmed {
            self.follow_table();
        }
        let received = self.rx_rings.receive(&mut self.descriptors);
        if received == 0 {
            return 0;
        }
        self.backoff.busy();
        self.received_at = clock::cycles();
        let count = self.keep_sound(received);
        self.verdicts[..count].fill(Verdict::Next);
        self.count(StandardCounter::Received, count as u64);
        self.count(StandardCounter::Bursts, 1);
        count
    }

    /// Moves descriptors with valid bounds to the front; returns how many. Others cannot be read or returned.
    #[inline(always)]
    fn keep_sound(&mut self, received: usize) -> usize {
        let shared = &self.shared;
        let sound = |d: &Descriptor| {
            shared
                .region_of(d.worker())
                .is_some_and(|r| r.geometry().contains(d.buffer(), d.offset(), d.length()))
        };
        if self.descriptors[..received].iter().all(sound) {
            return received;
        }
        let mut count = 0;
        for n in 0..received {
            if sound(&self.descriptors[n]) {
                self.descriptors[count] = self.descriptors[n];
                count += 1;
            }
        }
        count
    }

    #[cold]
    fn follow_table(&mut self) {
        if self.table.refresh() {
            self.rx_rings.follow(self.table.table());
            self.tx_rings.follow(self.table.table());
            self.unconfirmed = true;
        }
        if self.unconfirmed && self.rx_rings.settle() {
            self.unconfirmed = false;
            self.block().epoch.store(self.table.epoch(), Ordering::Release);
        }
    }

    #[inline(always)]
    fn count(&mut self, counter: StandardCounter, by: u64) {
        self.counters[counter as usize] += by;
    }

    #[inline]
    fn show_counters(&self) {
        let block = self.block();
        for (to, value) in block.standard.iter().zip(&self.counters) {
            to.store(*value, Ordering::Relaxed);
        }
        block.heartbeat.store(self.received_at, Ordering::Relaxed);
    }

    #[inline]
    fn send(&mut self, count: usize) {
        let before = clock::cycles();
        self.rx_rings.prefetch(BURST as u32);
        let tally = self.tx_rings.dispatch(&self.table, &self.descriptors[..count], &self.verdicts[..count]);
        let now = clock::cycles();
        self.count(StandardCounter::Next, tally.next);
        self.count(StandardCounter::Dropped, tally.dropped);
        self.count(StandardCounter::Port, tally.port);
        self.count(StandardCounter::Role, tally.role);
        self.count(StandardCounter::Detoured, tally.detoured);
        self.count(StandardCounter::NfCycles, before.wrapping_sub(self.received_at));
        self.count(StandardCounter::Cycles, now.wrapping_sub(self.received_at));
        self.show_counters();
        if now >= self.next_look {
            self.look_around();
        }
    }

    /// Sees, now and then, whether the NF is to end; returns whether it looked.
    fn look_around(&mut self) -> bool {
        let now = clock::cycles();
        if now < self.next_look {
            return false;
        }
        let gone = self.shared.engine_has_gone();
        self.poll_control(now, gone);
        true
    }

    /// Sees at `now` whether the NF is to end, which it is once the engine has gone.
    fn poll_control(&mut self, now: u64, engine_has_gone: bool) {
        self.next_look = now + self.look_every;
        self.leaving = self.shared.stop.is_requested();
        self.stopping = self.leaving || engine_has_gone || self.shared.control.command() == Command::Stop;
    }

    fn sleep(&mut self, longest: Duration) {
        let regulated =
            if self.tx_rings.under_pressure() { Duration::from_micros(50) } else { LONGEST_SLEEP };
        let longest = longest.min(regulated);
        let Some(wake) = self.shared.eventfds.of_nf_thread(self.nf_thread()) else {
            return self.nap(longest);
        };
        // Some packets may come without a wake-up: then nothing but its own clock wakes this thread in time.
        let unwoken = self.rx_rings.has_silent();
        let longest = if unwoken { longest.min(self.backoff.nap()) } else { longest };
        if core::mem::take(&mut self.rung) {
            // Takes the count back to zero, now and not when it woke: then packets waited. The descriptor does not block.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        if self.rx_rings.prepare_wait() && !self.table.is_stale() {
            self.counters[StandardCounter::Sleeps as usize] += 1;
            self.show_counters();
            let end = self.shared.sleep(wake, longest);
            self.rung = end.rung;
            self.poll_control(clock::cycles(), end.engine_has_gone);
        }
        self.rx_rings.end_wait();
        if !unwoken {
            self.backoff.busy();
        }
    }

    /// Sleeps without wake-ups: short at first, then longer.
    fn nap(&mut self, longest: Duration) {
        let nap = self.backoff.nap().min(longest);
        self.count(StandardCounter::Sleeps, 1);
        self.show_counters();
        std::thread::sleep(nap);
    }

    fn nf_thread(&self) -> u8 {
        self.shared.control.header().nf_threads[usize::from(self.thread)]
    }
}

/// A burst of packets, to be given verdicts; what has none goes to the next hop. Dropping it sends it on.
#[derive(Debug)]
pub struct Burst<'a> {
    endpoint: &'a mut Endpoint,
    count: usize,
}

impl Burst<'_> {
    /// How many packets.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none: only when a hostile peer's descriptors were all thrown away.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// As [`Endpoint::epoch`].
    #[inline]
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.endpoint.table.epoch()
    }

    /// What the thread knows of its surroundings, as of this burst.
    #[inline]
    #[must_use]
    pub fn context(&self) -> ThreadContext<'_> {
        ThreadContext::new(self.endpoint)
    }

    /// Packet `n`; `None` beyond the burst.
    #[inline]
    pub fn packet(&mut self, n: usize) -> Option<Packet<'_>> {
        let endpoint = &mut *self.endpoint;
        let descriptor = endpoint.descriptors[..self.count].get_mut(n)?;
        let region = endpoint.shared.region_of(descriptor.worker())?;
        // SAFETY: `poll` kept only descriptors whose bounds are within the region, in private memory; the buffer is this
        // process's until the burst is sent; the borrow of `self` keeps it the only Packet.
        Some(unsafe { Packet::new(region, descriptor) })
    }

    /// Says what is to become of packet `n`.
    #[inline]
    pub fn set(&mut self, n: usize, verdict: Verdict) {
        if let Some(slot) = self.endpoint.verdicts[..self.count].get_mut(n) {
            *slot = verdict;
        }
    }

    /// The same verdict for all.
    #[inline]
    pub fn set_all(&mut self, verdict: Verdict) {
        self.endpoint.verdicts[..self.count].fill(verdict);
    }

    /// Takes back what this thread has said of whole flows in bursts before this one; what it says in this one holds.
    pub fn withdraw(&mut self) {
        self.endpoint.withdraw();
    }

    /// Asks `verdict` for each packet in turn, with the next ones on their way into the cache.
    #[inline]
    pub fn for_each(&mut self, mut verdict: impl FnMut(&mut Packet<'_>) -> Verdict) {
        for n in 0..self.count {
            if let Some(ahead) = self.packet(n + 4) {
                ahead.prefetch();
            }
            if let Some(mut packet) = self.packet(n) {
                let verdict = verdict(&mut packet);
                self.set(n, verdict);
            }
        }
    }
}

impl Drop for Burst<'_> {
    #[inline]
    fn drop(&mut self) {
        self.endpoint.send(self.count);
    }
}

/// How a sleep ended, if not by the time alone.
struct Waking {
    rung: bool,
    engine_has_gone: bool,
}

impl Shared {
    /// Whether the other end of the socket is closed.
    pub(crate) fn engine_has_gone(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && is_closed(&fds[0])
    }

    /// Sleeps until woken, until the engine goes, or for `longest`.
    fn sleep(&self, wake: &OwnedFd, longest: Duration) -> Waking {
        let timeout = Timespec { tv_sec: longest.as_secs() as _, tv_nsec: longest.subsec_nanos().into() };
        let socket = self.socket.as_ref().map_or(wake.as_fd(), AsFd::as_fd);
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(&socket, PollFlags::RDHUP)];
        // An error (a signal) ends the sleep early, which is always right.
        let _ = poll(&mut fds, Some(&timeout));
        let rung = fds[0].revents().contains(PollFlags::IN);
        Waking { rung, engine_has_gone: self.socket.is_some() && is_closed(&fds[1]) }
    }
}

fn is_closed(socket: &PollFd<'_>) -> bool {
    socket.revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}
