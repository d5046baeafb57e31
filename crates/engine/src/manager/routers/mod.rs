// SPDX-License-Identifier: Apache-2.0
//! Virtual routers. In: route updates from the control plane. Out: forwarding tables for the workers' snapshots.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_clock as clock;
use netvm_counters::{fields, filled};
use netvm_model::{Host, PortConfig, Rate, RouterConfig, RouterId, RouterInterface};
use netvm_router::{Tables, Update};
use netvm_switch::PolicerError;

use super::baselines::Baselines;
use super::workers::Workers;
use crate::ids::PortId;
use crate::policy::Switching;
use crate::router::{
    EvpnUpdate, Ingress, InterfacePath, PuntCounts, PuntLimits, PuntReason, RouterPath, RouterState,
    SharedPort, UnknownNetwork, UnresolvedLimit, Vteps,
};

mod builder;

use builder::Builder;

/// Entries of a neighbour table by default.
const TABLE: u32 = 1024;
/// Interval at which its size is read.
const TABLE_INTERVAL: Duration = Duration::from_secs(1);

/// No router has this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no router {0}: it was removed from the configuration")]
pub struct UnknownRouter(pub RouterId);

netvm_counters::router! { fields! {
    /// A router.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RouterView {
        /// Its number.
        pub id: RouterId,
        /// IPv4 and IPv6 routes that the workers use.
        pub routes: (usize, usize),
        /// Bytes of one version of the table; there are two.
        pub memory: usize,
        /// Routes were left to its kernel because the table was full.
        pub was_full: bool,
    }
} }

/// All routers.
pub(crate) struct Routers {
    states: BTreeMap<RouterId, State>,
    /// By router number, for snapshots.
    paths: Vec<Option<Arc<RouterPath>>>,
    /// Changes with `paths`.
    version: u64,
    limits: Limits,
    /// Other servers, to which tunnels lead.
    vteps: Vteps,
    builder: Builder,
    last_ticket: u64,
    /// When the size of the kernel's neighbour tables was read last.
    table_read: Instant,
}

/// A router's state.
struct State {
    /// Identifies it to the builder; never reused.
    ticket: u64,
    /// Names of its interfaces; next hops refer to their indexes.
    interfaces: Vec<String>,
    /// What its namespace says.
    kernel: RouterState,
    tables: Arc<Tables>,
}

/// The punt rate of each interface and its limits, by punt port.
pub(crate) type Quotas = BTreeMap<PortId, (Rate, Arc<PuntLimits>)>;

/// Limits of routers' interfaces.
struct Limits {
    quotas: Quotas,
    /// Of neighbours that kernels have to resolve.
    unresolved: Arc<UnresolvedLimit>,
    /// MTUs of the ports' interfaces, if known.
    mtus: BTreeMap<PortId, u32>,
}

impl Limits {
    /// The longest IP packet of a port: its MTU, or that of its interface if that is smaller. While the port is
    /// missing, no packet fits, so all are punted.
    fn mtu(&self, host: &Host, port: PortId) -> u32 {
        let own = host.port(port).map_or(0, |port| port.mtu.into());
        self.mtus.get(&port).map_or(own, |mtu| own.min(*mtu))
    }
}

/// The most entries of the kernel's smaller neighbour table. All network namespaces share the tables, and only the
/// first one shows the sizes.
fn neighbour_table_size() -> u32 {
    let size = |family: &str| {
        let file = format!("/proc/sys/net/{family}/neigh/default/gc_thresh3");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    ["ipv4", "ipv6"].into_iter().filter_map(size).min().unwrap_or(TABLE)
}

impl Routers {
    pub(crate) fn start() -> std::io::Result<Self> {
        let unresolved = UnresolvedLimit::new(neighbour_table_size(), clock::cycles_in_micros(1_000_000));
        Ok(Self {
            states: BTreeMap::new(),
            paths: Vec::new(),
            version: 0,
            limits: Limits {
                quotas: Quotas::new(),
                unresolved: Arc::new(unresolved.map_err(std::io::Error::other)?),
                mtus: BTreeMap::new(),
            },
            vteps: Vteps::default(),
            builder: Builder::start()?,
            last_ticket: 0,
            table_read: Instant::now(),
        })
    }

    /// By router number, for snapshots.
    pub(crate) fn paths(&self) -> &[Option<Arc<RouterPath>>] {
        &self.paths
    }

    /// Another one whenever [`Self::paths`] has changed.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// The punt limits for a host. Interfaces whose rate has not changed keep their limits.
    pub(crate) fn quotas(&self, host: &Host) -> Result<Quotas, PolicerError> {
        let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
        let quota = |interface: &RouterInterface| {
            let (port, rate) = (interface.punt, interface.punt_limit());
            let known = self.limits.quotas.get(&port).filter(|(before, _)| *before == rate);
            let limits = match known {
                Some((_, limits)) => Arc::clone(limits),
                None => {
                    let unresolved = Arc::clone(&self.limits.unresolved);
                    Arc::new(PuntLimits::new(rate, unresolved, clock::cycles_in_micros(1_000_000))?)
                }
            };
            Ok((port, (rate, limits)))
        };
        interfaces.map(quota).collect()
    }

    /// Follows a new host. A router whose interface indexes changed starts with an empty table.
    pub(crate) fn follow(&mut self, host: &Host, quotas: Quotas) {
        let same =
            |id: &RouterId, state: &State| host.router(*id).is_some_and(|now| names(now) == state.interfaces);
        let removed: Vec<RouterId> =
            self.states.iter().filter(|(id, state)| !same(id, state)).map(|(id, _)| *id).collect();
        for state in removed.iter().filter_map(|id| self.states.remove(id)) {
            self.builder.forget(state.ticket);
        }
        for router in &host.routers {
            if !self.states.contains_key(&router.id) {
                self.last_ticket += 1;
                let (ticket, interfaces) = (self.last_ticket, names(router));
                let (kernel, tables) = (RouterState::default(), Arc::default());
                self.states.insert(router.id, State { ticket, interfaces, kernel, tables });
            }
        }
        self.limits.quotas = quotas;
        self.vteps.follow(host);
        self.fill(host);
    }

    /// Adds an update of a router's table to those that wait.
    pub(crate) fn update(&self, router: RouterId, update: Update) -> Result<(), UnknownRouter> {
        let state = self.states.get(&router).ok_or(UnknownRouter(router))?;
        self.builder.change(state.ticket, update);
        Ok(())
    }

    /// Follows EVPN, in the switch's database, too. Returns whether snapshots have to follow.
    pub(crate) fn update_evpn(
        &mut self,
        update: &EvpnUpdate,
        host: &Host,
        switching: Option<&Switching>,
    ) -> Result<bool, UnknownNetwork> {
        let has_changed = self.vteps.update(update, host)?;
        if let Some(switching) = switching {
            self.vteps.networks_mut().switch(switching, update);
        }
        if has_changed {
            self.fill(host);
        }
        Ok(has_changed)
    }

    /// Adapts the switch's database to what EVPN says, after another configuration.
    pub(crate) fn follow_switching(&mut self, switching: &Switching, tick: u32) {
        self.vteps.networks_mut().switch_all(switching, tick);
    }

    /// The remote VTEPs, and what EVPN says of networks.
    pub(crate) const fn vteps(&self) -> &Vteps {
        &self.vteps
    }

    /// How many addresses of a network found no room, since the last call.
    pub(crate) fn take_refused(&mut self, port: PortId) -> u64 {
        self.vteps.networks_mut().take_refused(port)
    }

    /// The other servers to which a port's tunnels lead.
    pub(crate) fn remotes_of(&self, port: &PortConfig) -> Vec<IpAddr> {
        self.vteps.remotes_of(port)
    }

    /// Replaces what a router's namespace says of its interfaces. Snapshots have to follow.
    pub(crate) fn set_state(
        &mut self,
        router: RouterId,
        state: RouterState,
        host: &Host,
    ) -> Result<(), UnknownRouter> {
        self.states.get_mut(&router).ok_or(UnknownRouter(router))?.kernel = state;
        self.fill(host);
        Ok(())
    }

    /// Follows the MTUs of ports' interfaces. Returns whether snapshots have to follow.
    pub(crate) fn set_mtus(&mut self, mtus: BTreeMap<PortId, u32>, host: &Host) -> bool {
        let changes_paths = mtus != self.limits.mtus && !self.paths.is_empty();
        self.limits.mtus = mtus;
        if changes_paths {
            self.fill(host);
        }
        changes_paths
    }

    pub(crate) fn views(&self, baselines: &Baselines, workers: &Workers) -> Vec<RouterView> {
        let view = |(id, state): (&RouterId, &State)| {
            let counts = baselines.router(*id, workers);
            netvm_counters::router!(filled! { RouterView from counts {
                id: *id,
                routes: state.tables.routes(),
                memory: state.tables.memory(),
                was_full: state.tables.was_full(),
            } })
        };
        self.states.iter().map(view).collect()
    }

    /// Packets punted to routers' kernels, by punt port and reason.
    pub(crate) fn punt_counts(&self) -> BTreeMap<PortId, [PuntCounts; PuntReason::COUNT]> {
        self.limits.quotas.iter().map(|(port, (_, limits))| (*port, limits.counts())).collect()
    }

    /// Follows the size of the kernel's neighbour tables, and takes the builder's new tables. Returns whether snapshots
    /// have to follow. `tick`: the time of databases of addresses.
    pub(crate) fn service(&mut self, host: &Host, tick: u32) -> bool {
        if !self.states.is_empty() && self.table_read.elapsed() >= TABLE_INTERVAL {
            self.table_read = Instant::now();
            self.limits.unresolved.set_table(neighbour_table_size());
        }
        self.vteps.age(tick);
        self.take_built(host)
    }

    /// Whether updates have not reached the workers yet.
    pub(crate) fn is_settling(&self) -> bool {
        self.builder.is_busy()
    }

    /// Takes the builder's new tables. Returns whether there were any.
    fn take_built(&mut self, host: &Host) -> bool {
        let mut built = self.builder.take();
        let mut changed = false;
        for state in self.states.values_mut() {
            if let Some(tables) = built.remove(&state.ticket) {
                state.tables = tables;
                changed = true;
            }
        }
        if changed {
            self.fill(host);
        }
        changed
    }

    fn fill(&mut self, host: &Host) {
        self.version += 1;
        self.paths.clear();
        let path = |router: &RouterConfig| {
            self.states.get(&router.id).map(|state| state.path(host, router, &self.limits))
        };
        let mut paths: Vec<RouterPath> = host.routers.iter().filter_map(path).collect();
        let shared = SharedPort::all(&paths);
        for mut path in paths.drain(..) {
            path.set_shared(&shared);
            path.tunnels = self.vteps.tunnels_of(path.id);
            crate::ids::put(&mut self.paths, path.id.index(), Arc::new(path));
        }
    }
}

/// Names of a router's interfaces, in order.
fn names(router: &RouterConfig) -> Vec<String> {
    router.interfaces.iter().map(|interface| interface.name.clone()).collect()
}

impl State {
    fn path(&self, host: &Host, router: &RouterConfig, limits: &Limits) -> RouterPath {
        let interface = |(n, interface): (usize, &RouterInterface)| {
            let (_, punts) = limits.quotas.get(&interface.punt)?;
            let known = self.kernel.interfaces.get(n).and_then(Option::as_ref);
            let mut path = InterfacePath::new(interface, limits.mtu(host, interface.port), punts, known);
            if router.nat64.is_some() {
                // The kernel accepts them because netvmd said so, for what NAT64 has made.
                path.ingress = path.ingress.without(Ingress::ACCEPTS_LOCAL);
            }
            Some(path)
        };
        // Every interface has a quota.
        let interfaces = router.interfaces.iter().enumerate().filter_map(interface).collect();
        RouterPath::new(router.id, interfaces, Arc::clone(&self.tables), &self.kernel.own_v4)
    }
}
