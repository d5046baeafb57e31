// SPDX-License-Identifier: Apache-2.0
//! Brings namespaces and interfaces of routers to their desired state.

mod record;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use netvm_model::{Access, Host, PortId, Resource, RouterConfig, RouterId, RouterInterface, StaticRoute};
use netvm_netlink::Requests;
use netvm_wire::IpNet;

use super::evpn::{Devices, Network, Underlays};
use super::links::{self, Interface, Links, OuterEnds};
use super::namespace::Namespace;
use super::{RouterError, static_routes};
use record::Record;

/// Default MTU in bytes.
const ETHERNET: u32 = 1500;

const RECORDING: &str = "cannot record it in the run directory";

/// MTUs of the ports' interfaces, in bytes.
pub type Mtus = BTreeMap<PortId, u32>;

/// An existing router.
#[derive(Debug)]
pub(super) struct ManagedRouter {
    pub(super) namespace: Namespace,
    /// Its id and interfaces in the engine, while the follower thread follows its kernel.
    pub(super) followed: Option<(RouterId, Vec<String>)>,
    /// An earlier netvmd created it, and this one has not served it yet.
    pub(super) is_inherited: bool,
    /// It could not be bound to its name again, and the log says so.
    is_nameless: bool,
    /// Its kernel accepts the router's own addresses as sources, because netvmd said so.
    accepts_local: bool,
    /// New interfaces, whose addresses are announced once their ports are open.
    unannounced: Vec<Interface>,
    /// What was last configured, and the file that says so.
    record: Record,
    file: PathBuf,
}

/// The desired state of a router.
#[derive(Debug)]
pub(super) struct DesiredRouter {
    pub(super) name: String,
    namespace: String,
    pub(super) interfaces: Vec<Interface>,
    /// Interfaces of its AF_XDP ports.
    pub(super) port_interfaces: Vec<String>,
    routes: Vec<StaticRoute>,
    /// Networks with EVPN.
    networks: Vec<Network>,
    /// What it takes for its own beside its addresses.
    local: BTreeSet<IpNet>,
    /// It has NAT64: its kernel may get packets whose source is the router's own address, to find their next hop.
    has_nat64: bool,
}

impl DesiredRouter {
    pub(super) fn all(host: &Host, mtus: &Mtus) -> Vec<Self> {
        let mtu = |port: PortId| {
            let own = host.port(port).map_or(ETHERNET, |port| u32::from(port.mtu));
            mtus.get(&port).map_or(own, |mtu| own.min(*mtu))
        };
        let interface = |one: &RouterInterface| Interface {
            name: one.name.clone(),
            host_end: one.host_end.clone(),
            mac: one.mac.0,
            mtu: mtu(one.port),
            addresses: one.addresses.iter().map(|one| (one.address, one.length)).collect(),
        };
        let router = |one: &RouterConfig| Self {
            name: one.name.clone(),
            namespace: one.namespace(),
            interfaces: one.interfaces.iter().map(interface).collect(),
            port_interfaces: one.interfaces.iter().filter_map(|one| port_interface(host, one.port)).collect(),
            routes: one.routes.clone(),
            networks: Network::all(host, one.id),
            local: host.local_prefixes(one),
            has_nat64: one.nat64.is_some(),
        };
        host.routers.iter().map(router).collect()
    }
}

/// The interface whose packets a port takes from the kernel.
fn port_interface(host: &Host, port: PortId) -> Option<String> {
    host.port(port)?.kind.info().resources().find_map(|resource| match resource {
        Resource::Interface(interface, Access::Xdp) => Some(interface.to_owned()),
        _ => None,
    })
}

/// Makes all that can be made. Returns the other routers, with their errors.
pub(super) fn make_all(
    all: &mut BTreeMap<String, ManagedRouter>,
    folder: &Path,
    wanted: &[DesiredRouter],
) -> Vec<(String, RouterError)> {
    let mut failed = BTreeMap::new();
    for router in wanted {
        if let Err(error) = make(all, folder, router) {
            failed.insert(router.name.clone(), error);
        }
    }
    for router in wanted {
        if !failed.contains_key(&router.name)
            && let Err(error) = make_devices(all, router)
        {
            failed.insert(router.name.clone(), error);
        }
    }
    failed.into_iter().collect()
}

fn make(
    all: &mut BTreeMap<String, ManagedRouter>,
    folder: &Path,
    router: &DesiredRouter,
) -> Result<(), RouterError> {
    let name = &router.name;
    let system = |what| move |source| RouterError::System { router: name.clone(), what, source };
    let made = match all.entry(name.clone()) {
        Entry::Occupied(made) => made.into_mut(),
        Entry::Vacant(place) => {
            let (namespace, is_inherited) = Namespace::take(&router.namespace)
                .map_err(|source| RouterError::Namespace { router: name.clone(), source })?;
            if is_inherited {
                tracing::info!("router {name}: taking over the existing namespace {}", namespace.name());
            }
            let file = folder.join(name);
            let known = Record::read(&file);
            // Once, because somebody may change these settings afterwards.
            if known.is_none() {
                links::start_forwarding(&namespace)
                    .map_err(system("cannot bring up loopback and enable forwarding"))?;
            }
            let mut record = known.unwrap_or_default();
            record.namespace.clone_from(&router.namespace);
            record.write(&file).map_err(system(RECORDING))?;
            place.insert(ManagedRouter {
                namespace,
                followed: None,
                is_inherited,
                is_nameless: false,
                accepts_local: false,
                unannounced: Vec::new(),
                record,
                file,
            })
        }
    };
    let new = configure(router, made)?;
    made.unannounced.extend(new);
    if made.accepts_local != router.has_nat64 {
        let accepted = made.namespace.inside(|| links::accept_local(router.has_nat64)).flatten();
        accepted.map_err(system("cannot set accept_local"))?;
        made.accepts_local = router.has_nat64;
    }
    let routed = made
        .namespace
        .inside(|| static_routes::set(&router.routes).and_then(|()| static_routes::set_local(&router.local)));
    let routed = routed.map_err(system("cannot enter its namespace"))?;
    routed.map_err(|source| RouterError::Route { router: name.clone(), source })
}

/// Brings the devices of a router's networks with EVPN to their desired state. Needs the namespaces of all routers.
fn make_devices(all: &BTreeMap<String, ManagedRouter>, router: &DesiredRouter) -> Result<(), RouterError> {
    let name = &router.name;
    let system = |what| move |source| RouterError::System { router: name.clone(), what, source };
    let Some(made) = all.get(name) else { return Ok(()) };
    let open = |name: &str| Some(all.get(name)?.namespace.inside(Requests::open).flatten());
    let underlays = Underlays::open(&router.networks, open);
    let mut underlays = underlays.map_err(system("cannot open a netlink socket"))?;
    let devices = made.namespace.inside(|| Devices::set(&router.networks, &mut underlays));
    let devices = devices.map_err(system("cannot enter its namespace"))?;
    devices.map_err(|source| RouterError::Evpn { router: name.clone(), source })
}

/// Creates or changes a router's interfaces to their desired state; returns those that it created.
pub(super) fn configure(
    router: &DesiredRouter,
    made: &mut ManagedRouter,
) -> Result<Vec<Interface>, RouterError> {
    let name = &router.name;
    let failed = |what| move |source| RouterError::System { router: name.clone(), what, source };
    let mut links = Links::new(name, &made.namespace).map_err(failed("cannot open a netlink socket"))?;
    let mut new = Vec::new();
    for interface in &router.interfaces {
        let before = made.record.interfaces.get(&interface.host_end).copied();
        if links.configure(interface, before)? {
            new.push(interface.clone());
        }
        made.record.interfaces.insert(interface.host_end.clone(), interface.configured());
    }
    made.record.write(&made.file).map_err(failed(RECORDING))?;
    Ok(new)
}

/// Announces the addresses of new interfaces.
pub(super) fn announce(name: &str, made: &mut ManagedRouter) {
    let new = std::mem::take(&mut made.unannounced);
    if new.is_empty() {
        return;
    }
    let announced = Links::new(name, &made.namespace).and_then(|links| links.announce(&new));
    if let Err(error) = announced {
        tracing::warn!("router {name}: cannot announce its addresses: {error}");
    }
}

/// Binds a router's namespace to its name again if somebody removed the name, because `ip netns exec` and the next
/// netvmd need it. Logs a failure once.
pub(super) fn keep_name(name: &str, made: &mut ManagedRouter) {
    let namespace = &made.namespace;
    match namespace.keep_name() {
        Ok(was_removed) => {
            made.is_nameless = false;
            if was_removed {
                tracing::warn!(
                    "router {name}: the name of its namespace {} was removed (`ip netns del`): netvmd bound it again, and goes \
                     on; to remove the router, apply a configuration without it",
                    namespace.name()
                );
            }
        }
        Err(error) => {
            if !std::mem::replace(&mut made.is_nameless, true) {
                tracing::warn!("router {name}: its namespace has lost its name: {error}");
            }
        }
    }
}

/// Removes routers and interfaces that the configuration does not have, also those of a killed netvmd.
pub(super) fn remove_others(
    all: &mut BTreeMap<String, ManagedRouter>,
    folder: &Path,
    wanted: &[DesiredRouter],
) {
    let find = |name: &str| wanted.iter().find(|router| router.name == name);
    let mut over: Vec<(String, Namespace)> = all
        .extract_if(.., |name, _| find(name).is_none())
        .map(|(name, made)| (name, made.namespace))
        .collect();
    if let Some(outer_ends) = look_up_ends() {
        for (name, made) in &mut *all {
            let interfaces = find(name).map_or(&[][..], |router| &router.interfaces);
            let keep = |end: &String| interfaces.iter().any(|interface| interface.host_end == *end);
            made.record.interfaces.retain(|end, _| keep(end));
            let over = outer_ends
                .of(&made.namespace)
                .map(|ends| ends.into_iter().filter(|end| !keep(end)).collect::<Vec<_>>());
            if let Err(error) = over.and_then(|ends| links::remove_all(&ends)) {
                tracing::warn!("router {name}: cannot remove interfaces: {error}");
            }
        }
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if all.contains_key(&name) {
            continue;
        }
        let Record { namespace, .. } = Record::read(&entry.path()).unwrap_or_default();
        match Namespace::take(&namespace) {
            Ok((namespace, _)) => {
                tracing::info!(
                    "router {name}: removing it: a killed netvmd left it, and the configuration does not have it"
                );
                over.push((name, namespace));
            }
            Err(error) => tracing::warn!("router {name}: {error}"),
        }
    }
    remove(over, folder);
}

/// Removes routers: the interfaces of all at once, because the kernel takes hardly longer than for one.
pub(super) fn remove(routers: Vec<(String, Namespace)>, folder: &Path) {
    if routers.is_empty() {
        return;
    }
    // Explicitly, because the kernel removes a namespace's interfaces some time after the namespace.
    let mut all = Vec::new();
    if let Some(outer_ends) = look_up_ends() {
        for (name, namespace) in &routers {
            match outer_ends.of(namespace) {
                Ok(ends) => all.extend(ends),
                Err(error) => tracing::warn!("router {name}: cannot look up its interfaces: {error}"),
            }
        }
    }
    if let Err(error) = links::remove_all(&all) {
        let names: Vec<&str> = routers.iter().map(|(name, _)| &name[..]).collect();
        tracing::warn!("cannot remove the interfaces of routers {}: {error}", names.join(", "));
    }
    for (name, namespace) in routers {
        if let Err(error) = namespace.remove() {
            tracing::warn!("router {name}: {error}");
        }
        // If this fails, the next netvmd tries to remove the router again.
        let _ = fs::remove_file(folder.join(name));
    }
}

/// Turns off the carrier of routers' interfaces.
pub(super) fn take_down(routers: &[(String, Namespace)]) {
    let Some(outer_ends) = look_up_ends() else { return };
    for (name, namespace) in routers {
        if let Err(error) = outer_ends.of(namespace).and_then(|ends| links::take_down(&ends)) {
            tracing::warn!("router {name}: cannot take down its interfaces: {error}");
        }
    }
}

/// Logs a failure.
fn look_up_ends() -> Option<OuterEnds> {
    OuterEnds::look_up()
        .inspect_err(|error| tracing::warn!("cannot look up the interfaces of routers: {error}"))
        .ok()
}
