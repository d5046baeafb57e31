//! The manager: applies configurations, admits NFs, and sends the workers the commands that follow.
//!
//! An [`Engine`] belongs to one thread. Its calls take effect at once if they can; what has to wait (buffers of a dead
//! NF, a port that is being closed) proceeds in [`Engine::service`], which must be called every few milliseconds.
//!
//! | part | what it holds |
//! |---|---|
//! | [`workers`] | the worker threads: commands to them, events from them |
//! | [`nfs`] | trust groups, attached NFs, teardowns and audits |
//! | [`ports`] | open ports |
//! | [`publish`] | compiled rules and chains; publishes snapshots and next-hop tables |
//! | [`routers`] | tables of virtual routers |
//! | [`views`] | statistics |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use netvm_config::model::{EngineConfig, Host};
use netvm_region::Pages;

mod apply;
mod cores;
mod memory;
mod nfs;
mod notice;
mod ports;
mod publish;
mod reaper;
mod routers;
mod views;
mod workers;

use crate::ids::PortId;
use crate::worker::Event;
pub use apply::ApplyError;
use cores::Cores;
pub use cores::StartError;
pub use memory::GroupError;
use memory::Memories;
pub use nfs::AdmitError;
use nfs::Nfs;
pub use nfs::instance::{GuestShape, InstanceState};
pub use notice::Notice;
use notice::Notices;
pub use ports::OpenError;
use ports::PortState;
use publish::Chains;
use publish::policy::Rules;
use reaper::Reaper;
use routers::Routers;
pub use routers::{RouterView, UnknownRouter};
use views::flows::FlowReader;
pub use views::flows::{Address, FlowVerdict, FlowView};
pub use views::totals::RoleTotals;
use views::totals::Totals;
pub use views::{
    ChainView, DropCounts, GroupView, InstanceView, MemoryView, PortView, StageView, ThreadView, WorkerView,
};
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
    memory: Memories,
    totals: Totals,
    readers: Vec<FlowReader>,
    notices: Notices,
    reaper: Reaper,
    started: Instant,
}

impl Engine {
    /// Starts DPDK and the workers with an empty configuration.
    ///
    /// `pci`: DPDK looks for NICs, so that ports on them can be opened; it touches none before.
    ///
    /// # Errors
    /// [`StartError`] names what is missing and what helps.
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
            memory: Memories::new(eal, pages, config.ring_size, cores.nodes),
            totals: Totals::default(),
            readers: Vec::new(),
            notices: Notices::default(),
            reaper: Reaper::start()?,
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

    /// Proceeds with what had to wait.
    pub fn service(&mut self) {
        while let Some((worker, event)) = self.workers.next_event() {
            match event {
                Event::Swept(done, _) => self.swept(done),
                Event::PortRetired(port, queue) => {
                    drop(queue);
                    self.port_retired(port, worker);
                }
                Event::Passed(ticket) => self.barrier_passed(ticket),
                Event::Flows(page) => self.flows_read(*page),
                Event::Retired(_) => {}
            }
        }
        self.serve_teardowns();
        self.serve_audits();
        self.serve_policy();
        self.serve_routers();
        self.serve_shortened();
        self.retire_groups();
        for (id, state) in &mut self.ports {
            if let Some(fault) = state.new_fault() {
                self.notices.push(Notice::PortFault { port: *id, fault });
            }
        }
    }

    /// What happened since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> + '_ {
        self.notices.drain()
    }
}
