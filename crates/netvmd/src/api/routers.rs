// SPDX-License-Identifier: Apache-2.0
//! Virtual routers and their routes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use netvm_api::{
    AddRoutes, Done, MAX_ROUTES, NeighbourInfo, PuntInfo, RemoveRoutes, RouteAction, RouteHop, RouteInfo,
    RouteQuery, RouterInfo, RouterInterfaceInfo, RouterRoutes,
};
use netvm_counters::filled;
use netvm_engine::{DropReason, PortView, PuntCounts, PuntReason, RouterCounts};
use netvm_model::{Host, RouterConfig, RouterInterface};
use netvm_wire::{IpNet, VlanId};

use super::Failure;
use super::traffic::{Views, views};
use crate::daemon::{ApplyError, Daemon};
use crate::routers::{Counts, Destination, Neighbour, Rib, RouterError, Select};

pub(super) async fn list(State(daemon): State<Arc<Daemon>>) -> Result<Json<Vec<RouterInfo>>, Failure> {
    let views = views(&daemon).await?;
    Ok(Json(infos(&daemon, &views).await))
}

/// All virtual routers.
pub(super) async fn infos(daemon: &Daemon, views: &Views) -> Vec<RouterInfo> {
    let mut infos = Vec::new();
    for router in &views.host.routers {
        let state = daemon.routers().query(router.id, KernelState::of).await.unwrap_or_default();
        infos.push(info(views, router, &state));
    }
    infos
}

pub(super) async fn routes(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<RouteQuery>, QueryRejection>,
) -> Result<Json<RouterRoutes>, Failure> {
    let (Path(name), Query(query)) = (name?, query?);
    let most = query.most.unwrap_or(MAX_ROUTES).min(MAX_ROUTES);
    let select = Select::of(&query)?;
    let views = views(&daemon).await?;
    let router = named(&views.host, &name)?;
    let read = move |rib: &Rib| {
        let mut all = rib.routes(select);
        let routes: Vec<RouteInfo> =
            all.by_ref().take(most).map(|(net, destination)| route(rib, net, destination)).collect();
        (KernelState::of(rib), all.count() as u64, routes)
    };
    let (state, more, routes) = daemon.routers().query(router.id, read).await.unwrap_or_default();
    Ok(Json(RouterRoutes { router: info(&views, router, &state), routes, more }))
}

fn named<'a>(host: &'a Host, name: &str) -> Result<&'a RouterConfig, Failure> {
    host.routers.iter().find(|router| router.name == name).ok_or_else(|| {
        let message = format!("no virtual router `{name}`: `netvm router` lists the routers");
        Failure::new(StatusCode::NOT_FOUND, message)
    })
}

pub(super) async fn add(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
    request: Result<Json<AddRoutes>, JsonRejection>,
) -> Result<Json<Done>, Failure> {
    let (Path(name), Json(AddRoutes { toml })) = (name?, request?);
    let host = daemon.running().await?;
    let router = named(&host, &name)?;
    let routes =
        netvm_config::parse_routes("the routes", &toml, &host, router).map_err(ApplyError::Config)?;
    let message = match &routes[..] {
        [] => return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "no routes: give `routes`")),
        [route] => format!("router {name}: route to {} added", route.to),
        several => format!("router {name}: {} routes added", several.len()),
    };
    daemon.routers().add_routes(&name, routes).await.map_err(|error| refused(&error))?;
    Ok(Json(Done { message }))
}

pub(super) async fn remove(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<RemoveRoutes>, QueryRejection>,
) -> Result<Json<Done>, Failure> {
    let (Path(name), Query(RemoveRoutes { prefix, metric })) = (name?, query?);
    named(&*daemon.running().await?, &name)?;
    let to: IpNet = prefix.parse().map_err(|error| {
        Failure::new(StatusCode::BAD_REQUEST, format!("`{prefix}`: {error}: write it as in `2001:db8::/32`"))
    })?;
    daemon.routers().remove_routes(&name, to, metric).await.map_err(|error| refused(&error))?;
    Ok(Json(Done { message: format!("router {name}: route to {to} removed") }))
}

/// The kernel or the router refuses a change.
fn refused(error: &RouterError) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
}

pub(super) async fn neighbours(
    State(daemon): State<Arc<Daemon>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Vec<NeighbourInfo>>, Failure> {
    let Path(name) = name?;
    let host = daemon.running().await?;
    let id = named(&host, &name)?.id;
    let read = |rib: &Rib| {
        let info = |(address, interface, neighbour): (IpAddr, &str, Neighbour)| NeighbourInfo {
            address: address.to_string(),
            interface: interface.to_owned(),
            mac: neighbour.mac.to_string(),
            is_stale: neighbour.is_stale,
        };
        rib.neighbours().map(info).collect()
    };
    Ok(Json(daemon.routers().query(id, read).await.unwrap_or_default()))
}

impl Select {
    fn of(query: &RouteQuery) -> Result<Self, Failure> {
        fn parsed<T: FromStr>(name: &str, text: &Option<String>) -> Result<Option<T>, Failure> {
            let Some(text) = text else { return Ok(None) };
            let message =
                || format!("`{name}={text}`: write it as in `2001:db8::/32`; an `address` has no length");
            let value = text.parse().map_err(|_| Failure::new(StatusCode::BAD_REQUEST, message()))?;
            Ok(Some(value))
        }
        if let Some(family) = query.family.filter(|family| ![4, 6].contains(family)) {
            let message = format!("`family={family}`: must be 4 or 6");
            return Err(Failure::new(StatusCode::BAD_REQUEST, message));
        }
        Ok(Self {
            family: query.family,
            prefix: parsed("prefix", &query.prefix)?,
            address: parsed("address", &query.address)?,
            after: parsed("after", &query.after)?,
        })
    }
}

/// Routes, addresses and neighbours in a router's kernel.
#[derive(Default)]
struct KernelState {
    counts: Counts,
    /// By its place in the configuration.
    interfaces: BTreeMap<usize, KernelInterface>,
}

/// An interface as its namespace has it.
#[derive(Clone, Default)]
struct KernelInterface {
    name: String,
    mac: String,
    addresses: Vec<String>,
}

impl KernelState {
    fn of(rib: &Rib) -> Self {
        let interfaces = rib.own_interfaces().map(|(place, name, mac, addresses)| {
            let addresses = addresses.iter().map(|(address, length)| format!("{address}/{length}")).collect();
            (place.into(), KernelInterface { name: name.to_owned(), mac: mac.to_string(), addresses })
        });
        Self { counts: rib.counts(), interfaces: interfaces.collect() }
    }
}

fn info(views: &Views, router: &RouterConfig, state: &KernelState) -> RouterInfo {
    let of_kernel = state.counts;
    let view = views.routers.iter().find(|view| view.id == router.id);
    let counts =
        view.map(|view| netvm_counters::router!(filled! { RouterCounts from view {} })).unwrap_or_default();
    netvm_counters::router!(filled! { RouterInfo from counts {
        name: router.name.clone(),
        namespace: router.namespace(),
        interfaces: router
            .interfaces
            .iter()
            .enumerate()
            .map(|(place, one)| interface(views, one, state.interfaces.get(&place)))
            .collect(),
        routes_v4: of_kernel.routes_v4 as u64,
        routes_v6: of_kernel.routes_v6 as u64,
        neighbours: of_kernel.neighbours as u64,
        next_hops: of_kernel.next_hops as u64,
        table_bytes: view.map_or(0, |view| view.memory as u64),
        has_rules: of_kernel.has_rules,
        has_nat: of_kernel.has_nat,
        is_full: is_full(views, router, of_kernel),
    } })
}

/// Whether packets of some routes go to the router's kernel for want of a next hop, or of room in the engine's table.
pub(super) fn is_full(views: &Views, router: &RouterConfig, counts: Counts) -> bool {
    let view = views.routers.iter().find(|view| view.id == router.id);
    counts.refused > 0 || view.is_some_and(|view| view.was_full)
}

fn interface(
    views: &Views,
    interface: &RouterInterface,
    kernel: Option<&KernelInterface>,
) -> RouterInterfaceInfo {
    let name = |id| views.host.port(id).map_or_else(String::new, |port| port.name.clone());
    let view = |id| views.ports.iter().find(|port| port.id == id);
    let punt = view(interface.punt);
    let over_quota = |port: &PortView| {
        let all = port.drops.iter().filter(|(reason, _)| *reason == DropReason::PuntQuota);
        all.map(|(_, count)| *count).sum()
    };
    let passed = punt.map(|port| port.router_interface).unwrap_or_default();
    netvm_counters::interface!(filled! { RouterInterfaceInfo from passed {
        name: kernel.map_or_else(|| interface.name.clone(), |kernel| kernel.name.clone()),
        port: name(interface.port),
        vlan: interface.vlan.map(VlanId::get),
        mac: kernel.map_or_else(|| interface.mac.to_string(), |kernel| kernel.mac.clone()),
        addresses: kernel.map(|kernel| kernel.addresses.clone()).unwrap_or_default(),
        punt_port: name(interface.punt),
        punted: punt.map_or(0, |port| port.tx_packets),
        from_kernel: punt.map_or(0, |port| port.rx_packets),
        over_quota: view(interface.port).map_or(0, over_quota),
        punts: punts(views, interface),
    } })
}

fn punts(views: &Views, interface: &RouterInterface) -> Vec<PuntInfo> {
    let counts = views.punts.get(&interface.punt).copied().unwrap_or_default();
    let info = |(reason, counts): (PuntReason, PuntCounts)| PuntInfo {
        class: reason.class().name().to_owned(),
        reason: reason.name().to_owned(),
        punted: counts.punted,
        dropped: counts.dropped,
    };
    let seen = |(_, counts): &(PuntReason, PuntCounts)| *counts != PuntCounts::default();
    PuntReason::ALL.into_iter().zip(counts).filter(seen).map(info).collect()
}

fn route(rib: &Rib, net: IpNet, destination: Destination<'_>) -> RouteInfo {
    let (action, gateways) = match destination {
        Destination::Kernel => (RouteAction::Punt, &[][..]),
        Destination::Blackhole => (RouteAction::Blackhole, &[][..]),
        Destination::Gateways(gateways) => (RouteAction::Forward, gateways),
    };
    let hops = gateways.iter().map(|gateway| {
        let (mac, interface) = rib.peer(gateway.peer);
        RouteHop {
            interface: interface.map(str::to_owned),
            address: gateway.peer.1.to_string(),
            mac: mac.map(|mac| mac.to_string()),
            weight: gateway.weight,
        }
    });
    RouteInfo { prefix: net.to_string(), action, hops: hops.collect() }
}
