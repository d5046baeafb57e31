// SPDX-License-Identifier: Apache-2.0
//! Commands from the manager.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::affinity::pin_to;
use super::connection_page::ConnectionPage;
use super::events::{Event, Retired};
use super::flow_page::{FlowPage, MonitorPage};
use super::visit::Visit;
use crate::capture::WorkerCapture;
use crate::capture::points::CapturePoints;
use crate::ids::{CaptureId, GroupId, LinkId, MemoryId, PortId, TraceId, WorkerId};
use crate::inflight::ThreadInFlight;
use crate::inflight::sweep::SweepRequest;
use crate::interface::{PortQueue, Shaper};
use crate::kernel_flows::Sampler;
use crate::link::Link;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::worker::Worker;
use crate::worker::graph::arrivals::finish_handed_over;
use crate::worker::graph::collect::{drain, note_faults};
use crate::worker::graph::handoff::send_held;
use crate::worker::graph::ring::start_queue::{drop_waiting, release};
use crate::worker::graph::tx::{close, send_control_frames, send_probe, send_queries, shape_one};
use crate::worker::packet::probe::Probe;
use crate::worker::record::{LiveTrace, Recorder, TraceRecord};
use crate::worker::state::connections::{TableMemory, WorkerConnections};
use crate::worker::state::handoff::{Held, Peer};
use crate::worker::state::moved::connections::MovedConnections;
use crate::worker::state::moved::flows::MovedFlows;

/// A command from the manager to a worker.
pub(crate) enum Command {
    /// Use this snapshot.
    Snapshot(Arc<Snapshot>),
    /// Use this memory; it is this worker's own for the group `home`.
    AddMemory { memory: Arc<Memory>, home: Option<GroupId> },
    /// Stop using this memory: the worker has none of its packets any more.
    RemoveMemory(MemoryId),
    /// Send by this queue of a port.
    AddPort(Box<PortQueue>),
    /// Also receive by this port.
    StartPort(PortId),
    /// Receive nothing by this port, until it starts again.
    StopPort(PortId),
    /// Send what the queue has gathered, drop what the device does not take, and return the queue.
    RemovePort(PortId),
    /// Hold packets for a port, which is about to move to another worker.
    Hold(Box<Held>),
    /// Finish what other workers have handed over so far.
    FinishHandedOver,
    /// Send what was held.
    Release,
    /// Give a queue of this port away, with what belongs to it; hold packets for the port if it was the only one.
    TakeQueue(PortId, Box<Held>),
    /// Send by this queue of a port, besides those that the worker may have.
    GiveQueue(Box<PortQueue>),
    /// Receive into another memory by this port, whose device stays open.
    UseMemory(PortId, Arc<Memory>),
    /// Replace the port's shaper; `None`: no shaper.
    SetShaper(PortId, Option<Box<Shaper>>),
    /// This worker sends for that port.
    SetOwner(PortId, Option<WorkerId>),
    /// Exchange packets with a new worker.
    AddPeer(Box<Peer>),
    /// A worker has ended; no packets for it or from it are left.
    RemovePeer(WorkerId),
    /// Run on this core.
    Pin(u32),
    /// Track connections in this table; `None`: no longer.
    SetConnections(Option<Box<WorkerConnections>>),
    /// Use further memory for connections.
    ExtendConnections(TableMemory),
    /// Give away flows with verdicts that other workers own now.
    TakeFlows(Box<MovedFlows>),
    /// Give away connections that other workers own now.
    TakeConnections(Box<MovedConnections>),
    /// Keep these connections.
    GiveConnections(Box<MovedConnections>),
    /// Keep the verdicts on these flows.
    GiveFlows(Box<MovedFlows>),
    /// Exchange packets with this NF thread.
    AddLink(Box<Link>, Box<ThreadInFlight>),
    /// Take what the NF thread has returned, and return the link.
    RemoveLink(LinkId),
    /// Reclaim the buffers of NFs that are gone.
    Sweep(SweepRequest),
    /// Start this capture.
    AddCapture(Box<WorkerCapture>),
    /// Set the points of a capture.
    SetPoints(CaptureId, Arc<CapturePoints>),
    /// End this capture.
    RemoveCapture(CaptureId),
    /// Follow packets for this trace.
    AddTrace(Box<LiveTrace>),
    /// Fill this record again.
    ReuseRecord(TraceRecord),
    /// End this trace.
    RemoveTrace(TraceId),
    /// Write a part of the flows to the page.
    ReadFlows(Box<FlowPage>),
    /// Write a part of the monitor's running flows to the page.
    ReadMonitor(Box<MonitorPage>),
    /// Write a part of the connections to the page, or end them.
    ReadConnections(Box<ConnectionPage>),
    /// Answer once every command before this one is done.
    Barrier(u64),
    /// Send a probe through a program.
    Probe(Probe),
    /// Send the frames that wait for a member of a bond.
    SendControlFrames(PortId),
    /// Send the queries of snooping that wait, from the memory of this port.
    SendQueries { by: PortId },
    /// Say what is kept of these flows, and count what the kernel has forwarded of them.
    Visit(Box<Visit>),
    /// Sample what ports with a fast path receive.
    Sample(Box<Sampler>),
    /// End.
    Stop,
}

impl Worker {
    /// Handles pending commands. When they are answered, the in-flight table has all packets that were handed out
    /// before.
    #[cold]
    pub(crate) fn handle_commands(&mut self) {
        self.dp.in_flight.spill();
        while let Ok(command) = self.inbox.pop() {
            self.handle(command);
        }
        if std::mem::take(&mut self.has_new_shares) {
            // Once for all ports that start.
            self.shares.follow(self.inputs.ports(), &self.snapshot.policy);
        }
        self.backoff.reset();
    }

    fn handle(&mut self, command: Command) {
        let dp = &mut self.dp;
        match command {
            Command::Snapshot(new) => {
                let old = dp.follow(&mut self.snapshot, new);
                if dp.start_queue.len() > 0 {
                    release(dp, &self.snapshot);
                }
                self.has_new_shares = true;
                self.send(Event::Retired(Retired::Snapshot(old)));
            }
            Command::AddMemory { memory, home } => {
                dp.memories.add(memory, home);
                if let Some(group) = home {
                    dp.nfs.add_group(group);
                }
            }
            Command::RemoveMemory(id) => {
                drop_waiting(dp, Some(id));
                if let Some(old) = dp.memories.remove(id) {
                    self.send(Event::Retired(Retired::Memory(old)));
                }
            }
            Command::AddPort(queue) => dp.ports.add(queue),
            Command::StartPort(port) => {
                self.inputs.add(port);
                if let Some(queue) = dp.ports.get(port) {
                    self.backoff.ports.add(queue, &mut self.inputs);
                }
                self.has_new_shares = true;
            }
            Command::StopPort(port) => self.stop_port(port),
            Command::RemovePort(port) => {
                self.stop_port(port);
                let dp = &mut self.dp;
                dp.flush_ports();
                let old = dp.ports.remove(port).map(|queue| close(dp, &self.snapshot, queue));
                self.send(Event::PortRetired(port, old));
            }
            Command::Hold(held) => {
                if let Some(old) = dp.ports.handoff.hold(held) {
                    self.send(Event::Retired(Retired::Held(old)));
                }
            }
            Command::FinishHandedOver => {
                let is_done = finish_handed_over(dp, &self.snapshot, &mut self.burst);
                dp.counters.has_arrivals.store(!is_done, Ordering::Relaxed);
            }
            Command::Release => {
                if let Some(held) = send_held(dp) {
                    self.send(Event::Retired(Retired::Held(held)));
                }
            }
            Command::TakeQueue(port, held) => self.take_queue(port, held),
            Command::GiveQueue(queue) => self.give_queue(queue),
            Command::UseMemory(port, memory) => {
                dp.flush_ports();
                dp.use_memory(port, &memory);
                self.send(Event::Retired(Retired::Memory(memory)));
            }
            Command::SetShaper(port, shaper) => {
                if let Some(mut old) = dp.ports.get_mut(port).and_then(|queue| queue.set_shaper(shaper)) {
                    while let Some(mbuf) = old.pop_any() {
                        shape_one(dp, port, mbuf);
                    }
                    self.send(Event::Retired(Retired::Shaper(old)));
                }
            }
            Command::SetOwner(port, owner) => dp.ports.set_owner(port, owner),
            Command::AddPeer(peer) => dp.ports.handoff.add(*peer),
            Command::RemovePeer(worker) => {
                if let Some(peer) = dp.ports.handoff.remove(worker) {
                    self.send(Event::Retired(Retired::Peer(peer)));
                }
            }
            Command::Pin(core) => pin_to(core),
            Command::SetConnections(new) => {
                if let Some(old) = dp.replace_connections(new, &self.snapshot) {
                    self.send(Event::Retired(Retired::Connections(old)));
                }
            }
            Command::ExtendConnections(memory) => dp.extend_connections(memory),
            Command::TakeFlows(mut flows) => {
                flows.take(dp.id, &mut dp.flows.verdicts, dp.clock.tick);
                self.send(Event::FlowsTaken(flows));
            }
            Command::GiveFlows(flows) => {
                dp.flows.verdicts.add_moved(&flows, dp.clock.tick);
                self.send(Event::Retired(Retired::Flows(flows)));
            }
            Command::TakeConnections(mut moved) => {
                moved.take(dp.id, dp.connections.as_deref_mut(), dp.clock.tick);
                self.send(Event::ConnectionsTaken(moved));
            }
            Command::GiveConnections(moved) => {
                moved.give(dp.connections.as_deref_mut());
                self.send(Event::Retired(Retired::MovedConnections(moved)));
            }
            Command::AddLink(link, in_flight) => dp.add_link(link, in_flight),
            Command::RemoveLink(id) => {
                drain(dp, &self.snapshot, id);
                note_faults(dp, id);
                dp.flows.verdicts.withdraw(id);
                if let Some((link, in_flight)) = dp.remove_link(id) {
                    self.send(Event::Retired(Retired::Link(link, in_flight)));
                }
            }
            Command::Sweep(request) => self.sweeps.add(request),
            Command::AddCapture(capture) => {
                dp.captures.add(capture);
                dp.is_capturing = true;
            }
            Command::SetPoints(id, points) => {
                let old = dp.captures.set_points(id, points);
                self.send(Event::Retired(Retired::Points(old)));
            }
            Command::RemoveCapture(id) => {
                let old = dp.captures.remove(id);
                dp.is_capturing = !dp.captures.is_empty();
                if let Some(capture) = old {
                    self.send(Event::Retired(Retired::Capture(capture)));
                }
            }
            Command::AddTrace(trace) => {
                if let Some(trace) = dp.recorder.get_or_insert_with(Recorder::live).add(trace) {
                    self.send(Event::Retired(Retired::Trace(trace)));
                }
            }
            Command::ReuseRecord(record) => {
                let unused = match &mut dp.recorder {
                    Some(recorder) => recorder.reuse(record),
                    None => Some(record),
                };
                if let Some(record) = unused {
                    self.send(Event::Retired(Retired::Record(record)));
                }
            }
            Command::RemoveTrace(id) => {
                let old = dp.recorder.as_mut().and_then(|recorder| recorder.remove(id));
                dp.recorder.take_if(Recorder::is_unused);
                if let Some(trace) = old {
                    self.send(Event::Retired(Retired::Trace(trace)));
                }
            }
            Command::ReadFlows(mut page) => {
                let (policy, now) = (&self.snapshot.policy, dp.clock.tick);
                if page.is_first() {
                    page.counts.were_watched = dp.flows.are_watched(now) || !policy.has_shortcuts();
                    dp.flows.watch(now);
                }
                page.fill(&dp.flows, policy.generation, now);
                self.send(Event::Flows(page));
            }
            Command::ReadMonitor(mut page) => {
                page.fill(dp.monitor.as_deref());
                self.send(Event::Monitor(page));
            }
            Command::ReadConnections(mut page) => {
                page.fill(&mut dp.connections, dp.clock.tick);
                self.send(Event::Connections(page));
            }
            Command::Visit(mut visit) => {
                visit.answer(dp, &self.snapshot);
                self.send(Event::Visited(visit));
            }
            Command::Barrier(ticket) => self.send(Event::Passed(ticket)),
            Command::SendControlFrames(port) => send_control_frames(dp, &self.snapshot, port),
            Command::SendQueries { by } => send_queries(dp, &self.snapshot, by),
            Command::Probe(probe) => send_probe(dp, &self.snapshot, probe),
            Command::Sample(sampler) => dp.sampler = Some(sampler),
            Command::Stop => self.stopping = true,
        }
    }

    /// Receives nothing more by a port.
    fn stop_port(&mut self, port: PortId) {
        self.inputs.remove(port);
        if let Some(queue) = self.dp.ports.get(port) {
            self.backoff.ports.remove(queue);
        }
        self.has_new_shares = true;
    }

    /// Gives a queue of a port away: the last of several; or the only one, with the port's shaper.
    fn take_queue(&mut self, port: PortId, held: Box<Held>) {
        self.dp.flush_ports();
        self.unwatch(port);
        let part = self.dp.ports.get_mut(port).and_then(PortQueue::split_off);
        if let Some(part) = part {
            self.watch(port);
            return self.send(Event::QueueTaken(Some(Box::new(part))));
        }
        self.inputs.remove(port);
        self.has_new_shares = true;
        let queue = self.dp.ports.remove(port);
        if let Some(old) = self.dp.ports.handoff.hold(held) {
            self.send(Event::Retired(Retired::Held(old)));
        }
        self.send(Event::QueueTaken(queue));
    }

    /// Takes a queue over; the manager starts the port if it is new here.
    fn give_queue(&mut self, queue: Box<PortQueue>) {
        let port = queue.port;
        // Packets may wait in its device or shaper.
        self.dp.ports.mark_unsent(port);
        if self.dp.ports.get(port).is_none() {
            return self.dp.ports.add(queue);
        }
        self.unwatch(port);
        if let Some(own) = self.dp.ports.get_mut(port) {
            own.join(*queue);
        }
        self.watch(port);
    }

    /// Packets of the port end the next sleeps.
    fn watch(&mut self, port: PortId) {
        if let Some(queue) = self.dp.ports.get(port) {
            self.backoff.ports.add(queue, &mut self.inputs);
        }
    }

    /// Undoes [`Worker::watch`], before the port's devices change.
    fn unwatch(&mut self, port: PortId) {
        if let Some(queue) = self.dp.ports.get(port) {
            self.backoff.ports.remove(queue);
            self.inputs.watch(port, false);
        }
    }

    /// Sends an event to the manager; waits while the queue is full, which happens only if the manager is stuck.
    pub(crate) fn send(&mut self, event: Event) {
        let mut event = event;
        while let Err(rtrb::PushError::Full(back)) = self.outbox.push(event) {
            event = back;
            std::thread::yield_now();
        }
    }
}
