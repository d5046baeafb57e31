//! Virtual routers: a network namespace each, whose kernel is the control plane, and what follows it into the engine.
//!
//! Namespaces and interfaces are made before the engine opens its ports on them, and go after it has closed these. What a
//! netvmd that was killed left behind is taken over as it is: routes, neighbours, and the daemons inside.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netvm_config::model::{Host, RouterConfig, RouterId, RouterInterface};

use crate::apart::blocking;
use crate::engine_thread::EngineHandle;

mod follow;
mod kernel;
mod links;
mod namespace;
mod netlink;
mod offload;
mod rib;
#[cfg(test)]
mod tests;

use follow::{Follower, NetlinkSockets};
use links::{Interface, LinkError, Links};
use namespace::{Namespace, NamespaceError};
pub use rib::{Counts, Leads, Rib};

/// Folder in the run directory with a file for each router that is there, so that the next netvmd knows which to remove.
const FOLDER: &str = "routers";
/// MTU of an interface whose port has none, in bytes.
const ETHERNET: u32 = 1500;

/// Why a router could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// Its namespace.
    #[error("router {router}: {source}")]
    Namespace {
        /// Its name.
        router: String,
        /// Why not.
        source: NamespaceError,
    },
    /// One of its interfaces.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Something else that the kernel does for it.
    #[error("router {router}: {what}: {source}")]
    System {
        /// Its name.
        router: String,
        /// What was being done.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A router that is there.
#[derive(Debug)]
struct Made {
    namespace: Namespace,
    /// Its number in the engine and the names of its interfaces there, while it is followed.
    followed: Option<(RouterId, Vec<String>)>,
    /// It was there before this netvmd, which has not run with it yet.
    is_inherited: bool,
}

/// The routers of this host.
#[derive(Debug)]
pub struct Routers {
    made: Arc<Mutex<BTreeMap<String, Made>>>,
    follower: Follower,
    folder: PathBuf,
}

impl Routers {
    /// None so far. `run_dir`: where netvmd remembers those that it makes.
    ///
    /// # Errors
    /// No thread to follow them with.
    pub fn new(engine: EngineHandle, run_dir: &Path) -> io::Result<Self> {
        Ok(Self { made: Arc::default(), follower: Follower::start(engine)?, folder: run_dir.join(FOLDER) })
    }

    /// Makes what a host has of routers and is not there. What it does not have stays.
    ///
    /// # Errors
    /// [`RouterError`]; what was made until then stays, for [`Routers::settle`] with the host of before to remove.
    pub async fn make(&self, host: &Host) -> Result<(), RouterError> {
        if host.routers.is_empty() {
            return Ok(());
        }
        // The engine is about to empty the tables of those whose interfaces have other places, and to number them anew.
        self.forget(|name, followed| find(host, name).is_some_and(|router| *followed != of_engine(router)))
            .await;
        let (made, folder, wanted) = (Arc::clone(&self.made), self.folder.clone(), Wanted::all(host));
        blocking(move || {
            let mut made = lock(&made);
            wanted.iter().try_for_each(|router| make(&mut made, &folder, router))
        })
        .await
    }

    /// Follows the routers of the host that the engine has now, and removes everything of others.
    pub async fn settle(&self, host: &Host) {
        self.forget(|name, _| find(host, name).is_none()).await;
        for router in &host.routers {
            if let Some(made) = lock(&self.made).get_mut(&router.name)
                && let Err(error) = self.follow(made, router)
            {
                tracing::error!("router {}: following its kernel: {error}", router.name);
            }
        }
        let (made, folder, wanted) = (Arc::clone(&self.made), self.folder.clone(), Wanted::all(host));
        blocking(move || remove_others(&mut lock(&made), &folder, &wanted)).await;
    }

    /// Follows no more those for which `is_over` says so, by their names and what the engine has of them.
    async fn forget(&self, is_over: impl Fn(&str, &(RouterId, Vec<String>)) -> bool) {
        let over: Vec<RouterId> = {
            let mut made = lock(&self.made);
            let over = made.iter_mut().filter_map(|(name, made)| {
                let followed = made.followed.take_if(|followed| is_over(name, followed));
                followed.map(|(id, _)| id)
            });
            over.collect()
        };
        for id in over {
            self.follower.forget(id).await;
        }
    }

    fn follow(&self, made: &mut Made, router: &RouterConfig) -> io::Result<()> {
        made.is_inherited = false;
        if made.followed.is_none() {
            let (id, interfaces) = of_engine(router);
            let sockets = NetlinkSockets::open(&made.namespace)?;
            self.follower.follow(id, router.name.clone(), interfaces.clone(), sockets);
            made.followed = Some((id, interfaces));
        }
        Ok(())
    }

    /// What is known of a router's routes; `None` when it is not followed.
    pub async fn look<T: Send + 'static>(
        &self,
        id: RouterId,
        look: impl FnOnce(&Rib) -> T + Send + 'static,
    ) -> Option<T> {
        self.follower.look(id, look).await
    }

    /// Removes everything but what a netvmd before left and this one has never run with. The engine has closed its ports.
    pub fn remove(&self) {
        let mut made = lock(&self.made);
        for (name, made) in std::mem::take(&mut *made) {
            if made.is_inherited {
                continue;
            }
            remove(&name, made.namespace, &self.folder);
        }
    }
}

fn find<'a>(host: &'a Host, name: &str) -> Option<&'a RouterConfig> {
    host.routers.iter().find(|router| router.name == name)
}

/// What the tables in the engine are about.
fn of_engine(router: &RouterConfig) -> (RouterId, Vec<String>) {
    (router.id, router.interfaces.iter().map(|interface| interface.name.clone()).collect())
}

fn lock(made: &Mutex<BTreeMap<String, Made>>) -> MutexGuard<'_, BTreeMap<String, Made>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A router as it should be.
#[derive(Debug)]
struct Wanted {
    name: String,
    namespace: String,
    interfaces: Vec<Interface>,
}

impl Wanted {
    fn all(host: &Host) -> Vec<Self> {
        let interface = |one: &RouterInterface| Interface {
            name: one.name.clone(),
            host_end: one.host_end.clone(),
            mac: one.mac.0,
            mtu: host.port(one.port).map_or(ETHERNET, |port| u32::from(port.mtu)),
            addresses: one.addresses.iter().map(|one| (one.address, one.length)).collect(),
        };
        let router = |one: &RouterConfig| Self {
            name: one.name.clone(),
            namespace: one.namespace(),
            interfaces: one.interfaces.iter().map(interface).collect(),
        };
        host.routers.iter().map(router).collect()
    }
}

fn make(all: &mut BTreeMap<String, Made>, folder: &Path, router: &Wanted) -> Result<(), RouterError> {
    let name = &router.name;
    let system = |what| move |source| RouterError::System { router: name.clone(), what, source };
    let made = match all.entry(name.clone()) {
        Entry::Occupied(made) => made.into_mut(),
        Entry::Vacant(place) => {
            let (namespace, is_inherited) = Namespace::take(&router.namespace)
                .map_err(|source| RouterError::Namespace { router: name.clone(), source })?;
            if is_inherited {
                tracing::info!("router {name}: namespace {} is there already: taken over", namespace.name());
            }
            place.insert(Made { namespace, followed: None, is_inherited })
        }
    };
    let noted = fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(name), &router.namespace));
    noted.map_err(system("noting it in the run directory"))?;
    links::start_forwarding(&made.namespace)
        .map_err(system("starting its loopback interface and forwarding"))?;
    let mut links = Links::new(name, &made.namespace).map_err(system("opening a netlink socket"))?;
    router.interfaces.iter().try_for_each(|interface| Ok(links.see_to(interface)?))
}

/// Removes routers and interfaces that are not wanted: of this netvmd, and of one before it that was killed.
fn remove_others(all: &mut BTreeMap<String, Made>, folder: &Path, wanted: &[Wanted]) {
    let find = |name: &str| wanted.iter().find(|router| router.name == name);
    for (name, made) in all.extract_if(.., |name, _| find(name).is_none()) {
        remove(&name, made.namespace, folder);
    }
    for (name, made) in &*all {
        let interfaces = find(name).map_or(&[][..], |router| &router.interfaces);
        let keep = |end: &str| interfaces.iter().any(|interface| interface.host_end == end);
        if let Err(error) = remove_ends(name, &made.namespace, keep) {
            tracing::warn!("router {name}: removing interfaces: {error}");
        }
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if all.contains_key(&name) {
            continue;
        }
        let namespace = fs::read_to_string(entry.path()).unwrap_or_default();
        match Namespace::take(&namespace) {
            Ok((namespace, _)) => {
                tracing::info!(
                    "router {name}: a netvmd that was killed left it, and the configuration has it no more"
                );
                remove(&name, namespace, folder);
            }
            Err(error) => tracing::warn!("router {name}: {error}"),
        }
    }
}

fn remove(name: &str, namespace: Namespace, folder: &Path) {
    // The kernel removes the interfaces of a namespace later than it says, so this is not left to it.
    if let Err(error) = remove_ends(name, &namespace, |_| false) {
        tracing::warn!("router {name}: removing its interfaces: {error}");
    }
    if let Err(error) = namespace.remove() {
        tracing::warn!("router {name}: {error}");
    }
    // If it stays, the next netvmd removes what it names once more.
    let _ = fs::remove_file(folder.join(name));
}

fn remove_ends(name: &str, namespace: &Namespace, keep: impl Fn(&str) -> bool) -> io::Result<()> {
    let mut links = Links::new(name, namespace)?;
    let ends = links.ends()?;
    ends.iter().filter(|end| !keep(end)).try_for_each(|end| links.remove(end))
}
