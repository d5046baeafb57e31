//! The manager: applies configurations, admits NFs, and sends the workers the commands that follow.
//!
//! In: configurations ([`Engine::apply`]), NFs ([`Engine::admit`]), route updates ([`Engine::update_router`]) and the
//! workers' events. Out: commands to the workers, the trust groups' next-hop tables, and notices. One thread owns an
//! [`Engine`]. A call does at once what needs no waiting; [`Engine::service`], called every few milliseconds, does the
//! rest, such as reclaiming the buffers of an NF that ended.
//!
//! | part | what it holds |
//! |---|---|
//! | [`workers`] | the worker threads: commands to them, events from them |
//! | [`nfs`] | trust groups, attached NFs, teardowns and audits |
//! | [`placement`] | which worker serves which queue of a port |
//! | [`ports`] | open ports |
//! | [`publish`] | compiled rules and chains; publishes snapshots and next-hop tables |
//! | [`routers`] | tables of virtual routers |
//! | [`captures`] | packet captures that run |
//! | [`views`] | statistics |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use netvm_flowmon::Record;
use netvm_flowmon::export::Heaviest;
use netvm_model::{EngineConfig, Host};
use netvm_region::Pages;
use rtrb::Consumer;

mod api;
mod apply;
mod captures;
mod cores;
mod memory;
mod nfs;
mod notice;
mod placement;
mod ports;
mod publish;
mod reaper;
mod routers;
mod since;
mod views;
mod workers;

use crate::ids::{MemoryId, PortId};
pub use crate::inflight::held::HeldPacket;
use crate::tap::EndedTap;
use crate::worker::{Event, Retired, Tracer};
pub use apply::ApplyError;
use captures::Captures;
pub use captures::{CaptureError, CaptureNames, CaptureSpec, CaptureStarted, Interface, PreparedCapture};
use cores::Cores;
pub use cores::StartError;
pub use memory::GroupError;
use memory::Memories;
pub use nfs::AdmitError;
use nfs::Nfs;
pub use nfs::instance::{GuestShape, InstanceState};
pub use nfs::teardown::LastBurst;
pub use nfs::view::{InstanceView, RoleTotals, ThreadView};
pub use notice::Notice;
use notice::Notices;
use placement::Placement;
use placement::balance::Balance;
use placement::load::Loads;
use ports::PortState;
use publish::policy::Rules;
use publish::snapshot::Sources;
use publish::{Chains, Publisher};
use reaper::Reaper;
use routers::Routers;
pub use routers::{RouterView, UnknownRouter};
use since::Baselines;
use views::flows::Flows;
pub use views::flows::{Address, FlowVerdict, FlowView};
use views::latency::Latencies;
pub use views::latency::LatencyView;
use views::readers::Readers;
pub use views::trace::TraceError;
pub use views::{ChainView, GroupView, MemoryView, PortView, PortWorker, QueueView, StageView, WorkerView};
use workers::Workers;

/// The engine and its manager.
pub struct Engine {
    host: Arc<Host>,
    workers: Workers,
    rules: Rules,
    chains: Chains,
    routers: Routers,
    nfs: Nfs,
    ports: BTreeMap<PortId, PortState>,
    placement: Placement,
    loads: Loads,
    balance: Balance,
    /// Configured ports that could not be opened again, and why.
    closed_ports: BTreeMap<PortId, String>,
    memory: Memories,
    since: Baselines,
    flow_readers: Readers<Flows>,
    monitor_readers: Readers<Heaviest>,
    notices: Notices,
    latencies: Latencies,
    reaper: Reaper,
    captures: Captures,
    /// Sends hypothetical packets through the stages; made for the first of them.
    tracer: Option<Box<Tracer>>,
    started: Instant,
}

impl Engine {
    /// Starts DPDK and the workers with an empty configuration.
    ///
    /// `pci`: lets ports use NICs on the PCI bus. DPDK touches no NIC until a port uses it.
    ///
    /// # Errors
    /// [`StartError`] names what is missing and the remedy.
    pub fn start(config: &EngineConfig, pci: bool) -> Result<Self, StartError> {
        let cores = Cores::of(config)?;
        let eal = dpdk::Eal::init(&crate::memory::eal_options(config.huge_pages, pci))?;
        let pages = if config.huge_pages { Pages::HugeIfFree } else { Pages::Normal };
        Ok(Self {
            host: Arc::new(Host { engine: config.clone(), ..Host::default() }),
            workers: Workers::start(eal, &cores, config)?,
            rules: Rules::new(eal),
            chains: Chains::default(),
            routers: Routers::start()?,
            nfs: Nfs::new(),
            ports: BTreeMap::new(),
            placement: Placement::new(cores.node_of_each()),
            loads: Loads::default(),
            balance: Balance::default(),
            closed_ports: BTreeMap::new(),
            memory: Memories::new(eal, pages, config.ring_size, cores.nodes),
            since: Baselines::default(),
            flow_readers: Readers::default(),
            monitor_readers: Readers::default(),
            notices: Notices::default(),
            latencies: Latencies::default(),
            reaper: Reaper::start()?,
            captures: Captures::default(),
            tracer: None,
            started: Instant::now(),
        })
    }

    /// The configuration in force.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The configuration in force, for other threads.
    #[must_use]
    pub fn shared_host(&self) -> Arc<Host> {
        Arc::clone(&self.host)
    }

    /// The rings of the workers' flow monitors, for an exporter. Empty without monitors that export, and from the
    /// second call on.
    pub fn take_flow_records(&mut self) -> Vec<Consumer<Record>> {
        self.workers.take_records()
    }

    /// Publishes what the parts have changed.
    fn publisher(&mut self) -> Publisher<'_> {
        let Self { host, routers, rules, chains, captures, nfs, workers, .. } = self;
        Publisher { sources: Sources { host, routers, rules, chains, captures }, nfs, workers }
    }

    /// Handles the workers' events.
    fn handle_events(&mut self) {
        while let Some((_, event)) = self.workers.next_event() {
            match event {
                Event::Swept(done, request) => self.nfs.swept(done, request),
                Event::Passed(ticket) => self.nfs.barrier_passed(ticket),
                Event::Flows(page) => self.flow_readers.page(page, &mut self.workers),
                Event::Monitor(page) => self.monitor_readers.page(page, &mut self.workers),
                // Frees the memory of its ring.
                Event::Retired(Retired::Tap(tap)) => self.reaper.free(EndedTap(tap)),
                // A queue that comes here is too late: nobody waits for it any more.
                Event::PortRetired(..) | Event::QueueTaken(_) | Event::Retired(_) => {}
            }
        }
    }

    /// Handles the workers' events, and continues work that had to wait.
    pub fn service(&mut self) {
        self.handle_events();
        self.latencies.service(&mut self.workers);
        if self.nfs.service(&self.host, &mut self.workers, &mut self.notices) {
            self.publisher().publish();
        }
        self.reset_damaged();
        for (port, event) in self.rules.service() {
            self.notices.push(Notice::Switching { port, event });
        }
        if self.routers.service(&self.host) {
            self.publisher().send_snapshots();
        }
        if self.chains.shorten_wanted(&self.host, &mut self.since, &self.workers) {
            self.publisher().publish_in_order();
        }
        let by_ports: Vec<MemoryId> = self.ports.values().flat_map(PortState::memories).collect();
        self.nfs.drop_retired(&by_ports, &mut self.workers);
        let counters = self.workers.iter().map(|worker| &*worker.counters);
        if self.loads.measure(&self.placement, counters, Instant::now()) {
            self.balance();
        }
        for (id, state) in &mut self.ports {
            if let Some(fault) = state.control.new_fault() {
                self.notices.push(Notice::PortFault { port: *id, fault });
            }
        }
    }

    /// The notices since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> + '_ {
        self.notices.drain()
    }
}
