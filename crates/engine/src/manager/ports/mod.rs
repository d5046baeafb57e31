// SPDX-License-Identifier: Apache-2.0
//! The ports: open ones with the control side of their kind, closed ones with the reason, and the workers of their
//! queues.

mod change;
mod moves;
mod open;
mod view;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use netvm_guest_socket::Rights;
use netvm_model::{Host, PortConfig, PortKind, SocketRights};
use netvm_vnet::LinkEvent;

use super::memory::Memories;
use super::nfs::Nfs;
use super::notice::{Notice, Notices};
use super::placement::Placement;
use super::placement::balance::Balance;
use super::placement::load::Loads;
use super::workers::Workers;
use crate::counters::QueueCounters;
use crate::ids::{GroupId, MemoryId, PortId, WorkerId};
use crate::interface::{Control, OpenError, OpenProblem, PortMode};
use crate::kept::{Check, InterfaceStore};
use crate::kernel_flows::{FastEnd, KernelFlows, Shared};
use crate::memory::Memory;
use crate::policy::Policy;
use crate::worker::Command;
pub(crate) use change::{Changed, Tolerance};
pub use view::{BondMemberView, BondView, PortView, PortWorker, QueueView};

/// The ports.
pub(crate) struct Ports {
    open: BTreeMap<PortId, PortState>,
    /// Configured ports that are closed, and why.
    closed: BTreeMap<PortId, String>,
    placement: Placement,
    loads: Loads,
    balance: Balance,
    /// The kernel's flow table, once a port has a fast path.
    kernel_flows: KernelFlows,
    /// Keeps interfaces for the next netvmd.
    store: InterfaceStore,
}

/// A configuration and its compiled rules.
#[derive(Clone, Copy)]
pub(crate) struct Configured<'a> {
    pub(crate) host: &'a Host,
    pub(crate) policy: &'a Policy,
}

impl Configured<'_> {
    /// The group into whose memory packets of a port land.
    fn landing(&self, port: &PortConfig) -> Option<GroupId> {
        self.host.landing_by(&self.policy.leading, port)
    }
}

/// What ports need of the engine's other parts.
pub(crate) struct Context<'a> {
    pub(crate) in_force: Configured<'a>,
    /// Has the memories of trust groups.
    pub(crate) nfs: &'a Nfs,
    /// Has the engine's own memory, if ports receive into it.
    pub(crate) memory: &'a Memories,
    pub(crate) workers: &'a mut Workers,
    pub(crate) notices: &'a mut Notices,
}

impl Ports {
    /// No ports yet. `nodes`: the NUMA node of each worker.
    pub(crate) fn new(nodes: Vec<u32>) -> Self {
        Self {
            open: BTreeMap::new(),
            closed: BTreeMap::new(),
            placement: Placement::new(nodes),
            loads: Loads::default(),
            balance: Balance::default(),
            kernel_flows: KernelFlows::default(),
            store: InterfaceStore::default(),
        }
    }

    /// Keeps interfaces of ports that open from now on.
    pub(crate) fn set_store(&mut self, store: InterfaceStore) {
        self.store = store;
    }

    /// Ends what an earlier netvmd has left and no port has taken over. Returns how many interfaces ports have.
    pub(crate) fn close_left(&self) -> usize {
        let adopted = self.store.close_left();
        if let Some(shared) = self.kernel_flows.get() {
            shared.remove_others(self.fast_ends().into_iter().map(|(_, end)| end));
        }
        adopted
    }

    /// Measures loads, moves a queue if a worker is overloaded, and reports faults.
    pub(crate) fn service(&mut self, context: &mut Context<'_>) {
        let counters = context.workers.iter().map(|worker| &*worker.counters);
        if self.loads.measure(&self.placement, counters, Instant::now()) {
            self.relieve_workers(context);
        }
        let Check { keep_again, report } = self.store.check(Instant::now());
        if keep_again {
            self.open.values_mut().for_each(|port| port.control.keep_again(&self.store));
            self.kernel_flows.get().into_iter().for_each(|shared| shared.keep_again(&self.store));
        }
        if let Some(error) = report {
            context.notices.push(Notice::InterfacesNotKept { error });
        }
        for (id, state) in &mut self.open {
            if let Some(fault) = state.control.new_fault() {
                context.notices.push(Notice::PortFault { port: *id, fault });
            }
        }
    }

    /// Makes a memory usable for packets that ports send. Returns the ports for which that failed.
    pub(crate) fn register_memory(&self, memory: &Memory) -> Vec<(PortId, OpenError)> {
        let failed =
            self.open.values().filter_map(|port| Some((port.id(), port.register_memory(memory).err()?)));
        failed.collect()
    }

    /// The memories into which ports receive.
    pub(crate) fn memories(&self) -> Vec<MemoryId> {
        self.open.values().flat_map(|port| &port.memories).copied().collect()
    }

    /// The ports that receive into one of these memories.
    pub(crate) fn over(&self, memories: &[Arc<Memory>]) -> Vec<PortId> {
        let is_over = |port: &&PortState| memories.iter().any(|memory| port.memories.contains(&memory.id));
        self.open.values().filter(is_over).map(PortState::id).collect()
    }

    /// A worker that sends by a port; `None` if the port is closed.
    pub(crate) fn sender_of(&self, port: PortId) -> Option<WorkerId> {
        self.open.get(&port)?.workers.first().copied()
    }

    /// What ports with a fast path share, if there has been one.
    pub(crate) fn kernel_flows(&self) -> Option<&Arc<Shared>> {
        self.kernel_flows.get()
    }

    /// The containers' ends of the open ports that have a fast path.
    pub(crate) fn fast_ends(&self) -> Vec<(PortId, FastEnd)> {
        self.open.values().filter_map(|port| Some((port.id(), port.control.fast_end()?))).collect()
    }

    /// Why a port is closed.
    pub(crate) fn why_closed(&self, port: PortId) -> Option<&str> {
        self.closed.get(&port).map(String::as_str)
    }

    /// Whether a port is open, and its link up as far as its device knows.
    pub(crate) fn link_of(&self, port: PortId) -> bool {
        self.open.get(&port).is_some_and(|port| port.control.link() != Some(false))
    }

    /// Follows the MTUs, the offloads and the ends of interfaces, as [`Ports::views`] shows them. Returns the MTUs.
    pub(crate) fn follow_interfaces(&mut self, views: &[PortView]) -> BTreeMap<PortId, u32> {
        let mut mtus = BTreeMap::new();
        for view in views {
            let Some(interface) = view.interface.as_ref() else { continue };
            if let Some(port) = self.open.get_mut(&view.id)
                && let Some(driver) = port.control.follow_interface(interface)
            {
                port.mode.driver = driver;
            }
            mtus.extend(interface.mtu.map(|mtu| (view.id, mtu)));
        }
        mtus
    }

    /// Gives interfaces that came up their addresses and routes again.
    pub(crate) fn restore_addresses(&mut self, links: &[LinkEvent]) {
        self.open.values_mut().for_each(|port| port.control.restore_addresses(links));
    }

    /// Tells each worker who sends its packets to a port: the shaper's worker; without a shaper, each worker with a
    /// queue.
    fn set_owners(&self, port: PortId, workers: &mut Workers) {
        let Some(state) = self.open.get(&port) else { return };
        let count = if state.config.policy.qos.is_some() { 1 } else { state.workers.len() };
        let senders: Vec<WorkerId> = state.workers.iter().copied().take(count).collect();
        let regions = workers.regions().to_vec();
        workers.send_all(|worker| {
            let is_local = |sender: &&WorkerId| regions[sender.index()] == regions[worker.index()];
            let local: Vec<&WorkerId> = senders.iter().filter(is_local).collect();
            let near = if local.is_empty() { senders.iter().collect() } else { local };
            let next = near.get(worker.index() % near.len().max(1)).copied().copied();
            Command::SetOwner(port, next.filter(|_| !senders.contains(&worker)))
        });
    }
}

/// An open port.
struct PortState {
    config: PortConfig,
    mode: PortMode,
    memories: Vec<MemoryId>,
    /// Workers that have its queues.
    workers: Vec<WorkerId>,
    /// Counters of its shaper's queues.
    queues: Arc<[QueueCounters]>,
    control: Box<dyn Control>,
}

impl PortState {
    /// Follows what changes while its device stays open: everything but the shaper, which its worker has.
    fn follow(&mut self, config: &PortConfig, memories: &[Arc<Memory>]) {
        let qos = self.config.policy.qos.take();
        self.config = config.clone();
        self.config.policy.qos = qos;
        self.memories = memories.iter().map(|memory| memory.id).collect();
    }

    const fn id(&self) -> PortId {
        self.config.id
    }

    /// Gives its socket the owner and mode of a configuration, which may have changed.
    fn set_socket_rights(&mut self, socket: &SocketRights) -> Result<(), OpenError> {
        if *socket == self.config.socket {
            return Ok(());
        }
        give_socket(&self.config.kind, socket).map_err(|problem| self.error(problem))?;
        self.config.socket = socket.clone();
        Ok(())
    }

    /// Makes a memory usable for packets that the port sends.
    fn register_memory(&self, memory: &Memory) -> Result<(), OpenError> {
        self.control.register_memory(memory).map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: OpenProblem) -> OpenError {
        OpenError { name: self.config.name.clone(), problem }
    }
}

/// Gives the socket of a port its owner and mode.
fn give_socket(kind: &PortKind, socket: &SocketRights) -> Result<(), OpenProblem> {
    let Some(path) = kind.own_socket() else { return Ok(()) };
    let own = Rights::own();
    let rights = Rights {
        uid: socket.ids.uid.unwrap_or(own.uid),
        gid: socket.ids.gid.unwrap_or(own.gid),
        mode: socket.mode.unwrap_or(own.mode),
    };
    rights.apply(path).map_err(|error| OpenProblem::SocketRights { path: path.to_owned(), error })
}
