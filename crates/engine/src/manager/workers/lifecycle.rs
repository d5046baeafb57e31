// SPDX-License-Identifier: Apache-2.0
//! Workers start, move to other cores and end.

use std::sync::Arc;

use netvm_notify::{EpollWaiter, ReadySet, Signaller, new_eventfd};
use rtrb::RingBuffer;

use super::Workers;
use crate::counters::{MonitorCounts, WorkerCounters};
use crate::ids::WorkerId;
use crate::manager::cores::StartError;
use crate::worker::handoff::{Handoff, Peer, Sleeper};
use crate::worker::{Command, FlowMonitor, Flows, Latency, Setup, WorkerHandle};

/// Room for latency samples; the manager takes them every few milliseconds.
const LATENCY_SAMPLES: usize = 4096;

impl Workers {
    /// Starts a worker on a core. It knows the other workers, and they know it, but it has nothing to do yet. Its
    /// memory of trust groups is that of `region`.
    pub(crate) fn add(&mut self, core: u32, region: u8) -> Result<WorkerId, StartError> {
        let id = WorkerId(self.handles.len() as u8);
        let wake = Arc::new(new_eventfd().map_err(std::io::Error::from)?);
        let sleeper = Sleeper::new(Arc::clone(&wake));
        let mut handoff = Handoff::new(Arc::clone(&sleeper));
        let mut of_others = Vec::new();
        for (other, asleep) in self.ids().zip(&self.sleepers) {
            let [of_other, of_new] = Peer::pair([(other, asleep), (id, &sleeper)]);
            handoff.add(of_new);
            of_others.push((other, of_other));
        }
        let (samples, latency) = RingBuffer::new(LATENCY_SAMPLES);
        let known = self.counters.get(id.index()).map(Arc::clone);
        let counters = known.clone().unwrap_or_else(|| Arc::new(WorkerCounters::new()));
        let before = MonitorCounts { flows: 0, ..counters.monitor.counts() };
        let monitor = self.config.flow_monitor.as_ref().map(|config| FlowMonitor::new(config, before));
        let (monitor, records) = monitor.unzip();
        let setup = Setup {
            id,
            core,
            idle: self.config.idle,
            handoff,
            wake,
            waiter: EpollWaiter::new().map_err(std::io::Error::from)?,
            ready: ReadySet::new().map_err(std::io::Error::from)?,
            signaller: Signaller::new(),
            flows: Flows::new(&self.config.flow_cache)?,
            limits: Arc::clone(&self.limits),
            latency: Latency::new(id, samples, Arc::clone(&self.awaited)),
            monitor: monitor.map(Box::new),
        };
        let handle = WorkerHandle::start(self.eal, setup, Arc::clone(&counters), latency)?;
        for (other, peer) in of_others {
            self.send(other, Command::AddPeer(Box::new(peer)));
        }
        self.handles.push(handle);
        self.sleepers.push(sleeper);
        self.regions.push(region);
        self.records.extend(records.flatten());
        if known.is_none() {
            self.counters.push(counters);
        }
        Ok(id)
    }

    /// Ends the worker with the highest number, which has nothing left to do. It takes no commands from now on.
    pub(crate) fn end_last(&mut self) {
        let Some(mut handle) = self.handles.pop() else { return };
        self.sleepers.pop();
        self.regions.pop();
        let gone = handle.id;
        self.send_all(|_| Command::RemovePeer(gone));
        handle.send(Command::Stop);
        self.ending.push(handle);
    }

    /// Whether every worker that was told to end has ended, and the manager has handled all its events.
    pub(crate) fn have_ended(&mut self) -> bool {
        let deferred = &self.deferred;
        self.ending.retain_mut(|handle| {
            let is_deferred = deferred.iter().any(|(worker, _)| *worker == handle.id);
            let has_ended = handle.has_ended() && !handle.has_events() && !is_deferred;
            if has_ended {
                handle.join();
            }
            !has_ended
        });
        self.ending.is_empty()
    }

    /// Moves workers to these cores. Returns those that had other ones, each with the core before and its core.
    pub(crate) fn pin(&mut self, cores: &[u32]) -> Vec<(WorkerId, u32, u32)> {
        let mut moved = Vec::new();
        for (handle, core) in self.handles.iter_mut().zip(cores) {
            if handle.core != *core {
                moved.push((handle.id, handle.core, *core));
                handle.pin(*core);
            }
        }
        moved
    }
}
