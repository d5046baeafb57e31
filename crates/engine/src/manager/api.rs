//! The calls of an [`Engine`], for other crates: each goes to the manager of its part.

use std::collections::BTreeMap;

use netvm_model::RouterId;
use netvm_router::Update;

use super::captures::{CaptureError, CaptureSpec, CaptureStarted, Numbering, PreparedCapture};
use super::routers::{RouterView, UnknownRouter};
use super::{Engine, PortView};
use crate::ids::{CaptureId, PortId};
use crate::router::{PuntCounts, PuntReason, RouterState};

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
        self.send_snapshots();
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
            self.send_snapshots();
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
        self.publish_in_order();
        Ok(started)
    }

    /// Ends a capture; does nothing if it has ended.
    pub fn stop_capture(&mut self, id: CaptureId) {
        if self.captures.stop(id, &mut self.workers) {
            self.publish_in_order();
        }
    }
}
