//! The calls of an [`Engine`], for other crates: each goes to the manager of its part.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_flowmon::export::Heaviest;
use netvm_model::{Host, RouterId};
use netvm_policy::RuleId;
use netvm_router::Update;

use super::captures::{CaptureError, CaptureSpec, CaptureStarted, Numbering, PreparedCapture};
use super::routers::{RouterView, UnknownRouter};
use super::views::flows::{Address, FlowView, addresses};
use super::views::latency::LatencyView;
use super::{Engine, PortView};
use crate::ids::{CaptureId, PortId};
use crate::policy::{Compiler, Policy, RuleCount};
use crate::router::{PuntCounts, PuntReason, RouterState};
use crate::worker::FlowCounts;

/// Rules.
impl Engine {
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

    /// Puts a policy that was compiled for `host` into force, unless the rules have changed since. Returns whether it
    /// did.
    pub fn replace_policy(&mut self, host: &Host, policy: Arc<Policy>) -> bool {
        let is_current = Policy::same_sources(&self.host, host);
        if is_current {
            self.rules.adopt(policy, self.workers.len(), &self.reaper);
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
}

/// What the packet path has measured.
impl Engine {
    /// Latencies since the measurement began, by span. Workers measure one packet in some thousands, from the first
    /// call until a minute after the last call.
    pub fn latencies(&mut self) -> Vec<LatencyView> {
        self.latencies.views(&mut self.workers)
    }

    /// Discards the latencies so far. Workers measure from now on, until a minute after the last call.
    pub fn reset_latencies(&mut self) {
        self.latencies.reset(&mut self.workers);
    }

    /// Reads at most `most` flows of all workers, page by page. [`Engine::service`] calls `done` with them, and with
    /// each worker's cache counters.
    pub fn read_flows(
        &mut self,
        most: usize,
        done: impl FnOnce(Vec<FlowView>, Vec<FlowCounts>) + Send + 'static,
    ) {
        self.flow_readers.read(most, self.rules.policy(), &mut self.workers, done);
    }

    /// Reads the running flows of all workers' monitors, page by page. [`Engine::service`] calls `done` with the
    /// heaviest of them; with none if the engine has no monitor.
    pub fn read_running(&mut self, done: impl FnOnce(Heaviest) + Send + 'static) {
        self.monitor_readers.read(&mut self.workers, done);
    }

    /// The addresses in the switch's forwarding database.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        addresses(self.rules.policy())
    }
}

/// Virtual routers.
impl Engine {
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
        self.routers.views(&self.since, &self.workers)
    }

    /// Follows the MTUs of the ports' interfaces, from [`Engine::ports`]: routers do not forward longer packets, and
    /// AF_XDP ports drop them. Follows their offloads, too: packets for an interface without them are finished before.
    /// An interface that is gone sends nothing.
    pub fn follow_mtus(&mut self, ports: &[PortView]) {
        let mut mtus = BTreeMap::new();
        for view in ports {
            let Some(interface) = view.interface.as_ref() else { continue };
            if let Some(port) = self.ports.get_mut(&view.id) {
                port.follow_interface(interface);
            }
            mtus.extend(interface.mtu.map(|mtu| (view.id, mtu)));
        }
        if self.routers.set_mtus(mtus, &self.host) {
            self.publisher().send_snapshots();
        }
    }

    /// Packets punted to routers' kernels, by punt port and reason.
    #[must_use]
    pub fn punt_counts(&self) -> BTreeMap<PortId, [PuntCounts; PuntReason::COUNT]> {
        self.routers.punt_counts()
    }
}

/// Captures.
impl Engine {
    /// Starts a capture: from now on, workers write records to its rings, which [`CaptureSpec::prepare`] has made for
    /// each worker.
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
        if self.captures.stop(id, &mut self.workers) {
            self.publisher().publish_in_order();
        }
    }
}
