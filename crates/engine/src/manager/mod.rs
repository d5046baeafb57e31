//! The manager: what should be, who is there, and the orders to the workers that follow from both.
//!
//! An [`Engine`] belongs to one thread. Its calls take effect at once where that needs no one else; what has to wait
//! (buffers of a dead NF, a port that is being closed) moves on in [`Engine::service`], to be called every few milliseconds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_config::model::{Balance, EngineConfig, Host, NfConfig};
use netvm_notify::{EpollWaiter, Signaller, new_eventfd};
use netvm_region::{ControlError, LAYOUT_VERSION, MAX_COUNTERS, MAX_THREADS, Pages, RegionError, Sticky};
use netvm_switch::TICKS_PER_SECOND;

mod apply;
mod audit;
mod flows;
mod group;
mod instance;
mod paths;
mod policies;
mod ports;
mod reaper;
mod routers;
mod shortened;
mod teardown;
mod totals;
mod view;

use crate::ids::{GroupId, InstanceId, MemoryId, PortId, RoleId, WorkerId};
use crate::link::MAX_LINKS;
use crate::memory::Memory;
use crate::policy::{Compiler, HitCounts, Policy};
use crate::topology::Topology;
use crate::worker::handoff::Handoff;
use crate::worker::{Command, Event, Flows, Setup, WorkerHandle};
pub use apply::ApplyError;
use audit::Audit;
use flows::FlowReader;
pub use flows::{Address, FlowVerdict, FlowView};
use group::{GroupState, MemoryPlan};
use instance::Instance;
pub use instance::{GuestShape, InstanceState};
use paths::{View, members};
pub use ports::OpenError;
use ports::PortState;
use reaper::Reaper;
use routers::Routers;
pub use routers::{RouterView, UnknownRouter};
use shortened::ShortChain;
use teardown::Teardown;
pub use totals::RoleTotals;
pub use view::{
    ChainView, DropCounts, GroupView, InstanceView, MemoryView, PortView, StageView, ThreadView, WorkerView,
};

/// How long NFs are waited for to confirm a new table.
const CONFIRMATION: Duration = Duration::from_millis(50);

/// Flows of a role that a worker tells apart, as a power of two, where they stick to replicas: 256 KiB.
const STICKY_ORDER: u32 = 16;
/// Ticks after which a flow that had no packet may get another replica: longer than a packet waits in a full ring of a slow NF.
const STICKY_IDLE: u16 = 10 * TICKS_PER_SECOND as u16;

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] dpdk::EalError),
    /// A core that this process may not use.
    #[error(
        "engine.cores names core {core}, which this process may not use (it may use {allowed}): correct `cores`, or the process's CPU affinity"
    )]
    Core {
        /// The core.
        core: u32,
        /// What is allowed, as a list.
        allowed: String,
    },
    /// A flow cache could not be made.
    #[error("engine.flow_cache: {0}")]
    FlowCache(#[from] netvm_flow::CacheError),
    /// A thread or a descriptor could not be had.
    #[error("the engine's workers: {0}")]
    System(#[from] std::io::Error),
}

/// Why a trust group's memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Its regions or its table.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The mbufs over a region.
    #[error("group {name}: {source}")]
    Pool {
        /// The group.
        name: String,
        /// What DPDK said.
        source: Box<dpdk::PoolError>,
    },
    /// No more file descriptors.
    #[error("group {name}: {source} (raise the limit of open files)")]
    Descriptors {
        /// The group.
        name: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Why an NF is not let in; the text goes to its author.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// It was built with another netvm.
    #[error(
        "this NF was built for layout {theirs}, the engine speaks {}: rebuild it against this netvm's netlib",
        LAYOUT_VERSION
    )]
    Layout {
        /// The NF's layout version.
        theirs: u32,
    },
    /// No such role.
    #[error("there is no role `{role}`: the configuration has {}", list(.known))]
    UnknownRole {
        /// What it asked for.
        role: String,
        /// What there is.
        known: Vec<String>,
    },
    /// More threads or counters than possible.
    #[error(
        "{threads} threads and {counters} counters: from 1 to {} threads and at most {} counters are possible",
        MAX_THREADS,
        MAX_COUNTERS
    )]
    TooMany {
        /// Threads asked for.
        threads: usize,
        /// Counters named.
        counters: usize,
    },
    /// No more of something.
    #[error("no more {what}: there can be {most}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        most: usize,
    },
    /// Its control memory could not be made.
    #[error(transparent)]
    Control(#[from] ControlError),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Something that happened by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Everything that an NF had is back.
    Reclaimed {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
        /// Buffers taken back.
        buffers: u64,
        /// How long after its end was noticed the buffers that it held then were back.
        first_sweep: Duration,
        /// How long until nothing of it was left.
        total: Duration,
    },
    /// Buffers were out that nobody had: an NF that is gone said falsely in the owner table who had them.
    Audited {
        /// The trust group.
        group: GroupId,
        /// Buffers taken back.
        buffers: u64,
    },
    /// A capture could not be read or written to its end; told when its port is closed. Or a guest was cut off: it has
    /// taken back memory that it shares, or was hung up on.
    PortFault {
        /// The port.
        port: PortId,
        /// What happened.
        fault: String,
    },
    /// The kernel does not signal eventfds for this process: NFs and guests are woken in a way in which a hostile one can make
    /// others wait. Told once.
    WakesMayWait {
        /// The kernel's answer, an errno.
        error: i32,
    },
    /// A standby replica takes packets now.
    StandbyTookOver {
        /// The NF.
        instance: InstanceId,
        /// Its role.
        role: RoleId,
    },
}

/// The engine and its manager.
pub struct Engine {
    host: Arc<Host>,
    compiler: Compiler,
    policy: Arc<Policy>,
    counts: HitCounts,
    readers: Vec<FlowReader>,
    shortened: Vec<ShortChain>,
    /// For each role that flows stick to, each worker's table.
    sticky: BTreeMap<RoleId, Vec<Arc<Sticky>>>,
    plan: MemoryPlan,
    /// For each worker, which of a group's regions is its own.
    worker_regions: Vec<u8>,
    workers: Vec<WorkerHandle>,
    /// Wakes NFs.
    signaller: Signaller,
    groups: BTreeMap<GroupId, GroupState>,
    /// Groups that are to go once nothing of theirs is out.
    retiring: Vec<GroupState>,
    /// Memory for ports without a group, by region; made when first needed.
    own: Vec<Arc<Memory>>,
    ports: BTreeMap<PortId, PortState>,
    instances: BTreeMap<InstanceId, Instance>,
    teardowns: Vec<Teardown>,
    audits: Vec<Audit>,
    notices: VecDeque<Notice>,
    /// It has been told of.
    wakes_may_wait: bool,
    reclaimed: u64,
    next_memory: u16,
    next_instance: u32,
    next_ticket: u64,
    started: Instant,
    routers: Routers,
    reaper: Reaper,
}

impl Engine {
    /// Starts DPDK and the workers; the host is empty then.
    ///
    /// `pci`: DPDK looks for NICs, so that ports on them can be opened; it touches none before.
    ///
    /// # Errors
    /// [`StartError`] names what is missing and what helps.
    pub fn start(config: &EngineConfig, pci: bool) -> Result<Self, StartError> {
        let allowed = rustix::thread::sched_getaffinity(None).map_err(std::io::Error::from)?;
        let may_use =
            |core: u32| (core as usize) < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(core as usize);
        let all: Vec<u32> =
            (0..rustix::thread::CpuSet::MAX_CPU as u32).filter(|core| may_use(*core)).collect();
        let cores = if config.cores.is_empty() {
            all.iter().copied().take(1).collect()
        } else {
            config.cores.clone()
        };
        if let Some(core) = cores.iter().find(|core| !may_use(**core)) {
            let allowed = all.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            return Err(StartError::Core { core: *core, allowed });
        }
        let eal = dpdk::Eal::init(&crate::memory::eal_options(config.huge_pages, pci))?;
        let topology = Topology::new(&config.nodes);
        let mut nodes: Vec<u32> = cores.iter().map(|core| topology.node_of(*core)).collect();
        let worker_nodes = nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        let region_of = |node: &u32| nodes.iter().position(|other| other == node).unwrap_or(0) as u8;
        let worker_regions = worker_nodes.iter().map(region_of).collect();
        let mut workers = Vec::new();
        for ((n, core), handoff) in (0u8..).zip(&cores).zip(Handoff::mesh(cores.len())) {
            let wake = Arc::new(new_eventfd().map_err(std::io::Error::from)?);
            let flows = Flows::new(&config.flow_cache)?;
            let setup = Setup {
                id: WorkerId(n),
                core: *core,
                idle: config.idle,
                handoff,
                wake,
                waiter: EpollWaiter::new().map_err(std::io::Error::from)?,
                signaller: Signaller::new(),
                flows,
            };
            workers.push(WorkerHandle::start(eal, setup)?);
        }
        let pages = if config.huge_pages { Pages::HugeIfFree } else { Pages::Normal };
        Ok(Self {
            host: Arc::new(Host { engine: config.clone(), ..Host::default() }),
            compiler: Compiler::new(eal),
            policy: Arc::default(),
            counts: HitCounts::default(),
            readers: Vec::new(),
            shortened: Vec::new(),
            sticky: BTreeMap::new(),
            plan: MemoryPlan { eal, pages, ring_size: config.ring_size, nodes },
            worker_regions,
            workers,
            signaller: Signaller::new(),
            groups: BTreeMap::new(),
            retiring: Vec::new(),
            own: Vec::new(),
            ports: BTreeMap::new(),
            instances: BTreeMap::new(),
            teardowns: Vec::new(),
            audits: Vec::new(),
            notices: VecDeque::new(),
            wakes_may_wait: false,
            reclaimed: 0,
            next_memory: 0,
            next_instance: 1,
            next_ticket: 1,
            started: Instant::now(),
            routers: Routers::start()?,
            reaper: Reaper::start()?,
        })
    }

    /// What the engine is now.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The same for other threads.
    #[must_use]
    pub fn shared_host(&self) -> Arc<Host> {
        Arc::clone(&self.host)
    }

    /// Moves on what had to wait.
    pub fn service(&mut self) {
        for n in 0..self.workers.len() {
            while let Some(event) = self.workers[n].event() {
                match event {
                    Event::Swept(done, _) => self.swept(done),
                    Event::PortRetired(port, queue) => {
                        drop(queue);
                        self.port_retired(port, WorkerId(n as u8));
                    }
                    Event::Passed(ticket) => self.barrier_passed(ticket),
                    Event::Flows(page) => self.flows_read(*page),
                    Event::Retired(_) => {}
                }
            }
        }
        self.serve_teardowns();
        self.serve_audits();
        self.serve_policy();
        self.serve_routers();
        self.serve_shortened();
        self.retire_groups();
        let fault = |(id, state): (&PortId, &mut PortState)| {
            Some(Notice::PortFault { port: *id, fault: state.new_fault()? })
        };
        self.notices.extend(self.ports.iter_mut().filter_map(fault));
    }

    /// What happened since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> + '_ {
        // That of a queue of a guest may be made at any time.
        if let Some(error) = Signaller::refusal().filter(|_| !self.wakes_may_wait) {
            self.wakes_may_wait = true;
            self.notices.push_back(Notice::WakesMayWait { error: error.raw_os_error() });
        }
        self.notices.drain(..)
    }

    /// Gives every group a new table and every worker a new snapshot, from what is now, when nobody can be waited for.
    fn rebuild(&mut self) {
        self.publish_tables();
        self.order_snapshots();
    }

    /// [`Engine::rebuild`], with NFs having confirmed the new tables before workers hear of anything new: an NF that does
    /// not know its next hop yet sends packets round by the engine, where those that it hands on later overtake them. An
    /// NF that does not answer is waited for no longer than [`CONFIRMATION`].
    fn rebuild_in_order(&mut self) {
        let published = self.publish_tables();
        let deadline = Instant::now() + CONFIRMATION;
        let knows = |instance: &Instance| {
            published.iter().all(|(group, epoch)| *group != instance.group || instance.has_seen(*epoch))
        };
        let takes_packets = |instance: &&Instance| instance.state == InstanceState::Active;
        while !self.instances.values().filter(takes_packets).all(knows) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.order_snapshots();
    }

    /// Publishes the tables that changed; returns their groups and epochs.
    fn publish_tables(&mut self) -> Vec<(GroupId, u64)> {
        let roles = members(self.instances.values());
        let watched = self.watched();
        let (policy, counts) = (&self.policy, &self.counts);
        let shortened: Vec<_> = self.shortened.iter().map(|short| short.chain).collect();
        let (shortened, sticky) = (&shortened, &self.sticky);
        let routers = self.routers.paths();
        let (host, roles, watched) = (&*self.host, &roles, &watched);
        let view = View { host, roles, watched, policy, counts, shortened, sticky, routers };
        let mut published = Vec::new();
        for (id, group) in &mut self.groups {
            let before = group.table.clone();
            view.fill_table(group);
            if *group.table != *before || group.publisher.epoch() == 0 {
                published.push((*id, group.publisher.publish(&group.table)));
                group.wake_all(&self.signaller);
            }
        }
        published
    }

    fn order_snapshots(&mut self) {
        let roles = members(self.instances.values());
        let watched = self.watched();
        let (policy, counts) = (&self.policy, &self.counts);
        let shortened: Vec<_> = self.shortened.iter().map(|short| short.chain).collect();
        let (shortened, sticky) = (&shortened, &self.sticky);
        let routers = self.routers.paths();
        let (host, roles, watched) = (&*self.host, &roles, &watched);
        let view = View { host, roles, watched, policy, counts, shortened, sticky, routers };
        for (n, worker) in self.workers.iter_mut().enumerate() {
            worker.send(Command::Snapshot(Arc::new(view.snapshot(n))));
        }
    }

    /// Makes tables for roles that flows are to stick to from now on, and forgets those of others.
    fn follow_sticky(&mut self) {
        let host = &self.host;
        let is_sticky = |nf: &&NfConfig| nf.balance == Balance::Sticky;
        self.sticky.retain(|role, _| host.nf(*role).as_ref().is_some_and(is_sticky));
        for nf in host.nfs.iter().filter(is_sticky) {
            let table = || Arc::new(Sticky::new(STICKY_ORDER, STICKY_IDLE));
            let tables = self.workers.iter().map(|_| table());
            self.sticky.entry(nf.id).or_insert_with(|| tables.collect());
        }
    }

    fn watched(&self) -> BTreeMap<GroupId, MemoryId> {
        self.groups.iter().filter_map(|(id, group)| Some((*id, group.memories.first()?.id))).collect()
    }

    /// Removes groups whose last packet has come home.
    fn retire_groups(&mut self) {
        let busy: Vec<GroupId> = self
            .instances
            .values()
            .map(|i| i.group)
            .chain(self.teardowns.iter().map(Teardown::group))
            .collect();
        let ports: Vec<MemoryId> = self.ports.values().flat_map(PortState::memories).collect();
        let mut kept = Vec::new();
        for group in core::mem::take(&mut self.retiring) {
            let in_use = busy.contains(&group.id())
                || group
                    .memories
                    .iter()
                    .any(|memory| memory.in_flight.buffers_out() > 0 || ports.contains(&memory.id));
            if in_use {
                kept.push(group);
                continue;
            }
            for worker in &mut self.workers {
                for memory in &group.memories {
                    worker.send(Command::RemoveMemory(memory.id));
                }
            }
        }
        self.retiring = kept;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // All at once: the kernel takes 30 ms to end what each wakes NFs with.
        for worker in &mut self.workers {
            worker.send(Command::Stop);
        }
        for worker in &mut self.workers {
            worker.join();
        }
        // Queues and links go before the memory that they point into.
        for worker in &mut self.workers {
            while worker.event().is_some() {}
        }
    }
}

const _: () = assert!(MAX_LINKS <= u16::MAX as usize);
