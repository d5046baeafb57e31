// SPDX-License-Identifier: Apache-2.0
//! The calls of an [`Engine`], for other crates: each goes to the manager of its part.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use netvm_attach::{Fds, Hello};
use netvm_flowmon::export::Heaviest;
use netvm_model::{Host, RouterId};
use netvm_policy::RuleId;
use netvm_region::{Control, LAYOUT_VERSION, MapError, NotifyMode, ReadyMessage};
use netvm_router::Update;
use netvm_vnet::LinkEvent;

use super::Engine;
use super::captures::{CaptureError, CaptureSpec, CaptureStarted, Numbering, PreparedCapture};
use super::nfs::AdmitError;
use super::nfs::instance::{Applicant, GuestShape};
use super::nfs::teardown::HeldPackets;
use super::nfs::view::{InstanceView, RoleTotals};
use super::ports::PortView;
use super::routers::{RouterView, UnknownRouter};
use super::traces::{PreparedTrace, StartTraceError, TraceRead, TraceSpec};
use super::views::connections::EngineConnections;
use super::views::flows::{Address, FlowView, Wanted, addresses};
use super::views::{
    self, ChainView, GroupView, StageView, WorkerView, latency::LatencyView, trace::TraceError,
};
use crate::counters::{ConnectionCounts, MonitorCounts};
use crate::ids::{CaptureId, InstanceId, PortId, TraceId};
use crate::policy::{Compiler, Policy, RuleCount};
use crate::router::{PuntCounts, PuntReason, RouterState};
use crate::worker::trace::Step;
use crate::worker::{FlowCounts, Hypothetical};

impl Engine {
    /// Admits an NF: reserves NF threads and links and creates its control memory. The caller passes it the result of
    /// [`Engine::descriptors`], and calls [`Engine::activate`] when it is ready.
    ///
    /// `standby`: it waits to replace an NF that dies.
    ///
    /// # Errors
    /// [`AdmitError`]; nothing is changed then.
    pub fn admit(&mut self, hello: &Hello, standby: bool) -> Result<InstanceId, AdmitError> {
        self.admit_any(&Applicant { hello, standby, guest: None })
    }

    /// As [`Engine::admit`], for an NF in a VM, before the VM starts. The VM sees the memories of
    /// [`Engine::descriptors`] as PCI devices and wakes others as `notify` says. Then call [`Engine::guest_ready`]
    /// until it answers, and [`Engine::departed`] when the VM has ended.
    ///
    /// # Errors
    /// As for [`Engine::admit`].
    pub fn admit_guest(
        &mut self,
        role: &str,
        threads: u16,
        standby: bool,
        notify: NotifyMode,
    ) -> Result<InstanceId, AdmitError> {
        let (role, name) = (role.to_owned(), String::new());
        let hello =
            Hello { layout: LAYOUT_VERSION, role, name, threads, counters: Vec::new(), offloads: false };
        self.admit_any(&Applicant { hello: &hello, standby, guest: Some(notify) })
    }

    fn admit_any(&mut self, applicant: &Applicant<'_>) -> Result<InstanceId, AdmitError> {
        let (id, changes_snapshots) = self.nfs.admit(applicant, &self.host, &self.workers)?;
        if changes_snapshots {
            self.publisher().send_snapshots();
        }
        Ok(id)
    }

    /// Names the process of an NF, or that runs its VM. Without it, an NF that gets no core counts as hung.
    pub fn set_process(&mut self, id: InstanceId, pid: u32) {
        self.nfs.set_process(id, pid);
    }

    /// Gives an admitted NF its own copy of the next-hop table, for VMs whose devices map everything writable. Writes
    /// of the VM to the copy affect only the VM.
    ///
    /// # Errors
    /// [`MapError`] if memory runs out.
    pub fn give_own_table(&mut self, id: InstanceId) -> Result<(), MapError> {
        self.nfs.give_own_table(id)
    }

    /// The devices that a VM needs to be an NF of this role; `None` for an unknown role.
    #[must_use]
    pub fn guest_shape(&self, role: &str) -> Option<GuestShape> {
        self.nfs.guest_shape(self.host.nf_named(role)?.group)
    }

    /// The ready message of an NF in a VM, once, not trusted; activates the NF. Poll it every few milliseconds.
    pub fn guest_ready(&mut self, id: InstanceId) -> Option<ReadyMessage> {
        let message = self.nfs.guest_ready(id)?;
        if matches!(message, ReadyMessage::Ready { .. }) {
            self.activate(id);
        }
        Some(message)
    }

    /// The control memory of an NF in a VM, which has its mailbox; `None` for an unknown one.
    #[must_use]
    pub fn guest_control(&self, id: InstanceId) -> Option<Arc<Control>> {
        self.nfs.control(id)
    }

    /// The descriptors to pass to an admitted NF; `None` for an unknown one.
    #[must_use]
    pub fn descriptors(&self, id: InstanceId) -> Option<Fds<BorrowedFd<'_>>> {
        self.nfs.descriptors(id)
    }

    /// The NF is ready: it gets packets, or waits as a standby.
    pub fn activate(&mut self, id: InstanceId) {
        self.nfs.activate(id, &mut self.workers);
        self.publisher().publish_in_order();
    }

    /// Asks an NF to leave: it gets no new packets and sends on the packets that it holds. Then the engine asks it to
    /// stop, and it closes its connection. A standby replica replaces it at once.
    pub fn dismiss(&mut self, id: InstanceId) {
        if self.nfs.dismiss(id, &self.host, &mut self.notices) {
            self.publisher().publish();
        }
    }

    /// Begins the teardown of an NF whose process has ended (its connection is closed).
    pub fn departed(&mut self, id: InstanceId) {
        let Some(departed) = self.nfs.remove(id, &self.host, &mut self.notices) else { return };
        self.fast_paths.end_kept();
        self.publisher().publish();
        self.nfs.tear_down(departed, &mut self.workers);
    }

    /// The packets of a role's last NF that ended while it held packets.
    #[must_use]
    pub fn held_packets(&self, role: &str) -> Option<&HeldPackets> {
        self.nfs.held_packets(role)
    }

    /// The attached NFs, by number.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceView> {
        self.nfs.views(&self.workers)
    }

    /// The totals of every role, by name.
    #[must_use]
    pub fn role_totals(&self) -> BTreeMap<String, RoleTotals> {
        self.nfs.role_totals(&self.host, &self.workers)
    }

    /// Whether a teardown, an audit, a change of the number of workers or a router's table is still in progress.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.nfs.is_settling() || self.resizes.is_running() || self.routers.is_settling()
    }

    /// Compiles policies, on any thread.
    #[must_use]
    pub fn compiler(&self) -> Compiler {
        self.rules.compiler().clone()
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(self.rules.policy())
    }

    /// Puts a policy compiled for `host` into force, unless the rules have changed since; returns whether it did.
    pub fn replace_policy(&mut self, host: &Host, policy: Arc<Policy>) -> bool {
        let is_current = Policy::same_sources(&self.host, host);
        if is_current {
            self.adopt(policy);
            self.publisher().send_snapshots();
        }
        is_current
    }

    /// Packets that matched each rule since it was added.
    #[must_use]
    pub fn rule_counts(&self) -> BTreeMap<RuleId, RuleCount> {
        self.rules.hits().sum()
    }

    /// Packets that matched one rule since it was added.
    #[must_use]
    pub fn rule_count(&self, rule: RuleId) -> RuleCount {
        self.rules.hits().of_rule(rule)
    }

    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> + '_ {
        views::workers(&self.workers, &self.ports, &self.resizes)
    }

    /// The most workers that there can be while the engine runs.
    #[must_use]
    pub const fn room_for_workers(&self) -> usize {
        self.workers.room()
    }

    /// Counts of the workers' flow monitors, also of workers that have ended.
    #[must_use]
    pub fn monitor_counts(&self) -> MonitorCounts {
        self.workers.sum(|counters| counters.monitor.counts())
    }

    /// The chains, in the order of the configuration.
    #[must_use]
    pub fn chains(&self) -> Vec<ChainView> {
        views::chains(&self.host, &self.chains, &self.baselines, &self.workers)
    }

    /// The trust groups, and the engine's own memory if it has any.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        views::groups(&self.nfs, &self.memory)
    }

    /// Cycles of each stage, over all workers.
    #[must_use]
    pub fn stages(&self) -> Vec<StageView> {
        views::stages(&self.workers)
    }

    /// The steps of a hypothetical packet, if NFs leave it unchanged.
    ///
    /// # Errors
    /// [`TraceError`], if there is no memory for it.
    pub fn trace(&mut self, packet: Hypothetical<'_>) -> Result<Vec<Step>, TraceError> {
        let snapshot = self.publisher().view().snapshot(0);
        let steps = self.tracer.trace(packet, snapshot, &mut self.memory, self.connections.mapping_key())?;
        Ok(self.fast_paths.complete(packet, steps))
    }

    /// Latencies by span, of one packet in some thousands, from the first call until a minute after the last one.
    pub fn latencies(&mut self) -> Vec<LatencyView> {
        self.latencies.views(&mut self.workers)
    }

    /// Discards the latencies so far. Workers measure from now on, until a minute after the last call.
    pub fn reset_latencies(&mut self) {
        self.latencies.reset(&mut self.workers);
    }

    /// Reads at most `most` flows of all workers. [`Engine::service`] calls `done` with them and the cache counters.
    pub fn read_flows(
        &mut self,
        most: usize,
        done: impl FnOnce(Vec<FlowView>, Vec<FlowCounts>) + Send + 'static,
    ) {
        let wanted = Wanted { most, by_kernel: self.fast_paths.views(most) };
        self.flow_readers.read(wanted, self.rules.policy(), &mut self.workers, done);
    }

    /// The tracked connections.
    pub fn connections(&mut self) -> EngineConnections<'_> {
        let (owners, is_flushed) = (Arc::clone(self.resizes.owners()), self.fast_paths.is_flushed());
        let Self { connection_readers: readers, connections: tables, workers, .. } = self;
        EngineConnections { readers, tables, owners, workers, is_flushed }
    }

    /// Counts of the workers' connections, also of workers that have ended.
    #[must_use]
    pub fn connection_counts(&self) -> ConnectionCounts {
        self.workers.sum(|counters| counters.connections.counts())
    }

    /// Reads the running flows of all workers' monitors. [`Engine::service`] calls `done` with the heaviest of them.
    pub fn read_running(&mut self, done: impl FnOnce(Heaviest) + Send + 'static) {
        self.monitor_readers.read(&mut self.workers, done);
    }

    /// The addresses in the switch's forwarding database.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        addresses(self.rules.policy())
    }

    /// The ports, by number.
    #[must_use]
    pub fn ports(&self) -> Vec<PortView> {
        let views = self.ports.views(&self.host, &self.rules, &self.baselines, &self.workers);
        let views = self.fast_paths.with_reasons(views);
        self.bonds.complete(&self.host, views::with_vteps(views, &self.host, &self.routers))
    }

    /// Closes ports and opens them again, as their interface is another one. Those that cannot be opened stay closed.
    pub fn reopen(&mut self, ports: &[PortId]) {
        let (all, mut context) = self.ports_in_context();
        all.reopen(ports, &mut context);
    }

    /// Gives interfaces that came up the addresses and routes that the kernel has forgotten while they were down.
    pub fn restore_addresses(&mut self, links: &[LinkEvent]) {
        self.ports.restore_addresses(links);
    }

    /// Updates the table of a router. The update takes effect as a whole, a few milliseconds later. Updates in the
    /// meantime are merged, so frequent calls are cheap.
    ///
    /// Next hops refer to interfaces by their index in
    /// [`RouterConfig::interfaces`](netvm_model::RouterConfig::interfaces). Applying a host that changes these indexes
    /// empties the table, and the caller must send all routes again.
    ///
    /// # Errors
    /// [`UnknownRouter`]; nothing is changed.
    pub fn update_router(&mut self, router: RouterId, update: Update) -> Result<(), UnknownRouter> {
        self.routers.update(router, update)
    }

    /// Follows what a router's namespace says of its interfaces. Replaces what it said before.
    ///
    /// # Errors
    /// [`UnknownRouter`]; nothing is changed.
    pub fn set_router_state(&mut self, router: RouterId, state: RouterState) -> Result<(), UnknownRouter> {
        self.routers.set_state(router, state, &self.host)?;
        self.publisher().send_snapshots();
        Ok(())
    }

    /// The routers.
    #[must_use]
    pub fn routers(&self) -> Vec<RouterView> {
        self.routers.views(&self.baselines, &self.workers)
    }

    /// Follows the MTUs of the ports' interfaces, from [`Engine::ports`]: routers do not forward longer packets, and
    /// AF_XDP ports drop them. Follows their offloads, too: packets for an interface without them are finished before.
    /// An interface that is gone sends nothing.
    pub fn follow_mtus(&mut self, ports: &[PortView]) {
        let mtus = self.ports.follow_interfaces(ports);
        if self.routers.set_mtus(mtus, &self.host) {
            self.publisher().send_snapshots();
        }
    }

    /// Packets punted to routers' kernels, by punt port and reason.
    #[must_use]
    pub fn punt_counts(&self) -> BTreeMap<PortId, [PuntCounts; PuntReason::COUNT]> {
        self.routers.punt_counts()
    }

    /// Starts a capture: from now on, workers write records to its rings, which [`CaptureSpec::prepare`] has made for
    /// each worker that there can be.
    ///
    /// # Errors
    /// [`CaptureError`] says what is wrong with the request.
    pub fn start_capture(
        &mut self,
        spec: &CaptureSpec,
        prepared: PreparedCapture,
    ) -> Result<CaptureStarted, CaptureError> {
        let numbering = Numbering { host: &self.host, shortened: self.chains.shortened() };
        let started = self.captures.start(spec, prepared, numbering, &mut self.workers)?;
        self.publisher().publish_in_order();
        Ok(started)
    }

    /// Ends a capture; does nothing if it has ended.
    pub fn stop_capture(&mut self, id: CaptureId) {
        if self.captures.stop(id, &mut self.workers, &self.reaper) {
            self.publisher().publish_in_order();
        }
    }

    /// Starts a trace: from now on, workers follow packets, with the records that [`TraceSpec::prepare`] has made.
    ///
    /// # Errors
    /// [`StartTraceError`] says what is wrong with the request.
    pub fn start_trace(
        &mut self,
        spec: &TraceSpec,
        prepared: PreparedTrace,
    ) -> Result<TraceId, StartTraceError> {
        let id = self.traces.begin(spec)?;
        if spec.each_hop {
            self.publisher().publish_in_order();
        }
        self.traces.follow_packets(id, prepared, &mut self.workers);
        Ok(id)
    }

    /// What became of packets since the last call; `None` if there is no such trace.
    pub fn read_trace(&mut self, id: TraceId) -> Option<TraceRead> {
        Some(self.fast_paths.complete_traced(self.traces.read(id, &mut self.workers)?))
    }

    /// Ends a trace; does nothing if it has ended.
    pub fn stop_trace(&mut self, id: TraceId) {
        if self.traces.stop(id, &mut self.workers) {
            self.publisher().publish_in_order();
        }
    }
}
