//! A worker: one thread on one core that does everything for its ports, its chains and its NFs, run to completion.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use dpdk::Batch;
use netvm_config::model::Idle;
use netvm_notify::{EpollWaiter, Signaller, write};
use netvm_region::clock;
use rtrb::{Consumer, Producer, RingBuffer};

mod act;
mod chain;
mod classify;
mod control;
mod forward;
mod idle;
mod rx;
pub(crate) mod state;
mod tx;

use crate::counters::{Stage, WorkerCounters};
use crate::ids::{PortId, WorkerId};
use crate::inflight::sweep::Sweeps;
use crate::snapshot::Snapshot;
pub(crate) use classify::lookup::Flows;
use classify::lookup::Found;
pub(crate) use commands::{Command, Event};
use control::commands;
use control::flow_page;
pub use flow_page::FlowCounts;
pub(crate) use flow_page::FlowPage;
pub(crate) use forward::route::{Class, Head, V4, V6, flow_hash};
use idle::backoff::Rest;
use state::{Awaited, Path};
pub(crate) use tx::handoff;
use tx::handoff::Handoff;

/// Orders that can wait for a worker.
const MAILBOX: usize = 1024;
/// Every so many turns that have packets, the stages are timed.
const TIMED_EVERY: u32 = 16;

/// How a worker is to run.
pub(crate) struct Setup {
    pub(crate) id: WorkerId,
    pub(crate) core: u32,
    pub(crate) idle: Idle,
    pub(crate) handoff: Handoff,
    /// Wakes the worker; no NF has it.
    pub(crate) wake: Arc<OwnedFd>,
    /// NFs wake it by this.
    pub(crate) waiter: EpollWaiter,
    /// Wakes others.
    pub(crate) signaller: Signaller,
    pub(crate) flows: Flows,
}

/// The manager's end of a worker.
pub(crate) struct WorkerHandle {
    pub(crate) id: WorkerId,
    pub(crate) core: u32,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) waiter: EpollWaiter,
    wake: Arc<OwnedFd>,
    orders: Producer<Command>,
    events: Consumer<Event>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts a worker.
    pub(crate) fn start(eal: dpdk::Eal, setup: Setup) -> std::io::Result<Self> {
        let (orders, inbox) = RingBuffer::new(MAILBOX);
        let (outbox, events) = RingBuffer::new(MAILBOX);
        let counters = Arc::new(WorkerCounters::new());
        let (id, core, wake, waiter) = (setup.id, setup.core, Arc::clone(&setup.wake), setup.waiter.clone());
        let shared = Arc::clone(&counters);
        let thread = Builder::new().name(format!("netvm-worker-{id}")).spawn(move || {
            settle_on(setup.core);
            // Without a registration the pools work too, without their caches.
            let _registered = eal.register_thread();
            Worker::new(setup, shared, inbox, outbox).run();
        })?;
        Ok(Self { id, core, counters, waiter, wake, orders, events, thread: Some(thread) })
    }

    /// Sends an order; waits when the worker has a thousand to do already.
    pub(crate) fn order(&mut self, command: Command) {
        let mut command = command;
        while let Err(rtrb::PushError::Full(back)) = self.orders.push(command) {
            command = back;
            write(&self.wake);
            std::thread::yield_now();
        }
        write(&self.wake);
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.events.pop().ok()
    }

    /// Waits for the worker, which has been told to stop.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A worker does not panic; if it did, the process is about to end anyway.
            let _ = thread.join();
        }
    }
}

/// Pins the calling thread. A core that cannot be had (a container's limits) leaves it where it is.
fn settle_on(core: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core as usize);
    let _ = rustix::thread::sched_setaffinity(None, &set);
    // Sleeps are to end when they are due, not 50 microseconds later.
    // SAFETY: PR_SET_TIMERSLACK takes a number of nanoseconds and changes only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
}

struct Worker {
    path: Path,
    snapshot: Arc<Snapshot>,
    /// Ports that packets come in by.
    inputs: Vec<PortId>,
    inbox: Consumer<Command>,
    outbox: Producer<Event>,
    rest: Rest,
    sweeps: Sweeps,
    /// Packets between two stages.
    batch: Batch,
    /// What was found of them.
    found: Box<Found>,
    turn: u32,
    stopping: bool,
}

impl Worker {
    fn new(
        setup: Setup,
        counters: Arc<WorkerCounters>,
        inbox: Consumer<Command>,
        outbox: Producer<Event>,
    ) -> Self {
        Self {
            path: Path::new(setup.id, counters, setup.signaller, setup.handoff, setup.flows),
            snapshot: Arc::default(),
            inputs: Vec::new(),
            inbox,
            outbox,
            rest: Rest::new(setup.idle, setup.wake, setup.waiter),
            sweeps: Sweeps::default(),
            batch: Batch::new(),
            found: Box::new(Found::new()),
            turn: 0,
            stopping: false,
        }
    }

    fn run(mut self) {
        let mut before = clock::cycles();
        while !self.stopping {
            if !self.inbox.is_empty() {
                self.obey();
                // Orders are not part of a turn's time.
                before = clock::cycles();
            }
            self.turn = self.turn.wrapping_add(1);
            self.path.look_at_clock(before);
            let moved = if self.turn.is_multiple_of(TIMED_EVERY) {
                self.turn::<true>()
            } else {
                self.turn::<false>()
            };
            if !self.sweeps.is_empty() {
                self.sweep();
            }
            let now = clock::cycles();
            self.account(moved, now.wrapping_sub(before));
            before = now;
            if moved == 0 && self.sweeps.is_empty() {
                if self.rest.rest(&mut self.path, &self.snapshot, &self.inputs, now) {
                    self.path.counters.sleeps.add(1);
                    before = clock::cycles();
                }
            } else {
                self.rest.busy();
            }
        }
    }

    /// One turn: every port, every NF, everything sent. Returns how many packets moved.
    #[inline]
    fn turn<const TIMED: bool>(&mut self) -> usize {
        let snapshot = &*self.snapshot;
        let path = &mut self.path;
        let mut moved = 0;
        // What NFs have returned crosses from their cores while ports are being served: first the indexes ...
        path.each_link(|link| link.from_nf.prefetch_index());
        if self.inputs.is_empty() {
            path.prefetch_returned();
        }
        for (n, port) in self.inputs.iter().enumerate() {
            let clock = Stopwatch::<TIMED>::start();
            let from = path.receive(snapshot, *port, &mut self.batch);
            if n == 0 {
                // ... then the descriptors.
                path.prefetch_returned();
            }
            let count = self.batch.len();
            if count == 0 {
                continue;
            }
            moved += count;
            let clock = clock.note(path, Stage::Receive, count);
            path.steer(snapshot, from, &mut self.found, &mut self.batch);
            clock.note(path, Stage::Deliver, count);
        }
        if moved > 0 {
            self.rest.arrived(path.now);
        }
        for n in 0..path.active.len() {
            let clock = Stopwatch::<TIMED>::start();
            let count = path.collect(snapshot, path.active[n]);
            if count > 0 {
                moved += count;
                path.awaited = Awaited::Nothing;
                clock.note(path, Stage::Collect, count);
            }
        }
        if path.handoff.has_peers() {
            moved += path.take_handoffs();
        }
        let clock = Stopwatch::<TIMED>::start();
        let sent = path.flush();
        if sent > 0 {
            clock.note(path, Stage::Transmit, sent);
        }
        path.wake_sleepers();
        moved + sent
    }

    #[inline(always)]
    fn account(&self, moved: usize, cycles: u64) {
        let counters = &self.path.counters;
        counters.turns.add(1);
        if moved > 0 {
            counters.busy_cycles.add(cycles);
            counters.busy_packets.add(moved as u64);
            if cycles > counters.longest_turn.get() {
                counters.longest_turn.add(cycles - counters.longest_turn.get());
            }
        }
    }

    #[cold]
    fn sweep(&mut self) {
        if let Some((done, request)) = self.sweeps.step(&mut self.path.in_flight) {
            self.path.counters.reclaimed.add(done.buffers);
            self.tell(Event::Swept(done, request));
        }
    }
}

/// Times a stage in the turns that are timed, and costs nothing in the others.
struct Stopwatch<const TIMED: bool>(u64);

impl<const TIMED: bool> Stopwatch<TIMED> {
    #[inline(always)]
    fn start() -> Self {
        Self(if TIMED { clock::cycles() } else { 0 })
    }

    #[inline(always)]
    fn note(self, path: &Path, stage: Stage, packets: usize) -> Self {
        if !TIMED {
            return self;
        }
        let now = clock::cycles();
        let counters = &path.counters.stages[stage as usize];
        counters.cycles.add(now.wrapping_sub(self.0));
        counters.packets.add(packets as u64);
        Self(now)
    }
}
