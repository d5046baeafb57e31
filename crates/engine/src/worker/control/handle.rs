//! The manager's handle of a worker: starts its thread, sends it commands, reads its events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use netvm_model::Idle;
use netvm_notify::{EpollWaiter, ReadySet, Signaller, write};
use rtrb::{Consumer, Producer, RingBuffer};

use super::commands::{Command, Event};
use crate::counters::WorkerCounters;
use crate::ids::WorkerId;
use crate::limits::SharedLimits;
use crate::worker::state::flows::Flows;
use crate::worker::state::handoff::Handoff;
use crate::worker::{FlowMonitor, Latency, LatencySample, Worker};

/// Commands that can wait for a worker.
const COMMANDS: usize = 1024;

/// How a worker runs.
pub(crate) struct Setup {
    pub(crate) id: WorkerId,
    pub(crate) core: u32,
    pub(crate) idle: Idle,
    pub(crate) handoff: Handoff,
    /// The eventfd by which the manager and other workers wake the worker; NFs do not have it.
    pub(crate) wake: Arc<OwnedFd>,
    /// The epoll instance by which NFs wake the worker.
    pub(crate) waiter: EpollWaiter,
    /// The set by which packets of its ports wake the worker.
    pub(crate) ready: ReadySet,
    /// The signaller with which the worker wakes NFs.
    pub(crate) signaller: Signaller,
    pub(crate) flows: Flows,
    pub(crate) limits: Arc<SharedLimits>,
    pub(crate) latency: Latency,
    pub(crate) monitor: Option<Box<FlowMonitor>>,
}

/// The manager's end of a worker.
pub(crate) struct WorkerHandle {
    pub(crate) id: WorkerId,
    pub(crate) core: u32,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) waiter: EpollWaiter,
    wake: Arc<OwnedFd>,
    commands: Producer<Command>,
    events: Consumer<Event>,
    latency: Consumer<LatencySample>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts a worker.
    pub(crate) fn start(
        eal: dpdk::Eal,
        setup: Setup,
        latency: Consumer<LatencySample>,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = RingBuffer::new(COMMANDS);
        let (outbox, events) = RingBuffer::new(COMMANDS);
        let counters = Arc::new(WorkerCounters::new());
        let (id, core, wake, waiter) = (setup.id, setup.core, Arc::clone(&setup.wake), setup.waiter.clone());
        let shared = Arc::clone(&counters);
        let thread = Builder::new().name(format!("netvm-worker-{id}")).spawn(move || {
            let _guard = AbortOnPanic;
            pin_to(setup.core);
            // If this fails, the pools work without caches.
            let _registered = eal.register_thread();
            Worker::new(setup, shared, inbox, outbox).run();
        })?;
        Ok(Self { id, core, counters, waiter, wake, commands, events, latency, thread: Some(thread) })
    }

    /// Sends a command; waits while the queue is full.
    pub(crate) fn send(&mut self, command: Command) {
        let mut command = command;
        while let Err(rtrb::PushError::Full(back)) = self.commands.push(command) {
            command = back;
            write(&self.wake);
            std::thread::yield_now();
        }
        write(&self.wake);
    }

    pub(crate) fn latency_sample(&mut self) -> Option<LatencySample> {
        self.latency.pop().ok()
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.events.pop().ok()
    }

    /// Waits for the worker to end, after [`Command::Stop`].
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic would have ended the process.
            let _ = thread.join();
        }
    }
}

/// Aborts the process if the worker's thread panics: otherwise its ports and chains would silently stop. The service manager
/// starts netvmd again; guests keep running.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Pins the calling thread. If it may not use the core (a container's limits), its affinity does not change.
fn pin_to(core: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core as usize);
    let _ = rustix::thread::sched_setaffinity(None, &set);
    // Sleeps end when they are due, not 50 microseconds later.
    // SAFETY: PR_SET_TIMERSLACK takes a number of nanoseconds and changes only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
}
