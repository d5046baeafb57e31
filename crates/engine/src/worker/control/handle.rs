// SPDX-License-Identifier: Apache-2.0
//! The manager's handle of a worker: starts its thread, sends it commands, reads its events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use netvm_model::Idle;
use netvm_notify::{EpollWaiter, ReadySet, Signaller, write};
use rtrb::{Consumer, Producer, RingBuffer};

use super::affinity::pin_to;
use super::commands::Command;
use super::events::Event;
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
    /// Starts a worker, which goes on counting with these counters.
    pub(crate) fn start(
        eal: dpdk::Eal,
        setup: Setup,
        counters: Arc<WorkerCounters>,
        latency: Consumer<LatencySample>,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = RingBuffer::new(COMMANDS);
        let (outbox, events) = RingBuffer::new(COMMANDS);
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

    /// Whether events were not read yet.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Moves the worker to another core.
    pub(crate) fn pin(&mut self, core: u32) {
        self.core = core;
        self.send(Command::Pin(core));
    }

    /// Whether the worker has ended, after [`Command::Stop`].
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the worker to end, after [`Command::Stop`].
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic would have ended the process.
            let _ = thread.join();
        }
    }
}

/// Aborts the process if the worker's thread panics: otherwise its ports and chains would silently stop. The service
/// manager starts netvmd again; guests keep running.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
