//! What the manager tells a worker, and what the worker tells it. Everything that has to be freed goes back to the
//! manager, so that a worker frees no memory but packets.

use std::sync::Arc;

use netvm_notify::RateLimit;

use crate::ids::{GroupId, LinkId, MemoryId, PortId, WorkerId};
use crate::inflight::ThreadInFlight;
use crate::inflight::sweep::{SweepRequest, Swept};
use crate::link::Link;
use crate::memory::Memory;
use crate::port::PortQueue;
use crate::snapshot::{Snapshot, put};
use crate::worker::Worker;
use crate::worker::control::flow_page::FlowPage;

/// An order.
pub(crate) enum Command {
    /// Work by this snapshot.
    Snapshot(Arc<Snapshot>),
    /// This memory exists, and is this worker's for its group if `home`.
    AddMemory { memory: Arc<Memory>, home: Option<GroupId> },
    /// Forget it: nothing of it is on the path any more.
    RemoveMemory(MemoryId),
    /// Own this queue of a port, to send by it.
    AddPort(Box<PortQueue>),
    /// Take packets from it, too.
    StartPort(PortId),
    /// Give the queue back, after sending what is gathered.
    RemovePort(PortId),
    /// This worker sends for that port.
    SetOwner(PortId, Option<WorkerId>),
    /// Exchange packets with this NF thread.
    AddLink(Box<Link>, Box<ThreadInFlight>),
    /// Take what it has returned, and give the link back.
    RemoveLink(LinkId),
    /// Take back the buffers of NFs that are gone.
    Sweep(SweepRequest),
    /// Write a part of the flows to the page.
    ReadFlows(Box<FlowPage>),
    /// Say when everything before this has been done.
    Barrier(u64),
    /// End.
    Stop,
}

/// What a worker no longer uses.
#[expect(dead_code, reason = "carried to be freed by the manager")]
pub(crate) enum Retired {
    Snapshot(Arc<Snapshot>),
    Memory(Arc<Memory>),
    Link(Box<Link>, Option<Box<ThreadInFlight>>),
}

/// What happened.
pub(crate) enum Event {
    /// A queue that this worker no longer uses, to be closed.
    PortRetired(PortId, Option<Box<PortQueue>>),
    /// Something else that this worker no longer uses, to be freed.
    Retired(#[expect(dead_code, reason = "carried to be freed by the manager")] Retired),
    /// A sweep is done; the request is to be freed by the manager.
    Swept(Swept, #[expect(dead_code, reason = "carried to be freed by the manager")] SweepRequest),
    /// A page of flows was written.
    Flows(Box<FlowPage>),
    /// A barrier was passed.
    Passed(u64),
}

impl Worker {
    /// Carries out what is waiting. After the answer, the in-flight table has all packets that were handed out before.
    #[cold]
    pub(crate) fn obey(&mut self) {
        self.path.in_flight.spill();
        while let Ok(command) = self.inbox.pop() {
            self.carry_out(command);
        }
        self.rest.busy();
    }

    fn carry_out(&mut self, command: Command) {
        let path = &mut self.path;
        match command {
            Command::Snapshot(new) => {
                let old = core::mem::replace(&mut self.snapshot, new);
                self.tell(Event::Retired(Retired::Snapshot(old)));
            }
            Command::AddMemory { memory, home } => {
                let id = memory.id;
                put(&mut path.memories, id.index(), memory);
                if let Some(group) = home {
                    put(&mut path.home, group.index(), id);
                    put(&mut path.rate_limits, group.index(), RateLimit::new());
                }
            }
            Command::RemoveMemory(id) => {
                for home in &mut path.home {
                    home.take_if(|home| *home == id);
                }
                if let Some(old) = path.memories.get_mut(id.index()).and_then(Option::take) {
                    self.tell(Event::Retired(Retired::Memory(old)));
                }
            }
            Command::AddPort(queue) => {
                let port = queue.port;
                path.leaves_work |= queue.leaves_work();
                path.ports[port.index()] = Some(queue);
            }
            Command::StartPort(port) => self.inputs.push(port),
            Command::RemovePort(port) => {
                self.inputs.retain(|input| *input != port);
                path.flush();
                let old = path.ports[port.index()].take();
                self.tell(Event::PortRetired(port, old));
            }
            Command::SetOwner(port, owner) => {
                let owners = &mut path.handoff.owners;
                if owners.len() <= port.index() {
                    owners.resize(port.index() + 1, None);
                }
                owners[port.index()] = owner;
            }
            Command::AddLink(link, in_flight) => path.add_link(link, in_flight),
            Command::RemoveLink(id) => {
                path.drain(&self.snapshot, id);
                path.note_faults(id);
                path.flows.words.withdraw(id);
                if let Some((link, in_flight)) = path.remove_link(id) {
                    self.tell(Event::Retired(Retired::Link(link, in_flight)));
                }
            }
            Command::Sweep(request) => self.sweeps.add(request),
            Command::ReadFlows(mut page) => {
                page.fill(path, self.snapshot.policy.generation);
                self.tell(Event::Flows(page));
            }
            Command::Barrier(ticket) => self.tell(Event::Passed(ticket)),
            Command::Stop => self.stopping = true,
        }
    }

    /// Tells the manager; waits while it has a thousand events to read already, which only happens when it is stuck.
    pub(crate) fn tell(&mut self, event: Event) {
        let mut event = event;
        while let Err(rtrb::PushError::Full(back)) = self.outbox.push(event) {
            event = back;
            std::thread::yield_now();
        }
    }
}
