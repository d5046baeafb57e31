// SPDX-License-Identifier: Apache-2.0
//! Types of the interface of a [`Rib`](super::Rib). In: changes of links, routes and neighbours. Out: counts and
//! destinations.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Instant;

use netvm_wire::{IpNet, MacAddr};

use super::{Gateway, Peer, Rule};

/// The key of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey {
    /// The prefix.
    pub net: IpNet,
    /// Priority; the lowest is preferred.
    pub metric: u32,
    /// If not 0, the route is only for packets with this type of service.
    pub tos: u8,
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// A target that only the kernel handles.
    Kernel,
    /// Drop.
    Blackhole,
    /// Neighbours on an interface.
    Connected(u32),
    /// Gateways.
    Gateways(Vec<Gateway>),
}

/// A resolved neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its MAC address.
    pub mac: MacAddr,
    /// The kernel has not confirmed it for a while.
    pub is_stale: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub is_up: bool,
    /// Whether it has a carrier.
    pub has_carrier: bool,
    /// The index of its other end, if it is of a veth pair whose other end is in another namespace.
    pub peer: Option<u32>,
    /// If it is a macvlan: the lower interface, and its own MAC address, which is a second address of the lower
    /// interface, as VRRP uses it.
    pub macvlan: Option<(u32, MacAddr)>,
    /// Its settings.
    pub settings: Settings,
}

/// Settings of an interface on which forwarding depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// It is part of another interface, such as a bridge.
    pub is_enslaved: bool,
    /// `net.ipv4.conf`.
    pub v4: SettingsV4,
    /// `net.ipv6.conf`.
    pub v6: SettingsV6,
}

/// Settings of IPv4, of an interface or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsV4 {
    /// `forwarding`.
    pub forwards: bool,
    /// `rp_filter`: 1 is strict, 2 loose.
    pub rp_filter: u8,
    /// `accept_local`.
    pub accepts_local: bool,
    /// `log_martians`.
    pub logs_martians: bool,
    /// `route_localnet`.
    pub routes_localnet: bool,
    /// `ignore_routes_with_linkdown`.
    pub ignores_linkdown: bool,
}

/// Settings of IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsV6 {
    /// `disable_ipv6`, or the interface has no IPv6.
    pub is_disabled: bool,
    /// `force_forwarding`.
    pub forwards: bool,
    /// `mtu`.
    pub mtu: u32,
    /// `ignore_routes_with_linkdown`.
    pub ignores_linkdown: bool,
}

/// Settings of all interfaces of a namespace together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global {
    /// `net.ipv4.conf.all`, which each interface's own setting adds to.
    pub v4: SettingsV4,
    /// `net.ipv6.conf.all.forwarding`.
    pub forwards_v6: bool,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface was added or changed.
    Link(u32, Link),
    /// An interface was removed.
    LinkGone(u32),
    /// Settings of all interfaces.
    Global(Global),
    /// An interface has an address with this prefix length.
    Address(u32, IpAddr, u8),
    /// An interface no longer has an address. The kernel also removes routes with this source address.
    AddressGone(u32, IpAddr),
    /// A prefix is local to the kernel.
    Local(IpNet),
    /// A prefix is no longer local.
    LocalGone(IpNet),
    /// A route was added.
    Route {
        /// Its key.
        key: RouteKey,
        /// Its target.
        target: RouteTarget,
        /// It replaces the route with this key.
        replaces: bool,
        /// Id of its nexthop object, if it has one.
        nexthop: Option<NonZeroU32>,
        /// When the kernel ignores it from then on. There is no event.
        expires: Option<Instant>,
    },
    /// A route was removed.
    RouteGone {
        /// Its key.
        key: RouteKey,
        /// Its target.
        target: RouteTarget,
    },
    /// A neighbour is resolved, or no longer (`None`).
    Neighbour(Peer, Option<Neighbour>),
    /// A policy routing rule was added.
    Rule(Rule),
    /// A nexthop object was added, changed or removed. The kernel sends no event for IPv4 routes that change or
    /// disappear with it.
    Nexthop(u32),
    /// A change that the kernel does not describe in full.
    Unclear,
}

/// Sizes of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IPv4 routes in the kernel's main table.
    pub routes_v4: usize,
    /// IPv6 routes in the kernel's main table.
    pub routes_v6: usize,
    /// Gateway sets and neighbours in use.
    pub next_hops: usize,
    /// Resolved neighbours.
    pub neighbours: usize,
    /// Routes that are punted because all next hops are in use.
    pub refused: u64,
    /// Whether policy routing rules make the engine punt all packets of a family.
    pub has_rules: bool,
    /// Whether the namespace has NAT, which the engine does not do.
    pub has_nat: bool,
}

/// The destination of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    /// The kernel (punt).
    Kernel,
    /// Dropped.
    Blackhole,
    /// The gateways, resolved or not.
    Gateways(&'a [Gateway]),
}

/// Selects routes of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Select {
    /// 4 or 6.
    pub family: Option<u8>,
    /// Only routes in this prefix.
    pub prefix: Option<IpNet>,
    /// Only the route for this address.
    pub address: Option<IpAddr>,
    /// Only routes after this prefix, in the order of prefixes.
    pub after: Option<IpNet>,
}

impl Select {
    /// Whether `family` and `prefix` select a prefix.
    pub fn holds(&self, net: IpNet) -> bool {
        self.family.is_none_or(|family| (family == 4) == net.is_v4())
            && self.prefix.is_none_or(|prefix| prefix.contains_net(net))
    }
}
