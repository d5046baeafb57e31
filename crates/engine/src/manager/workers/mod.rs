// SPDX-License-Identifier: Apache-2.0
//! The manager's interface to the workers. In: commands. Out: events.
//!
//! Workers have the numbers from 0 on. A new one gets the next number, and the one with the highest number is the first
//! to end. The counters of a worker that has ended stay in all sums, and the next worker with its number goes on with
//! them.
//!
//! A worker handles its commands between two turns, in the order in which they were sent. A command with an answer
//! carries a ticket, which the answer repeats; [`Pending`] holds the tickets that have no answer yet.

pub(crate) mod connections;
mod lifecycle;
mod settle;

use std::array::from_fn;
use std::collections::VecDeque;
use std::iter::Sum;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_flowmon::Record;
use netvm_model::EngineConfig;
use netvm_notify::EpollWaiter;
use rtrb::Consumer;

use super::cores::{Cores, StartError};
use crate::counters::{LinkCounters, LinkCounts, WorkerCounters};
use crate::drop_reason::{DropReason, Violation};
use crate::ids::{GroupId, LinkId, WorkerId};
use crate::inflight::sweep::{SweepRequest, SweepScope};
use crate::limits::SharedLimits;
use crate::memory::Memory;
use crate::worker::handoff::Sleeper;
use crate::worker::{AwaitedPackets, Command, Event, LatencySample, WorkerHandle};

/// Time limit for workers to answer, which they do between two turns.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which events that are waited for are looked for.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Tickets of commands that workers have not answered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending(Vec<u64>);

impl Pending {
    /// Whether every worker has answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes an answered ticket. Returns whether it was one of these.
    pub(crate) fn answer(&mut self, ticket: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|other| *other != ticket);
        self.0.len() < before
    }
}

/// Sums of the counters of one NF thread's links over all workers.
#[derive(Clone, Debug)]
pub(crate) struct LinkSums {
    pub(crate) counts: LinkCounts,
    pub(crate) delivered: u64,
    pub(crate) returned: u64,
    pub(crate) drops: [u64; DropReason::COUNT],
    pub(crate) violations: [u64; Violation::COUNT],
}

impl Default for LinkSums {
    fn default() -> Self {
        Self {
            counts: LinkCounts::default(),
            delivered: 0,
            returned: 0,
            drops: [0; DropReason::COUNT],
            violations: [0; Violation::COUNT],
        }
    }
}

impl LinkSums {
    /// The sums of this and other links.
    pub(crate) fn with(&self, other: &Self) -> Self {
        Self {
            counts: self.counts + other.counts,
            delivered: self.delivered + other.delivered,
            returned: self.returned + other.returned,
            drops: from_fn(|reason| self.drops[reason] + other.drops[reason]),
            violations: from_fn(|kind| self.violations[kind] + other.violations[kind]),
        }
    }
}

/// All workers.
pub(crate) struct Workers {
    eal: dpdk::Eal,
    config: EngineConfig,
    limits: Arc<SharedLimits>,
    /// Measured packets that programs have.
    awaited: Arc<AwaitedPackets>,
    room: usize,
    /// Most NFs that a packet passes.
    hops: usize,
    handles: Vec<WorkerHandle>,
    /// By worker.
    sleepers: Vec<Arc<Sleeper>>,
    /// Workers that were told to end.
    ending: Vec<WorkerHandle>,
    /// By worker, also of those that have ended.
    counters: Vec<Arc<WorkerCounters>>,
    /// What the kernel does in their place; the manager counts it.
    by_kernel: Option<Box<WorkerCounters>>,
    /// The rings of the flow monitors, until the exporter takes them.
    records: Vec<Consumer<Record>>,
    /// By worker: the index of the region of a trust group that is on its NUMA node.
    regions: Vec<u8>,
    last_ticket: u64,
    /// Events that came while the manager waited for others.
    deferred: VecDeque<(WorkerId, Event)>,
}

impl Workers {
    pub(crate) fn start(eal: dpdk::Eal, cores: &Cores, config: &EngineConfig) -> Result<Self, StartError> {
        let mut this = Self {
            eal,
            config: config.clone(),
            limits: Arc::new(SharedLimits::new()),
            awaited: Arc::default(),
            room: cores.room,
            hops: 0,
            handles: Vec::new(),
            sleepers: Vec::new(),
            ending: Vec::new(),
            counters: Vec::new(),
            by_kernel: None,
            records: Vec::new(),
            regions: Vec::new(),
            last_ticket: 0,
            deferred: VecDeque::new(),
        };
        for (core, region) in cores.cores.iter().zip(&cores.regions) {
            this.add(*core, *region)?;
        }
        Ok(this)
    }

    pub(crate) fn len(&self) -> usize {
        self.handles.len()
    }

    /// The most workers that there can be.
    pub(crate) const fn room(&self) -> usize {
        self.room
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.handles.len() as u8).map(WorkerId)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &WorkerHandle> {
        self.handles.iter()
    }

    pub(crate) fn has(&self, worker: WorkerId) -> bool {
        worker.index() < self.handles.len()
    }

    /// What a worker sleeps in.
    pub(crate) fn waiter(&self, worker: WorkerId) -> Option<&EpollWaiter> {
        self.handles.get(worker.index()).map(|handle| &handle.waiter)
    }

    /// A worker's counters; also of one that has ended.
    fn counters(&self, worker: WorkerId) -> Option<&WorkerCounters> {
        self.counters.get(worker.index()).map(|counters| &**counters)
    }

    /// By worker: which region of a trust group is on its NUMA node.
    pub(crate) fn regions(&self) -> &[u8] {
        &self.regions
    }

    /// By worker: the group's memory, of `memories`, that is on its NUMA node.
    pub(crate) fn local(&self, memories: &[Arc<Memory>]) -> Vec<Arc<Memory>> {
        self.regions.iter().map(|region| Arc::clone(&memories[usize::from(*region)])).collect()
    }

    pub(crate) fn new_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    pub(crate) fn send(&mut self, worker: WorkerId, command: Command) {
        if let Some(handle) = self.handles.get_mut(worker.index()) {
            handle.send(command);
        }
    }

    pub(crate) fn send_all(&mut self, mut command: impl FnMut(WorkerId) -> Command) {
        for handle in &mut self.handles {
            handle.send(command(handle.id));
        }
    }

    /// Lets workers use memories, of which each has its own for `group`: the one on its NUMA node.
    pub(crate) fn announce_memories(&mut self, memories: &[Arc<Memory>], group: Option<GroupId>) {
        self.ids().for_each(|worker| self.announce_memories_to(worker, memories, group));
    }

    /// The same for one worker.
    pub(crate) fn announce_memories_to(
        &mut self,
        worker: WorkerId,
        memories: &[Arc<Memory>],
        group: Option<GroupId>,
    ) {
        let region = self.regions.get(worker.index()).copied();
        for (n, memory) in (0u8..).zip(memories) {
            let home = group.filter(|_| region == Some(n));
            self.send(worker, Command::AddMemory { memory: Arc::clone(memory), home });
        }
    }

    /// Removes the links of an NF, given by thread and worker.
    pub(crate) fn remove_links(&mut self, links: &[Vec<LinkId>]) {
        for links in links {
            for (handle, link) in self.handles.iter_mut().zip(links) {
                handle.send(Command::RemoveLink(*link));
            }
        }
    }

    /// The next sample of any worker.
    pub(crate) fn next_latency_sample(&mut self) -> Option<LatencySample> {
        self.handles.iter_mut().find_map(WorkerHandle::latency_sample)
    }

    /// The rings of the flow monitors, each once.
    pub(crate) fn take_records(&mut self) -> Vec<Consumer<Record>> {
        std::mem::take(&mut self.records)
    }

    /// The next event of any worker.
    pub(crate) fn next_event(&mut self) -> Option<(WorkerId, Event)> {
        self.deferred.pop_front().or_else(|| self.receive())
    }

    fn receive(&mut self) -> Option<(WorkerId, Event)> {
        let mut handles = self.handles.iter_mut().chain(&mut self.ending);
        handles.find_map(|handle| Some((handle.id, handle.event()?)))
    }

    /// Waits at most `within` for events. `take` breaks with what was waited for, or returns an event that it does not
    /// want: [`Workers::next_event`] returns it later.
    pub(crate) fn wait_for<T>(
        &mut self,
        within: Duration,
        mut take: impl FnMut(WorkerId, Event) -> ControlFlow<T, Option<Event>>,
    ) -> Option<T> {
        let deadline = Instant::now() + within;
        loop {
            while let Some((worker, event)) = self.receive() {
                match take(worker, event) {
                    ControlFlow::Break(found) => return Some(found),
                    ControlFlow::Continue(other) => self.deferred.extend(other.map(|event| (worker, event))),
                }
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until every worker has handled the commands so far.
    pub(crate) fn wait_for_all(&mut self) {
        let mut pending = self.barrier();
        self.wait_for(COMMAND_TIMEOUT, |_, event| match event {
            Event::Passed(ticket) if pending.answer(ticket) => match pending.is_empty() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(None),
            },
            other => ControlFlow::Continue(Some(other)),
        });
    }

    /// Asks every worker to answer once it has handled all commands sent before.
    pub(crate) fn barrier(&mut self) -> Pending {
        self.ask_all(|_, ticket| Command::Barrier(ticket))
    }

    /// Asks every worker to sweep the group's memory, of `memories`, that is on its NUMA node. `what` gets the index of
    /// that memory.
    pub(crate) fn sweep(&mut self, memories: &[Arc<Memory>], what: impl Fn(usize) -> SweepScope) -> Pending {
        self.ask_all(|region, ticket| {
            let table = Arc::clone(&memories[region].in_flight);
            Command::Sweep(SweepRequest { ticket, table, what: what(region) })
        })
    }

    /// Sends every worker a command with an answer. `command` gets the region's index and a ticket.
    fn ask_all(&mut self, command: impl Fn(usize, u64) -> Command) -> Pending {
        let mut pending = Pending::default();
        for n in 0..self.handles.len() {
            let ticket = self.new_ticket();
            self.handles[n].send(command(usize::from(self.regions[n]), ticket));
            pending.0.push(ticket);
        }
        pending
    }

    /// A sum over all workers' counters, also of those that have ended.
    pub(crate) fn sum<S: Sum>(&self, of: impl Fn(&WorkerCounters) -> S) -> S {
        self.counters
            .iter()
            .map(|counters| of(counters))
            .chain(self.by_kernel.iter().map(|one| of(one)))
            .sum()
    }

    /// Counts what the kernel does in their place.
    pub(crate) fn by_kernel(&mut self) -> &WorkerCounters {
        self.by_kernel.get_or_insert_with(|| Box::new(WorkerCounters::new()))
    }

    /// Sums over the links of one NF thread, one link per worker.
    pub(crate) fn link_sums(&self, links: &[LinkId]) -> LinkSums {
        Self::sums_of(&self.counters.iter().zip(links).map(|(counters, link)| &counters.links[link.index()]))
    }

    /// The same for the link with one worker.
    pub(crate) fn link_sums_on(&self, worker: WorkerId, link: LinkId) -> LinkSums {
        Self::sums_of(&self.counters(worker).into_iter().map(|counters| &counters.links[link.index()]))
    }

    fn sums_of<'a>(links: &(impl Iterator<Item = &'a LinkCounters> + Clone)) -> LinkSums {
        let each = || links.clone();
        let sum = |of: &dyn Fn(&LinkCounters) -> u64| -> u64 { each().map(of).sum() };
        LinkSums {
            counts: each().map(LinkCounters::counts).sum(),
            delivered: sum(&|link| link.delivered.get()),
            returned: sum(&|link| link.returned.get()),
            drops: DropReason::ALL.map(|reason| sum(&|link| link.drops.get(reason))),
            violations: Violation::ALL
                .map(|violation| sum(&|link| link.violations[violation as usize].get())),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Stops all workers at once: the kernel takes 30 ms to close each worker's signaller.
        self.send_all(|_| Command::Stop);
        for worker in self.handles.iter_mut().chain(&mut self.ending) {
            worker.join();
        }
        // Queues and links are dropped before the memory that they point into.
        while self.next_event().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PortId;
    use crate::memory::eal_for_tests;

    #[test]
    fn an_event_that_comes_while_the_manager_waits_for_another_comes_later() {
        let config = EngineConfig::default();
        let mut workers = Workers::start(eal_for_tests(), &Cores::of(&config).unwrap(), &config).unwrap();
        workers.send_all(|_| Command::RemovePort(PortId(3)));
        workers.wait_for_all();
        assert!(matches!(workers.next_event(), Some((WorkerId(0), Event::PortRetired(PortId(3), None)))));
        assert!(workers.next_event().is_none(), "the answer to the barrier was taken");
        let nothing = workers.wait_for(Duration::ZERO, |_, _| ControlFlow::Break(()));
        assert_eq!(nothing, None);
    }

    #[test]
    fn a_ticket_is_answered_once() {
        let mut pending = Pending(vec![3, 4]);
        assert!(!pending.answer(5));
        assert!(pending.answer(3));
        assert!(!pending.answer(3));
        assert!(!pending.is_empty());
        assert!(pending.answer(4));
        assert!(pending.is_empty());
    }
}
