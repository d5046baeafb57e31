// SPDX-License-Identifier: Apache-2.0
//! Translates rtnetlink messages of a router's kernel to changes of its [`Rib`](super::rib::Rib).

mod link;

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHop, RouteNextHopFlags,
    RouteType, RouteVia,
};
use netlink_packet_route::rule::{self, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_wire::{IpNet, MacAddr};

use super::rib::{Change, Gateway, Neighbour, Peer, RouteKey, RouteTarget, Rule, RuleAction, containing};
use netvm_netlink::{Event, Requests};

pub use link::{is_of_kind, links};

/// `RTMGRP_LINK`, `_NEIGH`, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, and
/// `RTNLGRP_IPV6_RULE` (number 19), `RTNLGRP_IPV4_NETCONF` (24), `RTNLGRP_IPV6_NETCONF` (25) and `RTNLGRP_NEXTHOP`
/// (32).
pub const GROUPS: u32 =
    0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 31;
/// Ticks in a second of the times that the kernel tells (`USER_HZ`).
const USER_HZ_TICK: Duration = Duration::from_millis(10);

/// `RT_TABLE_DEFAULT`, `_MAIN` and `_LOCAL`.
const TABLE_DEFAULT: u32 = 253;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;

/// Dumps links, addresses, routes, rules and neighbours.
///
/// # Errors
/// The kernel's error.
pub fn everything(requests: &mut Requests) -> io::Result<Vec<Change>> {
    let mut all = Vec::new();
    let neighbours = |family| {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        RouteNetlinkMessage::GetNeighbour(message)
    };
    let routes = |family| {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        RouteNetlinkMessage::GetRoute(message)
    };
    let rules = |family| {
        let mut message = RuleMessage::default();
        message.header.family = family;
        RouteNetlinkMessage::GetRule(message)
    };
    let (v4, v6) = (AddressFamily::Inet, AddressFamily::Inet6);
    let questions = [
        RouteNetlinkMessage::GetLink(LinkMessage::default()),
        RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        rules(v4),
        rules(v6),
        routes(v4),
        routes(v6),
        neighbours(v4),
        neighbours(v6),
    ];
    for question in &questions {
        let outcome =
            requests.dump(question, Vec::new, |outcome, message| outcome.extend(change(0, message)));
        match outcome {
            Ok(outcome) => all.extend(outcome),
            // A kernel without IPv6 or policy routing.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => {
                if let RouteNetlinkMessage::GetRule(message) = question {
                    all.extend(Rule::defaults(message.header.family == v4).map(Change::Rule));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The change that an event describes, if it matters.
pub fn event_change(event: Event) -> Option<Change> {
    match event {
        Event::Message(flags, message) => change(flags, message),
        Event::Nexthop(id) => Some(Change::Nexthop(id)),
        Event::Setting => None,
    }
}

/// The neighbour that does not answer, if an event says so.
pub fn failed(event: &Event) -> Option<Peer> {
    match event {
        Event::Message(_, RouteNetlinkMessage::NewNeighbour(message))
            if message.header.state == NeighbourState::Failed =>
        {
            peer(message)
        }
        _ => None,
    }
}

/// The change that a message describes, if it matters. `flags`: of the netlink header.
fn change(flags: u16, message: RouteNetlinkMessage) -> Option<Change> {
    match message {
        RouteNetlinkMessage::NewLink(message) => link::link(&message),
        RouteNetlinkMessage::DelLink(message) => {
            link::is_whole(&message).then_some(Change::LinkGone(message.header.index))
        }
        // The kernel ignores the route, and removes it some time later.
        RouteNetlinkMessage::NewRoute(message) if matches!(expires(&message), Some(Err(_))) => None,
        RouteNetlinkMessage::NewRoute(message) => route(&message, |key, target| match target {
            // All gateways are dead.
            None => Change::Unclear,
            // An IPv6 message holds all gateways of the route, not just the added one.
            Some(target) => Change::Route {
                key,
                target,
                replaces: flags & NLM_F_REPLACE != 0 || !key.net.is_v4(),
                nexthop: nexthop(&message),
                expires: expires(&message).and_then(Result::ok),
            },
        }),
        RouteNetlinkMessage::DelRoute(message) => gone(route(&message, |key, target| match target {
            None => Change::Unclear,
            Some(target) => Change::RouteGone { key, target },
        })),
        RouteNetlinkMessage::NewNeighbour(message) => neighbour(&message),
        RouteNetlinkMessage::DelNeighbour(message) => Some(Change::Neighbour(peer(&message)?, None)),
        RouteNetlinkMessage::NewAddress(message) => {
            let (index, address) = address(&message)?;
            Some(Change::Address(index, address, message.header.prefix_len))
        }
        RouteNetlinkMessage::DelAddress(message) => Some(
            address(&message).map_or(Change::Unclear, |(index, address)| Change::AddressGone(index, address)),
        ),
        RouteNetlinkMessage::NewRule(message) => rule(&message).map(Change::Rule),
        RouteNetlinkMessage::DelRule(_) => Some(Change::Unclear),
        _ => None,
    }
}

/// The interface and the address of a message. On a point-to-point interface, `Address` is the peer's.
fn address(message: &AddressMessage) -> Option<(u32, IpAddr)> {
    let local = message.attributes.iter().find_map(|one| match one {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let any = message.attributes.iter().find_map(|one| match one {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some((message.header.index, local.or(any)?))
}

/// When a route has expired; an error if it has.
fn expires(message: &RouteMessage) -> Option<Result<Instant, Expired>> {
    let info = message.attributes.iter().find_map(|one| match one {
        RouteAttribute::CacheInfo(info) => Some(info),
        _ => None,
    })?;
    // Signed, 0 for never; but also within a tick of the end, so a route surely shows as expired some ticks later.
    match info.expires.cast_signed() {
        0 => None,
        ticks => {
            let ticks = u32::try_from(ticks).map_err(|_| Expired);
            Some(ticks.map(|ticks| Instant::now() + USER_HZ_TICK * (ticks + 3)))
        }
    }
}

/// The kernel ignores the route.
#[derive(Clone, Copy, Debug)]
struct Expired;

/// The change of a route in table `local`, `main` or `default`. `make`: called for `main`, without a target if all
/// gateways are dead.
fn route(
    message: &RouteMessage,
    make: impl FnOnce(RouteKey, Option<RouteTarget>) -> Change,
) -> Option<Change> {
    let header = &message.header;
    let (mut metric, mut table) = (0, u32::from(header.table));
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Table(number) => table = *number,
            _ => {}
        }
    }
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let net = destination(message)?;
    match table {
        TABLE_LOCAL => Some(Change::Local(net)),
        TABLE_MAIN if is_link_local(net) => None,
        TABLE_MAIN => Some(make(RouteKey { net, metric, tos: header.tos }, target(message))),
        _ => None,
    }
}

/// The nexthop object of a route.
fn nexthop(message: &RouteMessage) -> Option<NonZeroU32> {
    message.attributes.iter().find_map(|one| match one {
        RouteAttribute::NhId(id) => NonZeroU32::new(*id),
        _ => None,
    })
}

/// The destination of a route; `None`: of another family than IP.
pub(super) fn destination(message: &RouteMessage) -> Option<IpNet> {
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let given = message.attributes.iter().find_map(|one| match one {
        RouteAttribute::Destination(address) => ip(address),
        _ => None,
    });
    Some(containing(given.unwrap_or(any), message.header.destination_prefix_length))
}

/// Turns the addition of a local prefix into its removal.
fn gone(change: Option<Change>) -> Option<Change> {
    change.map(|change| match change {
        Change::Local(net) => Change::LocalGone(net),
        other => other,
    })
}

/// Every interface has a link-local route with the same key; no packet is forwarded by them.
fn is_link_local(net: IpNet) -> bool {
    match net.network() {
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
        IpAddr::V4(_) => false,
    }
}

/// Where the packets of a route go; `None` if all its gateways are dead.
pub(super) fn target(message: &RouteMessage) -> Option<RouteTarget> {
    match message.header.kind {
        RouteType::Unicast => {}
        RouteType::BlackHole => return Some(RouteTarget::Blackhole),
        _ => return Some(RouteTarget::Kernel),
    }
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::MultiPath(several) => hops.extend(several.iter().map(hop)),
            RouteAttribute::Metrics(metrics)
                if metrics.iter().any(|one| matches!(one, RouteMetric::Mtu(_))) =>
            {
                return Some(RouteTarget::Kernel);
            }
            // Encapsulation and source-specific routes: only the kernel can forward by these.
            RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) | RouteAttribute::Source(_) => {
                return Some(RouteTarget::Kernel);
            }
            _ => {}
        }
    }
    if hops.is_empty() {
        if message.header.flags.contains(RouteFlags::Dead) {
            return None;
        }
        let oif = message.attributes.iter().find_map(|one| match one {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        hops.push(one_hop(oif, &message.attributes, 1));
    }
    let alive: Vec<Hop> = hops.into_iter().filter(|hop| !matches!(hop, Hop::Dead)).collect();
    match &alive[..] {
        [] => None,
        [Hop::Connected(index)] => Some(RouteTarget::Connected(*index)),
        _ => {
            let gateways = alive.iter().map(|hop| match hop {
                Hop::By(gateway) => Some(*gateway),
                _ => None,
            });
            Some(gateways.collect::<Option<_>>().map_or(RouteTarget::Kernel, RouteTarget::Gateways))
        }
    }
}

enum Hop {
    Connected(u32),
    By(Gateway),
    Other,
    Dead,
}

fn hop(of: &RouteNextHop) -> Hop {
    if of.flags.contains(RouteNextHopFlags::Dead) {
        return Hop::Dead;
    }
    one_hop(Some(of.interface_index), &of.attributes, u16::from(of.hops) + 1)
}

fn one_hop(interface: Option<u32>, attributes: &[RouteAttribute], weight: u16) -> Hop {
    let Some(index) = interface else { return Hop::Other };
    let mut gateway = None;
    for attribute in attributes {
        match attribute {
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => gateway = Some((*address).into()),
            RouteAttribute::Via(_) | RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) => {
                return Hop::Other;
            }
            _ => {}
        }
    }
    gateway.map_or(Hop::Connected(index), |address| Hop::By(Gateway { peer: (index, address), weight }))
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn peer(message: &NeighbourMessage) -> Option<Peer> {
    // A proxy entry is not a neighbour.
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let address = message.attributes.iter().find_map(|one| match one {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::from(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::from(*address)),
        _ => None,
    })?;
    Some((message.header.ifindex, address))
}

fn neighbour(message: &NeighbourMessage) -> Option<Change> {
    let peer = peer(message)?;
    let is_usable = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let mac = message.attributes.iter().find_map(|one| match one {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddr),
        _ => None,
    });
    let is_stale = message.header.state == NeighbourState::Stale;
    // The kernel's own entries for groups and broadcast.
    let is_group = |mac: &MacAddr| message.header.state == NeighbourState::Noarp && mac.is_multicast();
    let mac = mac.filter(|mac| is_usable && !is_group(mac));
    Some(Change::Neighbour(peer, mac.map(|mac| Neighbour { mac, is_stale })))
}

/// A policy routing rule; `None`: of another family than IP.
fn rule(message: &RuleMessage) -> Option<Rule> {
    let header = &message.header;
    let is_v4 = match header.family {
        AddressFamily::Inet => true,
        AddressFamily::Inet6 => false,
        _ => return None,
    };
    let (mut priority, mut table) = (0, u32::from(header.table));
    let is_inverted = header.flags.contains(RuleFlags::Invert);
    let mut matches_all = header.src_len == 0 && header.dst_len == 0 && header.tos == 0 && !is_inverted;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::Protocol(_) => {}
            // Suppresses nothing.
            RuleAttribute::SuppressPrefixLen(u32::MAX) | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            _ => matches_all = false,
        }
    }
    let action = match table {
        _ if !matches_all || header.action != rule::RuleAction::ToTable => RuleAction::Other,
        TABLE_LOCAL => RuleAction::Local,
        TABLE_MAIN => RuleAction::Main,
        TABLE_DEFAULT => RuleAction::Default,
        _ => RuleAction::Other,
    };
    Some(Rule { is_v4, priority, action })
}
