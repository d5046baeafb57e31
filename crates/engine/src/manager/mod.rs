// SPDX-License-Identifier: Apache-2.0
//! The manager: applies configurations, admits NFs, and sends the workers the commands that follow.
//!
//! In: configurations ([`Engine::apply`]), NFs ([`Engine::admit`]), route updates ([`Engine::update_router`]) and the
//! workers' events. Out: commands to the workers, the trust groups' next-hop tables, and notices. One thread owns an
//! [`Engine`]. A call does at once what needs no waiting; [`Engine::service`], called every few milliseconds, does the
//! rest, such as reclaiming the buffers of an NF that ended.
//!
//! Each part is a struct that owns its state. Its methods take what they need of others as arguments, and say by their
//! results what has to follow; only the engine reaches all parts, and decides the order: here what is serviced, in
//! [`apply`] how a configuration changes, in [`api`] the calls that go to one part.
//!
//! | part | what it owns |
//! |---|---|
//! | [`workers`] | the worker threads: commands to them, events from them |
//! | [`resize`] | the workers' [`cores`], who owns which flows, and workers that come and go |
//! | [`memory`] | the memory of ports without a group; makes that of groups |
//! | [`bonds`] | bonds: the links of their members, LACP, and who carries packets |
//! | [`multicast`] | IGMP and MLD snooping: memberships, routers and queriers |
//! | [`pairs`] | programs that are hops: their states, and the probes that watch them |
//! | [`nfs`] | trust groups, attached NFs, teardowns, audits and resets |
//! | [`ports`] | open and closed ports, and by [`placement`] which worker serves which of their queues |
//! | [`publish`] | compiled rules, and chains beyond the configuration; publishes snapshots and next-hop tables |
//! | [`routers`] | tables of virtual routers |
//! | [`kernel_flows`] | flows that the kernel forwards between containers |
//! | [`captures`] | packet captures that run |
//! | [`traces`] | traces of packets of traffic, and what their events refer to |
//! | [`since`] | where counters began |
//! | [`views`] | requests to read flows, latencies, the tracer; makes statistics of the parts |

use std::sync::Arc;

use netvm_fd_store::Store;
use netvm_flowmon::Record;
use netvm_flowmon::export::Heaviest;
use netvm_model::{CheckedTarget, EngineConfig, Host};
use netvm_region::Pages;
use netvm_wire::MacAddr;
use rtrb::Consumer;

mod api;
mod apply;
mod baselines;
mod bonds;
mod captures;
mod cores;
mod kernel_flows;
mod memory;
mod multicast;
mod nfs;
mod notice;
mod pairs;
mod placement;
mod ports;
mod publish;
mod reaper;
mod resize;
mod routers;
mod service;
pub(crate) mod traces;
mod views;
mod workers;

use crate::ids::{InstanceId, PortId};
pub use crate::inflight::held::HeldPacket;
use crate::kept::InterfaceStore;
use crate::nat::TargetHealth;
use crate::policy::Policy;
use crate::router::{EvpnUpdate, UnknownNetwork};
pub use apply::ApplyError;
use baselines::Baselines;
use bonds::Bonds;
use captures::Captures;
pub use captures::{
    CaptureError, CaptureNames, CaptureSpec, CaptureStarted, NamedCapturePoint, PreparedCapture,
};
use cores::Cores;
pub use cores::{CoresError, StartError};
use kernel_flows::FastPaths;
pub use memory::GroupError;
use memory::Memories;
use multicast::Multicast;
pub use multicast::{MulticastView, PortMulticast};
pub use nfs::AdmitError;
use nfs::Nfs;
pub use nfs::instance::{GuestShape, InstanceState};
pub use nfs::teardown::HeldPackets;
pub use nfs::view::{InstanceView, RoleTotals, ThreadView};
use notice::Notices;
pub use notice::{Notice, ProgramChange, ProgramFault};
use pairs::Pairs;
pub use pairs::{ProgramState, ProgramView};
pub use ports::{BondMemberView, BondView, PortView, PortWorker, QueueView};
use ports::{Configured, Context, Ports};
use publish::policy::Rules;
pub use publish::policy::now as current_tick;
use publish::snapshot::Sources;
use publish::{Chains, Publisher};
use reaper::Reaper;
use resize::Resizes;
use routers::Routers;
pub use routers::{RouterView, UnknownRouter};
use traces::Traces;
pub use traces::{PreparedTrace, StartTraceError, TraceRead, TraceSpec};
use views::connections::Found;
pub use views::connections::{EngineConnections, SavedPart};
use views::flows::Flows;
pub use views::flows::{Address, FlowVerdict, FlowView, HostAddress, LocalAddresses};
use views::latency::Latencies;
pub use views::latency::LatencyView;
use views::readers::Readers;
use views::trace::PacketTracer;
pub use views::trace::TraceError;
pub use views::{ChainView, GroupView, MemoryView, StageView, WorkerView};
use workers::Workers;
use workers::connections::ConnectionTables;

/// The engine and its manager.
pub struct Engine {
    host: Arc<Host>,
    workers: Workers,
    resizes: Resizes,
    rules: Rules,
    chains: Chains,
    routers: Routers,
    nfs: Nfs,
    bonds: Bonds,
    multicast: Multicast,
    pairs: Pairs,
    ports: Ports,
    memory: Memories,
    baselines: Baselines,
    flow_readers: Readers<Flows>,
    monitor_readers: Readers<Heaviest>,
    notices: Notices,
    latencies: Latencies,
    reaper: Reaper,
    captures: Captures,
    traces: Traces,
    tracer: PacketTracer,
    connections: ConnectionTables,
    connection_readers: Readers<Found>,
    targets: TargetHealth,
    fast_paths: FastPaths,
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
            bonds: Bonds::new(),
            multicast: Multicast::new(),
            pairs: Pairs::new(),
            ports: Ports::new(cores.node_of_each()),
            memory: Memories::new(eal, pages, config.ring_size, cores.nodes.clone()),
            resizes: Resizes::new(cores),
            baselines: Baselines::default(),
            flow_readers: Readers::default(),
            monitor_readers: Readers::default(),
            notices: Notices::default(),
            latencies: Latencies::default(),
            reaper: Reaper::start()?,
            captures: Captures::default(),
            traces: Traces::default(),
            tracer: PacketTracer::default(),
            connections: ConnectionTables::new(&config.connections),
            connection_readers: Readers::default(),
            targets: TargetHealth::default(),
            fast_paths: FastPaths::default(),
        })
    }

    /// Has NAT choose addresses and ports by this key, for the same choice after a restart. Call it before the first
    /// host is applied; keep the key secret.
    pub const fn set_mapping_key(&mut self, key: u64) {
        self.connections.set_mapping_key(key);
    }

    /// Sets this host's address in LACP, and that of its queries for groups: one that no other host has, and the same
    /// after a restart. Call it before the first host is applied.
    pub const fn set_system_address(&mut self, system: MacAddr) {
        self.bonds.set_system(system);
        self.multicast.set_mac(system);
    }

    /// Keeps the interfaces of containers in a store, from which the next process takes them over, and takes over what
    /// is there. Call it before the first host is applied.
    pub fn keep_interfaces_in(&mut self, store: Arc<Store>) {
        self.ports.set_store(InterfaceStore::of(store));
    }

    /// Ends the interfaces in the store that no port has taken over. Returns how many were taken over so far.
    pub fn close_left_interfaces(&self) -> usize {
        self.ports.close_left()
    }

    /// Has new connections avoid a target of NAT rules, or lead to it again. Established ones stay. Workers see it at
    /// once, without a new snapshot.
    pub fn set_target_health(&self, target: &CheckedTarget, is_healthy: bool) {
        self.targets.set(target, is_healthy);
    }

    /// The programs that are hops.
    #[must_use]
    pub fn programs(&self) -> Vec<ProgramView> {
        self.pairs.views(&self.workers)
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

    /// The rings of the workers' flow monitors, for an exporter: of those that were added since the last call. Empty
    /// without monitors that export.
    pub fn take_flow_records(&mut self) -> Vec<Consumer<Record>> {
        self.workers.take_records()
    }

    /// Puts a policy into force with the next snapshot.
    fn adopt(&mut self, policy: Arc<Policy>) {
        let after = Configured { host: &self.host, policy: &policy };
        self.fast_paths.follow_policy(self.rules.policy(), after);
        self.rules.adopt(policy, self.workers.len(), &self.reaper);
        self.multicast.follow(&self.host, self.rules.policy().switching.as_ref());
    }

    /// Publishes what the parts have changed.
    fn publisher(&mut self) -> Publisher<'_> {
        let Self { host, routers, rules, chains, captures, resizes, traces, nfs, workers, reaper, .. } = self;
        let (owners, targets, pairs) = (resizes.owners(), &self.targets, &self.pairs);
        let (bonds, multicast) = (self.bonds.of_snapshots(), self.multicast.of_snapshots());
        let sources =
            Sources { host, routers, rules, chains, captures, owners, targets, pairs, bonds, multicast };
        Publisher { sources, nfs, traces, workers, reaper }
    }

    /// The ports, and what they need of the other parts.
    fn ports_in_context(&mut self) -> (&mut Ports, Context<'_>) {
        let Self { host, rules, ports, nfs, memory, workers, notices, .. } = self;
        let in_force = Configured { host, policy: rules.policy() };
        (ports, Context { in_force, nfs, memory, workers, notices })
    }

    /// Why a configured port is closed; `None`: it is open.
    #[must_use]
    pub fn why_closed(&self, port: PortId) -> Option<String> {
        self.ports.why_closed(port).map(str::to_owned)
    }

    /// IGMP and MLD snooping; `None`: L2 switching does not snoop.
    #[must_use]
    pub fn multicast(&self) -> Option<MulticastView> {
        self.multicast.view()
    }

    /// The notices since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> + '_ {
        self.multicast.over_limit().chain(self.notices.drain())
    }

    /// Says whether an NF gets new flows, if its role is sticky; it keeps those that it has.
    pub fn set_draining(&mut self, id: InstanceId, is_draining: bool) {
        if self.nfs.set_draining(id, is_draining) {
            self.publisher().send_snapshots();
        }
    }

    /// How many flows an NF of a sticky role has that had a packet in the last ten seconds: at most, as flows with the
    /// same hash count as one.
    #[must_use]
    pub fn live_flows(&self, id: InstanceId) -> usize {
        self.nfs.threads_of(id).map_or(0, |(role, nf_threads)| self.chains.live_flows(role, nf_threads))
    }

    /// Follows what EVPN says of a network. Addresses take effect at once; VTEPs with the next snapshot.
    ///
    /// # Errors
    /// [`UnknownNetwork`]; nothing is changed.
    pub fn update_evpn(&mut self, update: &EvpnUpdate) -> Result<(), UnknownNetwork> {
        let switching = self.rules.policy().switching.as_ref();
        if self.routers.update_evpn(update, &self.host, switching)? {
            self.publisher().send_snapshots();
        }
        Ok(())
    }

    /// How many addresses of a network found no room in the switch's database or that of addresses behind VTEPs, since
    /// the last call.
    pub fn take_refused_addresses(&mut self, port: PortId) -> u64 {
        self.routers.take_refused(port)
    }

    /// What L2 switching learns in the networks of EVPN ports; `None` without switching. It is out of date after
    /// another configuration.
    #[must_use]
    pub fn local_addresses(&self) -> Option<LocalAddresses> {
        LocalAddresses::of(&self.host, self.rules.policy(), self.routers.vteps())
    }
}
