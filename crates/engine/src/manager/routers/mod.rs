//! Virtual routers: what the control plane says of each, and what workers get of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_config::model::{Host, Rate, RouterConfig, RouterId, RouterInterface};
use netvm_region::clock;
use netvm_router::{Tables, Update};
use netvm_switch::{Meter, PolicerError};

use super::Engine;
use crate::ids::PortId;
use crate::router::{InterfacePath, RouterPath};

mod builder;
mod trace;

use builder::Builder;

/// There is no router of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no router {0}: it was taken out of the configuration")]
pub struct UnknownRouter(pub RouterId);

/// How a router does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterView {
    /// Its number.
    pub id: RouterId,
    /// Packets that were forwarded by its table.
    pub forwarded: u64,
    /// Packets that its kernel got.
    pub punted: u64,
    /// Packets that came from its kernel.
    pub from_kernel: u64,
    /// Routes of IPv4 and of IPv6 that workers know.
    pub routes: (usize, usize),
    /// Bytes of the table that workers read; there are two of them.
    pub memory: usize,
}

/// All of them.
pub(crate) struct Routers {
    states: BTreeMap<RouterId, State>,
    /// By number, for snapshots.
    paths: Vec<Option<Arc<RouterPath>>>,
    quotas: Quotas,
    builder: Builder,
    last_ticket: u64,
}

/// One of them.
struct State {
    /// What the builder knows it by; never used twice.
    ticket: u64,
    /// Names of its interfaces, whose places the table is about.
    places: Vec<String>,
    tables: Arc<Tables>,
}

/// What kernels get of interfaces at most, by punt port.
pub(crate) type Quotas = BTreeMap<PortId, (Rate, Arc<Meter>)>;

impl Routers {
    pub(crate) fn start() -> std::io::Result<Self> {
        Ok(Self {
            states: BTreeMap::new(),
            paths: Vec::new(),
            quotas: Quotas::new(),
            builder: Builder::start()?,
            last_ticket: 0,
        })
    }

    /// For snapshots, by number.
    pub(crate) fn paths(&self) -> &[Option<Arc<RouterPath>>] {
        &self.paths
    }

    /// The token buckets for a host: those that there are, where their rates stay.
    pub(crate) fn quotas(&self, host: &Host) -> Result<Quotas, PolicerError> {
        let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
        let quota = |interface: &RouterInterface| {
            let (port, rate) = (interface.punt, interface.punt_limit());
            let known = self.quotas.get(&port).filter(|(before, _)| *before == rate);
            let meter = match known {
                Some((_, meter)) => Arc::clone(meter),
                None => {
                    let hz = clock::cycles_in_micros(1_000_000);
                    Arc::new(Meter::new(Some((rate.per_second, rate.burst)), None, hz)?)
                }
            };
            Ok((port, (rate, meter)))
        };
        interfaces.map(quota).collect()
    }

    /// Makes them those of a host. A router whose interfaces have other places than before begins with an empty table.
    pub(crate) fn follow(&mut self, host: &Host, quotas: Quotas) {
        let same =
            |id: &RouterId, state: &State| host.router(*id).is_some_and(|now| places(now) == state.places);
        let gone: Vec<RouterId> =
            self.states.iter().filter(|(id, state)| !same(id, state)).map(|(id, _)| *id).collect();
        for state in gone.iter().filter_map(|id| self.states.remove(id)) {
            self.builder.forget(state.ticket);
        }
        for router in &host.routers {
            if !self.states.contains_key(&router.id) {
                self.last_ticket += 1;
                let (ticket, places) = (self.last_ticket, places(router));
                self.states.insert(router.id, State { ticket, places, tables: Arc::default() });
            }
        }
        self.quotas = quotas;
        self.fill(host);
    }

    /// Whether tables are on their way to workers.
    pub(crate) fn is_settling(&self) -> bool {
        self.builder.is_busy()
    }

    /// Takes what the builder has made; returns whether there was anything.
    fn take_made(&mut self, host: &Host) -> bool {
        let mut made = self.builder.take();
        let mut changed = false;
        for state in self.states.values_mut() {
            if let Some(tables) = made.remove(&state.ticket) {
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
        self.paths.clear();
        for router in &host.routers {
            let Some(state) = self.states.get(&router.id) else { continue };
            crate::ids::put(
                &mut self.paths,
                router.id.index(),
                Arc::new(state.path(host, router, &self.quotas)),
            );
        }
    }
}

fn places(router: &RouterConfig) -> Vec<String> {
    router.interfaces.iter().map(|interface| interface.name.clone()).collect()
}

impl State {
    fn path(&self, host: &Host, router: &RouterConfig, quotas: &Quotas) -> RouterPath {
        let interface = |interface: &RouterInterface| {
            let (_, quota) = quotas.get(&interface.punt)?;
            Some(InterfacePath {
                port: interface.port,
                vlan: interface.vlan,
                mac: interface.mac,
                // Without its port nothing leaves by it, and the kernel is told of that.
                mtu: host.port(interface.port).map_or(0, |port| port.mtu.into()),
                punt: interface.punt,
                quota: Arc::clone(quota),
            })
        };
        // Each has its quota.
        let interfaces = router.interfaces.iter().filter_map(interface).collect();
        RouterPath::new(router.id, interfaces, Arc::clone(&self.tables))
    }
}

impl Engine {
    /// Changes the table of a router. It takes effect a few milliseconds later, all of it at once; what is said until
    /// then is put together, so that this can be called often.
    ///
    /// Hops name interfaces by their place in [`RouterConfig::interfaces`]. A host that is applied and changes these
    /// places empties the table: all of it is to be said again.
    ///
    /// # Errors
    /// [`UnknownRouter`]; nothing is changed.
    pub fn update_router(&mut self, router: RouterId, update: Update) -> Result<(), UnknownRouter> {
        let state = self.routers.states.get(&router).ok_or(UnknownRouter(router))?;
        self.routers.builder.change(state.ticket, update);
        Ok(())
    }

    /// The routers.
    #[must_use]
    pub fn routers(&self) -> Vec<RouterView> {
        let view = |(id, state): (&RouterId, &State)| {
            let sum = |of: fn(&crate::counters::RouterCounters) -> &crate::counters::Counter| {
                self.sum(|worker| worker.routers.get(id.index()).map_or(0, |router| of(router).get()))
            };
            RouterView {
                id: *id,
                forwarded: sum(|router| &router.forwarded),
                punted: sum(|router| &router.punted),
                from_kernel: sum(|router| &router.from_kernel),
                routes: state.tables.routes(),
                memory: state.tables.memory(),
            }
        };
        self.routers.states.iter().map(view).collect()
    }

    /// Gives workers the tables that are ready.
    pub(crate) fn serve_routers(&mut self) {
        if self.routers.take_made(&self.host) {
            self.send_snapshots();
        }
    }
}
