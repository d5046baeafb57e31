//! The manager's handle of a worker: starts its thread, sends it commands, reads its events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use netvm_config::model::Idle;
use netvm_notify::{EpollWaiter, Signaller, write};
use rtrb::{Consumer, Producer, RingBuffer};

use super::commands::{Command, Event};
use crate::counters::WorkerCounters;
use crate::ids::WorkerId;
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
    /// The manager wakes the worker by it; no NF has it.
    pub(crate) wake: Arc<OwnedFd>,
    /// NFs wake the worker by it.
    pub(crate) waiter: EpollWaiter,
    /// The worker wakes NFs by it.
    pub(crate) signaller: Signaller,
    pub(crate) flows: Flows,
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
            // Without a registration the pools work too, without their caches.
            let _registered = eal.register_thread();
            Worker::new(setup, shared, (inbox, outbox)).run();
        })?;
        Ok(Self { id, core, counters, waiter, wake, commands, events, latency, thread: Some(thread) })
    }

    /// Sends a command; waits while the worker has a thousand to do already.
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

/// Ends the process if its thread panics: without a worker, its ports and chains would stand still without a word. The
/// service manager starts another process; guests live on.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Pins the calling thread. If the core is not to be had (a container's limits), the thread stays where it is.
fn pin_to(core: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core as usize);
    let _ = rustix::thread::sched_setaffinity(None, &set);
    // Sleeps end when they are due, not 50 microseconds later.
    // SAFETY: PR_SET_TIMERSLACK takes a number of nanoseconds and changes only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
}
