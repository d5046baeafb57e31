// SPDX-License-Identifier: Apache-2.0
//! Virtual routers: the kernel of a network namespace is the control plane, and its routes go to the engine's FIB.
//!
//! netvmd creates namespaces and interfaces before the engine opens ports on them, and removes them when the
//! configuration no longer has them. They outlive netvmd; the next one takes them over with their routes, neighbours
//! and daemons.

mod evpn;
mod follow;
mod health;
mod kernel;
mod links;
mod managed;
pub(crate) mod namespace;
mod offload;
mod rib;
mod static_routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use netvm_model::{Host, RouterConfig, RouterId, StaticRoute};
use netvm_netlink::{Requests, index_of};
use netvm_wire::IpNet;

use crate::engine_thread::{EngineHandle, PortsClosed};
use crate::grace::{Expedited, GracePeriods};
use crate::runtime::{blocking, lock};
pub use evpn::DeviceError;
use follow::{Follower, NetlinkSockets, ToFollow};
use health::Targets;
use links::{Ipv6Disabled, LinkError};
use managed::{
    DesiredRouter, ManagedRouter, announce, configure, keep_name, make_all, remove, remove_others, take_down,
};
use namespace::NamespaceError;
use static_routes::{RemoveError, RouteError};

pub use health::TargetView;
pub use managed::Mtus;
pub(crate) use namespace::is_taken;
pub(crate) use offload::finish_packets;
pub use rib::{Counts, Destination, Neighbour, Rib, Select};

/// Folder in the run directory with a file for each router, so that the next netvmd knows which routers to remove.
const FOLDER: &str = "routers";

/// A router cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The namespace failed.
    #[error("router {router}: {source}")]
    Namespace {
        /// The router's name.
        router: String,
        /// The reason.
        source: NamespaceError,
    },
    /// An interface failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The devices of a network with EVPN failed.
    #[error("router {router}: {source}")]
    Evpn {
        /// The router's name.
        router: String,
        /// The reason.
        source: DeviceError,
    },
    /// A static route failed.
    #[error("router {router}: {source}")]
    Route {
        /// The router's name.
        router: String,
        /// The reason.
        source: RouteError,
    },
    /// A route cannot be removed.
    #[error("router {router}: {source}")]
    Remove {
        /// The router's name.
        router: String,
        /// The reason.
        source: RemoveError,
    },
    /// Another step failed.
    #[error("router {router}: {what}: {source}")]
    System {
        /// The router's name.
        router: String,
        /// The step.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The virtual routers.
#[derive(Debug)]
pub struct Routers {
    engine: EngineHandle,
    made: Arc<Mutex<BTreeMap<String, ManagedRouter>>>,
    /// MTUs of the ports' interfaces.
    mtus: Mutex<Mtus>,
    ipv6_disabled: Arc<Mutex<Ipv6Disabled>>,
    follower: Follower,
    targets: Targets,
    grace_periods: GracePeriods,
    folder: PathBuf,
    /// Routers that cannot be made now, and why.
    waiting: Mutex<BTreeMap<String, String>>,
}

impl Routers {
    /// `run_dir`: where netvmd records the routers that it creates. `record_lock`: a file on which this process holds a
    /// record lock for as long as it lives.
    ///
    /// # Errors
    /// The follower thread cannot be started.
    pub fn new(engine: EngineHandle, run_dir: &Path, record_lock: Option<PathBuf>) -> io::Result<Self> {
        let made = Arc::default();
        Ok(Self {
            targets: Targets::new(engine.clone(), Arc::clone(&made)),
            made,
            mtus: Mutex::default(),
            ipv6_disabled: Arc::default(),
            follower: Follower::start(engine.clone())?,
            engine,
            grace_periods: GracePeriods::new(record_lock),
            folder: run_dir.join(FOLDER),
            waiting: Mutex::default(),
        })
    }

    /// Expedites the kernel's grace periods while interfaces of existing routers, or of those to come, open or close.
    pub(crate) fn expedite(&self, to_come: &[RouterConfig]) -> Option<Expedited> {
        let has_routers = !to_come.is_empty() || !lock(&self.made).is_empty();
        if has_routers { self.grace_periods.expedite() } else { None }
    }

    /// Creates missing routers and interfaces of a configuration; removes none.
    ///
    /// # Errors
    /// [`RouterError`]; call [`Routers::settle`] with the previous configuration to remove what was created.
    pub async fn make(&self, host: &Host) -> Result<(), RouterError> {
        let before = lock(&self.waiting).clone();
        // A router that waited already must not prevent other changes.
        match self.make_possible(host).await.into_iter().find(|(name, _)| !before.contains_key(name)) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// As [`Routers::make`], but makes all that can be made. Returns the others with their errors; they wait.
    pub async fn make_possible(&self, host: &Host) -> Vec<(String, RouterError)> {
        let failed = self.make_each(host).await;
        let texts = failed.iter().map(|(name, error)| (name.clone(), error.to_string()));
        *lock(&self.waiting) = texts.collect();
        failed
    }

    /// The targets of NAT rules that are checked.
    pub fn targets(&self) -> Vec<TargetView> {
        self.targets.views()
    }

    /// Routers that cannot be made now, and why.
    pub fn waiting(&self) -> Vec<String> {
        lock(&self.waiting).values().cloned().collect()
    }

    async fn make_each(&self, host: &Host) -> Vec<(String, RouterError)> {
        if host.routers.is_empty() {
            return Vec::new();
        }
        // The engine is about to clear and renumber the tables of routers whose interfaces changed.
        self.forget(|name, followed| find(host, name).is_some_and(|router| *followed != of_engine(router)))
            .await;
        let (made, folder, wanted) = (Arc::clone(&self.made), self.folder.clone(), self.desired(host));
        let ipv6_disabled = Arc::clone(&self.ipv6_disabled);
        blocking(move || {
            lock(&ipv6_disabled).add(wanted.iter().flat_map(|router| &router.port_interfaces));
            let mut made = lock(&made);
            make_all(&mut made, &folder, &wanted)
        })
        .await
    }

    /// Follows the routers of the configuration that the engine runs now, checks its targets, and removes all other
    /// routers.
    pub async fn settle(&self, host: &Host) {
        self.forget(|name, _| find(host, name).is_none()).await;
        for router in &host.routers {
            if let Some(made) = lock(&self.made).get_mut(&router.name)
                && let Err(error) = self.follow(made, router, host)
            {
                tracing::error!("router {}: cannot follow its kernel: {error}", router.name);
            }
            self.follower.set_targets(router.id, vteps_of(host, router.id));
        }
        // An error means that the engine has ended.
        self.follower.set_local(self.engine.call(|engine| engine.local_addresses()).await.ok().flatten());
        let (made, folder, wanted) = (Arc::clone(&self.made), self.folder.clone(), self.desired(host));
        let ipv6_disabled = Arc::clone(&self.ipv6_disabled);
        blocking(move || {
            lock(&ipv6_disabled)
                .keep_only(&wanted.iter().flat_map(|router| &router.port_interfaces).collect());
            let mut made = lock(&made);
            remove_others(&mut made, &folder, &wanted);
            made.iter_mut().for_each(|(name, made)| announce(name, made));
        })
        .await;
        self.targets.follow(host);
    }

    /// Stops following the routers that `selects` selects.
    async fn forget(&self, selects: impl Fn(&str, &(RouterId, Vec<String>)) -> bool) {
        let over: Vec<RouterId> = {
            let mut made = lock(&self.made);
            let over = made.iter_mut().filter_map(|(name, made)| {
                let followed = made.followed.take_if(|followed| selects(name, followed));
                followed.map(|(id, _)| id)
            });
            over.collect()
        };
        for id in over {
            self.follower.forget(id).await;
        }
    }

    fn follow(&self, made: &mut ManagedRouter, router: &RouterConfig, host: &Host) -> io::Result<()> {
        made.is_inherited = false;
        if made.followed.is_none() {
            let (id, interfaces) = of_engine(router);
            let sockets = NetlinkSockets::open(&made.namespace)?;
            let mut here = Requests::open()?;
            let ends = router.interfaces.iter().map(|interface| index_of(&mut here, &interface.host_end));
            let ends = ends.collect::<io::Result<Vec<_>>>()?;
            self.follower.follow(ToFollow {
                id,
                name: router.name.clone(),
                interfaces: interfaces.iter().cloned().zip(ends).collect(),
                sockets,
            });
            made.followed = Some((id, interfaces));
        }
        let networks = evpn::find(&made.namespace, evpn::Network::all(host, router.id))?;
        self.follower.set_networks(router.id, networks);
        Ok(())
    }

    /// Runs `query` on a router's routes; `None` if the thread does not follow the router.
    pub async fn query<T: Send + 'static>(
        &self,
        id: RouterId,
        query: impl FnOnce(&Rib) -> T + Send + 'static,
    ) -> Option<T> {
        self.follower.query(id, query).await
    }

    /// Adds static routes to a router, beside those of the configuration.
    ///
    /// # Errors
    /// [`RouterError`].
    pub async fn add_routes(&self, router: &str, routes: Vec<StaticRoute>) -> Result<(), RouterError> {
        let name = router.to_owned();
        let added = self.inside(router, move || static_routes::add(&routes)).await?;
        added.map_err(|source| RouterError::Route { router: name, source })
    }

    /// Removes the static routes of a router to a prefix, except those of the configuration. `metric`: only routes with
    /// it.
    ///
    /// # Errors
    /// [`RouterError`].
    pub async fn remove_routes(
        &self,
        router: &str,
        to: IpNet,
        metric: Option<u32>,
    ) -> Result<(), RouterError> {
        let name = router.to_owned();
        let removed = self.inside(router, move || static_routes::remove(to, metric)).await?;
        removed.map_err(|source| RouterError::Remove { router: name, source })
    }

    /// Runs `work` in a router's namespace. Routers do not change meanwhile, so it must be short.
    pub(crate) async fn inside<T: Send + 'static>(
        &self,
        router: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RouterError> {
        let (made, name) = (Arc::clone(&self.made), router.to_owned());
        let run = move || lock(&made).get(&name).map(|made| made.namespace.inside(work));
        let (router, what) = (router.to_owned(), "cannot enter its namespace");
        match blocking(run).await {
            Some(outcome) => outcome.map_err(|source| RouterError::System { router, what, source }),
            None => Err(RouterError::System { router, what, source: io::ErrorKind::NotFound.into() }),
        }
    }

    /// Turns the carrier of routers' interfaces on or off, so that daemons inside react as on a physical router.
    /// `carriers`: outer ends, and whether each has a carrier. Does nothing for ends that already are in this state.
    pub async fn set_carriers(&self, carriers: Vec<(String, bool)>) {
        let outcome = blocking(move || links::set_carriers(&carriers)).await;
        if let Err(error) = outcome {
            tracing::warn!("routers: cannot change the carrier of interfaces: {error}");
        }
    }

    /// Sets the MTU of routers' interfaces to that of their port's interface, if it is smaller than the port's, so that
    /// the routers' kernels fragment packets, or send the MTU to senders (RFC 1191, RFC 8201).
    pub async fn follow_mtus(&self, host: &Host, now: Mtus) {
        let before = {
            let mut mtus = lock(&self.mtus);
            if *mtus == now {
                return;
            }
            std::mem::replace(&mut *mtus, now)
        };
        let (old, mut wanted) = (DesiredRouter::all(host, &before), self.desired(host));
        for (old, new) in old.iter().zip(&mut wanted) {
            let mut old = old.interfaces.iter();
            new.interfaces.retain(|interface| old.next().is_none_or(|old| old.mtu != interface.mtu));
        }
        let made = Arc::clone(&self.made);
        blocking(move || {
            for router in wanted.iter().filter(|router| !router.interfaces.is_empty()) {
                let mut made = lock(&made);
                let Some(known) = made.get_mut(&router.name) else { continue };
                if let Err(error) = configure(router, known) {
                    tracing::warn!("cannot change the MTU: {error}");
                }
            }
        })
        .await;
    }

    /// Binds namespaces whose name somebody removed (`ip netns del`) to their names again.
    pub async fn keep_names(&self) {
        let made = Arc::clone(&self.made);
        blocking(move || lock(&made).iter_mut().for_each(|(name, made)| keep_name(name, made))).await;
    }

    fn desired(&self, host: &Host) -> Vec<DesiredRouter> {
        DesiredRouter::all(host, &lock(&self.mtus))
    }

    /// Removes the routers (`purges`), or turns off their carriers and keeps them for the next netvmd, so that daemons
    /// inside notice that no packets pass. Does not change routers of an earlier netvmd that this one never served.
    pub(crate) fn end(&self, _: PortsClosed, purges: bool) {
        lock(&self.ipv6_disabled).keep_only(&BTreeSet::new());
        let (mut left, mut over) = (Vec::new(), Vec::new());
        for (name, made) in std::mem::take(&mut *lock(&self.made)) {
            if made.is_inherited {
                continue;
            }
            if purges {
                over.push((name, made.namespace));
                continue;
            }
            left.push((name, made.namespace));
        }
        remove(over, &self.folder);
        if !left.is_empty() {
            take_down(&left);
            let names: Vec<&str> = left.iter().map(|(_, namespace)| namespace.name()).collect();
            tracing::info!("namespaces of routers stay for the next netvmd: {}", names.join(", "));
        }
    }
}

fn find<'a>(host: &'a Host, name: &str) -> Option<&'a RouterConfig> {
    host.routers.iter().find(|router| router.name == name)
}

/// The remote VTEPs to which tunnels of a router lead.
fn vteps_of(host: &Host, router: RouterId) -> Vec<IpAddr> {
    let tunnels = host.ports.iter().filter_map(|port| port.kind.info().tunnel);
    let mut vteps: Vec<IpAddr> = tunnels
        .filter(|tunnel| tunnel.router == router)
        .flat_map(|tunnel| &tunnel.remotes)
        .copied()
        .collect();
    vteps.sort_unstable();
    vteps.dedup();
    vteps
}

/// The router's identity in the engine: its id and interfaces.
fn of_engine(router: &RouterConfig) -> (RouterId, Vec<String>) {
    (router.id, router.interfaces.iter().map(|interface| interface.name.clone()).collect())
}
