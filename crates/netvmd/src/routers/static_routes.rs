// SPDX-License-Identifier: Apache-2.0
//! Static routes of the configuration in a router's kernel, and local ones for the addresses of NAT. They have their
//! own protocol number, so that netvmd does not remove other routes.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteNextHop, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_model::{RouteTarget, StaticRoute};

use super::kernel;
use super::rib;
use netvm_netlink::Requests;
use netvm_netlink::{index_of, route_address};
use netvm_wire::IpNet;

/// Marks routes from the configuration (`rtm_protocol`); numbers from 4 on are for userspace.
const OURS: RouteProtocol = RouteProtocol::Other(netvm_netlink::OURS);
/// `RT_TABLE_MAIN`.
const MAIN: u8 = 254;
/// `RT_TABLE_LOCAL`.
const LOCAL: u8 = 255;
/// The metric that the kernel gives IPv6 routes without one (`IP6_RT_PRIO_USER`).
const METRIC_V6: u32 = 1024;

/// A route cannot be set.
#[derive(Debug, thiserror::Error)]
#[error("route to {to}: {source}{}", remedy(.source))]
pub struct RouteError {
    to: String,
    source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EEXIST) => {
            " (the namespace already has a route to this destination: remove it, or give this one another `metric`)"
        }
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => {
            " (the gateway is in no network of the router's interfaces: give one of them an address in it)"
        }
        _ => "",
    }
}

/// A route cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The route does not exist.
    #[error("no route to {0}: `netvm router show` lists the routes")]
    Unknown(IpNet),
    /// The configuration has it.
    #[error(
        "the route to {0} belongs to the configuration: remove it from `routes` of the [[router]] and apply that"
    )]
    Configured(IpNet),
    /// A daemon or the kernel added it, and would add it again.
    #[error("the route to {0} is not static (protocol {1}): the program that made it must remove it")]
    Foreign(IpNet, u8),
    /// The kernel refuses.
    #[error("route to {0}: {1}")]
    System(IpNet, io::Error),
}

/// Adds static routes beside those of the configuration, in the calling thread's namespace.
///
/// # Errors
/// [`RouteError`] names the first route that the kernel refuses.
pub(super) fn add(routes: &[StaticRoute]) -> Result<(), RouteError> {
    for route in routes {
        let add = || {
            let mut requests = Requests::open()?;
            let mut message = message(&mut requests, route)?;
            message.header.protocol = RouteProtocol::Static;
            requests.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
        };
        add().map_err(|source| RouteError { to: route.to.to_string(), source })?;
    }
    Ok(())
}

/// Removes the static routes to a prefix that clients added, in the calling thread's namespace. `metric`: only routes
/// with it.
///
/// # Errors
/// [`RemoveError`].
pub(super) fn remove(to: IpNet, metric: Option<u32>) -> Result<(), RemoveError> {
    let failed = |source| RemoveError::System(to, source);
    let mut requests = Requests::open().map_err(failed)?;
    let selects = |route: &RouteMessage| {
        route.header.table == MAIN
            && kernel::destination(route) == Some(to)
            && metric.is_none_or(|metric| metric == metric_of(route))
    };
    let found = routes(&mut requests, selects).map_err(failed)?;
    let is_static =
        |route: &&RouteMessage| matches!(route.header.protocol, RouteProtocol::Static | RouteProtocol::Boot);
    match found.first() {
        None => return Err(RemoveError::Unknown(to)),
        Some(_) if found.iter().any(|route| is_static(&route)) => {}
        Some(route) if route.header.protocol == OURS => return Err(RemoveError::Configured(to)),
        Some(route) => return Err(RemoveError::Foreign(to, route.header.protocol.into())),
    }
    for route in found.iter().filter(is_static) {
        requests.change(RouteNetlinkMessage::DelRoute(route.clone()), 0).map_err(failed)?;
    }
    Ok(())
}

/// Adds the routes of a configuration and removes those of an earlier one, in the calling thread's namespace.
///
/// # Errors
/// [`RouteError`] names the first route that the kernel refuses.
pub(super) fn set(wanted: &[StaticRoute]) -> Result<(), RouteError> {
    let failed = |to: &str| {
        let to = to.to_owned();
        move |source| RouteError { to, source }
    };
    let mut requests = Requests::open().map_err(failed("anywhere"))?;
    let installed = configured(&mut requests).map_err(failed("anywhere"))?;
    let mut missing = Vec::new();
    let mut kept = BTreeSet::new();
    for route in wanted {
        let is_same = |(_, installed): &(usize, &RouteMessage)| is_same(&mut requests, route, installed);
        match installed.iter().enumerate().find(is_same) {
            Some((n, _)) => drop(kept.insert(n)),
            None => missing.push(route),
        }
    }
    // Removes before it adds: a changed route may have the same destination and metric as before.
    for (_, old) in installed.into_iter().enumerate().filter(|(n, _)| !kept.contains(n)) {
        delete(&mut requests, old).map_err(failed("an earlier destination"))?;
    }
    for route in missing {
        let add = |requests: &mut Requests| {
            let message = message(requests, route)?;
            requests.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
        };
        add(&mut requests).map_err(failed(&route.to.to_string()))?;
    }
    Ok(())
}

/// As [`set`], for the prefixes that the router takes for its own beside its addresses, as with `ip route add local`.
///
/// # Errors
/// [`RouteError`] names the first prefix that the kernel refuses.
pub(super) fn set_local(wanted: &BTreeSet<IpNet>) -> Result<(), RouteError> {
    let failed = |to: String| move |source| RouteError { to, source };
    let mut missing = wanted.clone();
    let mut set = || {
        let mut requests = Requests::open()?;
        let is_ours =
            |route: &RouteMessage| route.header.protocol == OURS && route.header.kind == RouteType::Local;
        for old in routes(&mut requests, is_ours)? {
            if !kernel::destination(&old).is_some_and(|net| missing.remove(&net)) {
                delete(&mut requests, old)?;
            }
        }
        let loopback = index_of(&mut requests, "lo")?;
        Ok((requests, loopback))
    };
    let (mut requests, loopback) = set().map_err(failed("addresses of NAT".to_owned()))?;
    for net in missing {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            table: LOCAL,
            scope: if net.is_v4() { RouteScope::Host } else { RouteScope::Universe },
            kind: RouteType::Local,
            ..header_to(net)
        };
        message.attributes.push(RouteAttribute::Destination(route_address(net.network())));
        message.attributes.extend(loopback.map(RouteAttribute::Oif));
        match requests.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL) {
            // It is an address of the router already.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other.map_err(failed(net.to_string()))?,
        }
    }
    Ok(())
}

/// Removes a route, if the kernel has not removed it with its interface.
fn delete(requests: &mut Requests, route: RouteMessage) -> io::Result<()> {
    match requests.change(RouteNetlinkMessage::DelRoute(route), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// The installed static routes that come from a configuration.
fn configured(requests: &mut Requests) -> io::Result<Vec<RouteMessage>> {
    routes(requests, |route| route.header.protocol == OURS && route.header.kind != RouteType::Local)
}

/// The installed routes of both families that `selects` selects.
fn routes(requests: &mut Requests, selects: impl Fn(&RouteMessage) -> bool) -> io::Result<Vec<RouteMessage>> {
    let mut all = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let found = requests.dump(&RouteNetlinkMessage::GetRoute(question), Vec::new, |found, message| {
            if let RouteNetlinkMessage::NewRoute(route) = message
                && selects(&route)
            {
                found.push(route);
            }
        });
        match found {
            Ok(found) => all.extend(found),
            // A kernel without IPv6.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// A route's metric; 0 without one.
fn metric_of(route: &RouteMessage) -> u32 {
    let metric = |one: &RouteAttribute| match one {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    };
    route.attributes.iter().find_map(metric).unwrap_or_default()
}

fn is_same(requests: &mut Requests, wanted: &StaticRoute, installed: &RouteMessage) -> bool {
    let default = if wanted.to.is_v4() { 0 } else { METRIC_V6 };
    if kernel::destination(installed) != Some(wanted.to)
        || metric_of(installed) != wanted.metric.unwrap_or(default)
    {
        return false;
    }
    match (&wanted.target, kernel::target(installed)) {
        (RouteTarget::Blackhole, Some(rib::RouteTarget::Blackhole)) => true,
        (RouteTarget::Connected(name), Some(rib::RouteTarget::Connected(index))) => {
            index_of(requests, name).ok().flatten() == Some(index)
        }
        (RouteTarget::Gateways { via, interface }, Some(rib::RouteTarget::Gateways(hops))) => {
            let wanted: BTreeSet<IpAddr> = via.iter().copied().collect();
            let found: BTreeSet<IpAddr> = hops.iter().map(|hop| hop.peer.1).collect();
            let index = interface.as_ref().map(|name| index_of(requests, name).ok().flatten());
            wanted == found && index.is_none_or(|index| hops.iter().all(|hop| Some(hop.peer.0) == index))
        }
        _ => false,
    }
}

/// The header of a unicast route of the configuration.
fn header_to(net: IpNet) -> RouteHeader {
    RouteHeader {
        address_family: if net.is_v4() { AddressFamily::Inet } else { AddressFamily::Inet6 },
        destination_prefix_length: net.length(),
        table: MAIN,
        protocol: OURS,
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    }
}

fn message(requests: &mut Requests, route: &StaticRoute) -> io::Result<RouteMessage> {
    let mut message = RouteMessage::default();
    message.header = header_to(route.to);
    message.attributes.push(RouteAttribute::Destination(route_address(route.to.network())));
    message.attributes.extend(route.metric.map(RouteAttribute::Priority));
    let mut index =
        |name: &str| index_of(requests, name)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV));
    match &route.target {
        RouteTarget::Blackhole => message.header.kind = RouteType::BlackHole,
        RouteTarget::Connected(name) => {
            message.header.scope = RouteScope::Link;
            message.attributes.push(RouteAttribute::Oif(index(name)?));
        }
        RouteTarget::Gateways { via, interface } => {
            let index = interface.as_deref().map(&mut index).transpose()?;
            match &via[..] {
                [gateway] => {
                    message.attributes.push(RouteAttribute::Gateway(route_address(*gateway)));
                    message.attributes.extend(index.map(RouteAttribute::Oif));
                }
                several => {
                    let hop = |gateway: &IpAddr| {
                        let mut hop = RouteNextHop::default();
                        hop.interface_index = index.unwrap_or_default();
                        hop.attributes.push(RouteAttribute::Gateway(route_address(*gateway)));
                        hop
                    };
                    message.attributes.push(RouteAttribute::MultiPath(several.iter().map(hop).collect()));
                }
            }
        }
    }
    Ok(message)
}
