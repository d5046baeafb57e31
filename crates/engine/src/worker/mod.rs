// SPDX-License-Identifier: Apache-2.0
//! A worker: one thread on one core that handles the packets of its ports, chains and NFs, run to completion.
//!
//! A turn of its loop, in the order of the packet path:
//!
//! 1. receives a burst from each port that is due, and brings it through the [`graph`] of stages; while the turn has
//!    few packets, what the ports have gathered is sent before the next one is polled;
//! 2. takes what each NF has returned, and what other workers have handed over, and does the same;
//! 3. sends what the ports have gathered.
//!
//! Then `idle/wake_nfs` wakes NFs that sleep while they have packets, and `idle/backoff` spins or sleeps after turns
//! without packets. `inputs` chooses the ports that a turn polls; `idle/port_events` finds which of the others have
//! packets. Stages are functions over [`Datapath`](state::Datapath), the state that the worker owns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_clock as clock;
use rtrb::{Consumer, Producer};

mod act;
mod chain;
mod classify;
mod control;
mod forward;
mod graph;
mod idle;
mod inputs;
mod latency;
mod monitor;
pub(crate) mod next;
mod owner;
mod packet;
pub(crate) mod record;
mod router;
mod shares;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod trace;
mod tracer;
mod tx;

use crate::counters::{Stage, WorkerCounters};
use crate::inflight::sweep::Sweeps;
use crate::interface::PortQueue;
use crate::snapshot::Snapshot;
pub(crate) use control::commands::Command;
pub use control::connection_page::{ConnectionFilter, ConnectionView, Restored};
pub(crate) use control::connection_page::{ConnectionPage, PageWork};
pub(crate) use control::events::{Event, Retired};
pub use control::flow_page::FlowCounts;
pub(crate) use control::flow_page::{FlowPage, MonitorPage};
pub(crate) use control::handle::{Setup, WorkerHandle};
pub(crate) use control::visit::{Keeps, VISITED_AT_ONCE, Visit, Visited};
use graph::arrivals::take_arrivals;
use graph::collect::collect;
use graph::handoff::take_handoffs;
use graph::ring::start_queue::drop_waiting;
use graph::rx::{ingress, receive};
use graph::tx::release_shaped;
use graph::verdicts;
use idle::backoff::Backoff;
use idle::port_events::PortEvents;
use idle::wake_nfs::wake_sleepers;
use inputs::Inputs;
pub use latency::Span;
pub(crate) use latency::{AwaitedPackets, Latency, LatencySample};
pub(crate) use monitor::FlowMonitor;
pub(crate) use packet::probe::Probe;
use shares::Shares;
use state::burst::Burst;
pub(crate) use state::connections::{EventMemory, TableMemory, WorkerConnections};
pub use state::connections::{LogEvent, NoPort, rule_number, rule_of};
pub(crate) use state::flow_verdicts::FlowAction;
pub(crate) use state::moved::connections::MovedConnections;
pub(crate) use state::moved::flows::{MovedFlow, MovedFlows};
use state::nf_links::Awaited;
use state::{Datapath, DatapathParts};
pub(crate) use state::{cycles_per_tick, flows::Flows, handoff};
pub use tracer::Hypothetical;
pub(crate) use tracer::Tracer;

/// One in this many turns with packets is timed.
const TIMED_EVERY: u32 = 16;

/// Up to this many packets of a turn are sent before the turn polls the next port, so that they do not wait for the
/// others. With more, a burst for each port at the end costs less.
const PROMPT_UP_TO: usize = 16;

/// Time limit for the exporter of flows at the end.
const LAST_WAIT: Duration = Duration::from_secs(1);

struct Worker {
    dp: Datapath,
    snapshot: Arc<Snapshot>,
    /// Ports that it receives by.
    inputs: Inputs,
    /// Decides which of them have to wait.
    shares: Shares,
    /// The shares have to be updated for a new snapshot or port.
    has_new_shares: bool,
    inbox: Consumer<Command>,
    outbox: Producer<Event>,
    backoff: Backoff,
    sweeps: Sweeps,
    burst: Burst,
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
        let dp = Datapath::new(DatapathParts {
            id: setup.id,
            counters,
            flows: setup.flows,
            limits: setup.limits,
            latency: setup.latency,
            monitor: setup.monitor,
            signaller: setup.signaller,
            handoff: setup.handoff,
        });
        Self {
            dp,
            snapshot: Arc::default(),
            inputs: Inputs::default(),
            shares: Shares::default(),
            has_new_shares: false,
            inbox,
            outbox,
            backoff: Backoff::new(setup.idle, setup.wake, setup.waiter, PortEvents::new(setup.ready)),
            sweeps: Sweeps::default(),
            burst: Burst::new(),
            turn: 0,
            stopping: false,
        }
    }

    fn run(mut self) {
        let mut before = clock::cycles();
        let mut moved = 0;
        // A sweep that the manager waits for is finished first.
        while !self.stopping || !self.sweeps.is_empty() {
            if !self.inbox.is_empty() {
                self.handle_commands();
                // Commands are not part of a turn's time.
                before = clock::cycles();
            }
            self.turn = self.turn.wrapping_add(1);
            self.dp.start_turn(before);
            self.inputs.begin_turn(moved);
            moved = if self.turn.is_multiple_of(TIMED_EVERY) {
                self.backoff.ports.check(&mut self.dp.ports, &mut self.inputs, before);
                self.turn::<true>()
            } else {
                self.turn::<false>()
            };
            if !self.sweeps.is_empty() {
                self.sweep();
            }
            if self.dp.recorder.is_some() {
                self.send_traced();
            }
            let now = clock::cycles();
            self.count_turn(moved, now.wrapping_sub(before));
            before = now;
            if moved == 0 && self.sweeps.is_empty() {
                let has_slept = self.backoff.wait(&mut self.dp, &self.snapshot, now);
                if has_slept {
                    self.inputs.found(self.backoff.ports.due());
                    self.dp.counters.sleeps.add(1);
                    before = clock::cycles();
                }
            } else {
                self.backoff.reset();
            }
        }
        self.finish();
    }

    /// Drops packets that wait for programs, passes the last events of connections on, and exports the records of flows
    /// that have not ended.
    #[cold]
    fn finish(&mut self) {
        drop_waiting(&mut self.dp, None);
        if let Some(connections) = &mut self.dp.connections {
            connections.pass_events(true);
        }
        if let Some(mut monitor) = self.dp.monitor.take() {
            let end = Instant::now() + LAST_WAIT;
            monitor.finish(&self.dp.counters.monitor, || {
                std::thread::sleep(Duration::from_millis(1));
                Instant::now() < end
            });
        }
    }

    /// One turn: polls every port that is due and every NF, and sends. Returns the number of packets moved.
    #[inline]
    fn turn<const TIMED: bool>(&mut self) -> usize {
        let snapshot = &*self.snapshot;
        let dp = &mut self.dp;
        let (mut moved, mut sent) = (0, 0);
        // Prefetches what NFs have returned while ports are served: first the ring indexes ...
        dp.nfs.each(|link| link.from_nf.prefetch_index());
        if self.inputs.is_empty() {
            dp.nfs.prefetch_returned();
        }
        let is_shared = self.shares.are_in_use();
        if is_shared {
            self.shares.begin_turn(clock::cycles());
        }
        let mut is_first = true;
        let mut last = None;
        let mut cursor = 0;
        while let Some((n, port)) = self.inputs.next_due(&mut cursor) {
            if is_shared && self.shares.has_to_wait(n, &dp.counters) {
                self.inputs.left_out(n);
                continue;
            }
            // Not if a device has no room: it counts the turns for which packets wait.
            let is_prompt = moved <= PROMPT_UP_TO && !dp.ports.has_unsent();
            let clock = Stopwatch::<TIMED>::start();
            let received = receive(dp, snapshot, port, &mut self.burst.batch);
            if std::mem::take(&mut is_first) {
                // ... then the descriptors.
                dp.nfs.prefetch_returned();
            }
            let count = received.taken;
            self.inputs.polled(n, count);
            if count > 0 {
                moved += count;
                last = Some(port);
                let begin = clock.0;
                let clock = clock.note(dp, Stage::Receive, count);
                if !self.burst.batch.is_empty() {
                    ingress(dp, received, &mut self.burst);
                }
                let end = clock.note(dp, Stage::Deliver, count).0;
                if TIMED {
                    dp.counters.ports[port.index()].timed_cycles.add(end.wrapping_sub(begin));
                }
                if is_prompt && moved <= PROMPT_UP_TO {
                    sent += send_gathered::<TIMED>(dp);
                }
            }
            if is_shared {
                self.shares.charge(n, count, clock::cycles(), &dp.counters);
            }
        }
        if let Some(last) = last {
            self.backoff.arrived(last, dp.clock.now);
        }
        for n in 0..dp.nfs.active.len() {
            if dp.ports.has_to_wait() {
                break;
            }
            let clock = Stopwatch::<TIMED>::start();
            let count = collect(dp, snapshot, dp.nfs.active[n]);
            if count > 0 {
                moved += count;
                dp.nfs.awaited = Awaited::Nothing;
                clock.note(dp, Stage::Collect, count);
            }
        }
        let handed_over = take_handoffs(dp) + take_arrivals(dp, snapshot, &mut self.burst);
        if handed_over > 0 {
            moved += handed_over;
            self.backoff.handed_over(dp.clock.now);
        }
        if !dp.ports.shaped.is_empty() {
            moved += release_shaped(dp, snapshot);
        }
        sent += send_gathered::<TIMED>(dp);
        let Datapath { monitor, connections, clock, .. } = &mut *dp;
        if let Some(monitor) = monitor {
            monitor.age(moved > 0, clock.now, |record| verdicts::complete(record, snapshot, connections));
        }
        wake_sleepers(dp);
        moved + sent
    }

    #[inline(always)]
    fn count_turn(&self, moved: usize, cycles: u64) {
        let counters = &self.dp.counters;
        counters.turns.add(1);
        if moved > 0 {
            counters.busy_cycles.add(cycles);
            counters.busy_packets.add(moved as u64);
            if cycles > counters.longest_turn.get() {
                counters.longest_turn.add(cycles - counters.longest_turn.get());
            }
        }
    }

    /// Sends the manager what became of traced packets, while its queue has much room: other events must not wait.
    #[cold]
    fn send_traced(&mut self) {
        let now = clock::cycles();
        let room = self.outbox.buffer().capacity() / 2;
        while self.outbox.slots() > room
            && let Some(record) = self.dp.recorder.as_mut().and_then(|recorder| recorder.take_ended(now))
        {
            self.send(Event::Traced(record));
        }
    }

    #[cold]
    fn sweep(&mut self) {
        if let Some((done, request)) = self.sweeps.step(&mut self.dp.in_flight) {
            self.dp.counters.reclaimed.add(done.buffers - done.kept);
            self.send(Event::Swept(done, request));
        }
    }
}

/// Sends what ports have gathered. Returns the number of packets that devices took.
#[inline(always)]
fn send_gathered<const TIMED: bool>(dp: &mut Datapath) -> usize {
    let clock = Stopwatch::<TIMED>::start();
    let sent = dp.flush_ports();
    dp.latency.flushed(dp.clock.now, |port| dp.ports.get(port).map(PortQueue::is_flushed));
    if sent > 0 {
        clock.note(dp, Stage::Transmit, sent);
    }
    sent
}

/// Times a stage in turns that are timed; costs nothing in the others.
struct Stopwatch<const TIMED: bool>(u64);

impl<const TIMED: bool> Stopwatch<TIMED> {
    #[inline(always)]
    fn start() -> Self {
        Self(if TIMED { clock::cycles() } else { 0 })
    }

    #[inline(always)]
    fn note(self, dp: &Datapath, stage: Stage, packets: usize) -> Self {
        if !TIMED {
            return self;
        }
        let now = clock::cycles();
        let counters = &dp.counters.stages[stage as usize];
        counters.cycles.add(now.wrapping_sub(self.0));
        counters.packets.add(packets as u64);
        Self(now)
    }
}
