// SPDX-License-Identifier: Apache-2.0
//! The routing information base of a router: kernel changes come in, updates of the engine's FIB go out. No I/O.
//!
//! The engine forwards a packet only if it can do so exactly as the kernel would; it punts all others, also those for
//! routes that this module does not understand. For each prefix, in this order:
//! 1. prefixes of the kernel's `local` table are punted, whatever is more specific in `main`;
//! 2. the route of `main` with the lowest metric decides: its gateways, or punt for a connected one, so that the kernel
//!    resolves the neighbour;
//! 3. a neighbour that the kernel has resolved, in a network connected by its interface, is a host route.
//!
//! If the policy routing rules (`ip rule`) of a family are not the default ones, the engine punts all packets of that
//! family, because `local` and `main` no longer decide alone.

mod change;
mod hops;
mod interfaces;
mod lost;
mod nets;
mod rules;
#[cfg(test)]
mod tests;
mod updates;
mod view;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Instant;

use netvm_engine::RouterState;
use netvm_router::NextHopId;
use netvm_wire::IpNet;

use hops::{Hops, PUNT};
use interfaces::{InterfaceMap, Interfaces};
use lost::LostNeighbours;
use nets::{as_host, host};
use rules::Rules;

pub use change::{
    Change, Counts, Destination, Global, Link, Neighbour, RouteKey, RouteTarget, Select, Settings,
    SettingsV4, SettingsV6,
};
pub use hops::{Gateway, Peer};
pub use nets::containing;
pub use rules::{Rule, RuleAction};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Kernel,
    Blackhole,
    Connected(u32),
    By(NextHopId),
}

/// A route of the kernel's main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    target: Target,
    /// Its nexthop object.
    nexthop: Option<NonZeroU32>,
}

/// A router's routing information base.
#[derive(Debug, Default)]
pub struct Rib {
    /// The router's netvm interfaces.
    interface_map: InterfaceMap,
    links: BTreeMap<u32, Link>,
    global: Global,
    /// Addresses by interface, with their prefix lengths.
    addresses: BTreeMap<(u32, IpAddr), u8>,
    local: BTreeSet<IpNet>,
    /// The local prefixes longer than one address, and the prefixes that are never forwarded.
    wide: Vec<IpNet>,
    routes: BTreeMap<RouteKey, Route>,
    /// Nexthop objects that routes use, and by how many.
    nexthops: HashMap<NonZeroU32, u32>,
    neighbours: BTreeMap<(IpAddr, u32), Neighbour>,
    lost: LostNeighbours,
    rules: Rules,
    /// When the next route expires.
    expiry: Option<Instant>,
    /// The namespace has chains of type `nat`.
    has_nat: bool,
    hops: Hops,
    /// Next hops of neighbours' host routes.
    held: BTreeMap<IpNet, NextHopId>,
    /// The routes that the engine has.
    sent: BTreeMap<IpNet, NextHopId>,
    dirty: BTreeSet<IpNet>,
    all_dirty: bool,
    sent_state: Option<RouterState>,
    /// What [`Rib::changed_state`] tells may have changed.
    state_changed: bool,
    /// The kernel ignores routes by some link.
    ignores_any: bool,
}

impl Rib {
    /// An empty RIB. `interfaces`: the names of the router's interfaces in the engine's order, with the index of the
    /// outer end of each, if it is known.
    pub fn new(interfaces: Vec<(String, Option<u32>)>) -> Self {
        let mut rib = Self { interface_map: InterfaceMap::new(interfaces), ..Self::default() };
        rib.all_changed();
        rib
    }

    /// Notes the bridges of networks with EVPN, by their indexes. Routes by those of L3VNIs lead to these interfaces;
    /// hosts on the others, of which there may be many, are no neighbours of the router.
    pub fn set_bridges(&mut self, bridges: BTreeMap<u32, Option<u16>>) {
        if self.interface_map.set_bridges(bridges) {
            self.neighbours.retain(|(_, index), _| !self.interface_map.has_hosts(*index));
            self.links_changed();
        }
    }

    /// Replaces all state by a dump. The next updates contain only the differences.
    pub fn resync(&mut self, all: impl IntoIterator<Item = Change>) {
        let before = std::mem::take(&mut self.routes);
        self.links.clear();
        self.addresses.clear();
        self.local.clear();
        let known = std::mem::take(&mut self.neighbours);
        self.rules.clear();
        self.expiry = None;
        for change in all {
            match change {
                Change::Route { key, .. } if self.routes.contains_key(&key) => {
                    // For equal keys, the kernel uses the first IPv4 route, and either IPv6 route.
                    if !key.net.is_v4() {
                        self.insert(key, Route { target: Target::Kernel, nexthop: None });
                    }
                }
                // After a dump, no change is unclear.
                other => drop(self.apply(other)),
            }
        }
        self.interface_map.keep_only(&self.links);
        for key in known.into_keys() {
            if !self.neighbours.contains_key(&key) {
                self.lose(key.0, key.1);
            }
        }
        // Last, so that next hops still in use keep their ids.
        before.into_values().for_each(|route| self.release_route(route));
        self.links_changed();
    }

    /// Applies a change. True if a dump is needed to know the new state.
    #[must_use]
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Link(index, link) => {
                self.interface_map.see(index, &link);
                let Some(before) = self.links.insert(index, link.clone()) else {
                    self.links_changed();
                    return false;
                };
                if link.routes_differ(&before, &self.global) {
                    self.links_changed();
                }
                self.state_changed |= link != before;
                // The kernel removes IPv4 routes with their interface, and uses gateways again, without an event.
                before.is_up != link.is_up
            }
            Change::LinkGone(index) => {
                self.links.remove(&index);
                self.interface_map.forget(index);
                self.links_changed();
                true
            }
            Change::Global(global) => {
                let before = std::mem::replace(&mut self.global, global);
                if before.v4.ignores_linkdown != global.v4.ignores_linkdown {
                    self.links_changed();
                }
                self.state_changed |= before != global;
                false
            }
            // With an address, the kernel may use gateways of routes again, without an event.
            Change::Address(index, address, length) => {
                self.state_changed = true;
                self.addresses.insert((index, address), length).is_none()
            }
            Change::AddressGone(index, address) => {
                self.state_changed = true;
                self.addresses.remove(&(index, address));
                true
            }
            Change::Local(net) => {
                if self.local.insert(net) {
                    self.local_changed(net);
                }
                false
            }
            Change::LocalGone(net) => {
                if self.local.remove(&net) {
                    self.local_changed(net);
                }
                // The kernel also removes routes with this source address.
                true
            }
            Change::Route { key, target, replaces, nexthop, expires } => {
                self.expiry = self.expiry.into_iter().chain(expires).min();
                let target = self.target(&target);
                self.route(key, Route { target, nexthop }, replaces)
            }
            Change::RouteGone { key, target } => self.route_gone(key, &target),
            Change::Neighbour(peer, neighbour) => {
                if !self.interface_map.has_hosts(peer.0) {
                    self.neighbour(peer, neighbour);
                }
                false
            }
            Change::Rule(rule) => {
                let were_default = self.rules.are_default(rule.is_v4);
                self.rules.add(rule);
                if self.rules.are_default(rule.is_v4) != were_default {
                    self.all_changed();
                }
                false
            }
            Change::Nexthop(id) => NonZeroU32::new(id).is_some_and(|id| self.nexthops.contains_key(&id)),
            Change::Unclear => true,
        }
    }

    fn route(&mut self, key: RouteKey, route: Route, replaces: bool) -> bool {
        let before = self.insert(key, route);
        if before != Some(route.target) {
            self.net_changed(key.net);
        }
        // A second route with this key: only the kernel knows their order.
        before.is_some_and(|before| !replaces && before != route.target)
    }

    /// Returns the target of the route that this one replaces.
    fn insert(&mut self, key: RouteKey, route: Route) -> Option<Target> {
        if let Some(id) = route.nexthop {
            *self.nexthops.entry(id).or_default() += 1;
        }
        let before = self.routes.insert(key, route)?;
        self.release_route(before);
        Some(before.target)
    }

    fn release_route(&mut self, route: Route) {
        self.release(route.target);
        if let Some(id) = route.nexthop
            && let Entry::Occupied(mut users) = self.nexthops.entry(id)
        {
            *users.get_mut() -= 1;
            if *users.get() == 0 {
                users.remove();
            }
        }
    }

    fn route_gone(&mut self, key: RouteKey, target: &RouteTarget) -> bool {
        let Some(before) = self.routes.get(&key).copied() else { return false };
        let gone = self.target(target);
        self.release(gone);
        if gone != before.target {
            // Another route has this key, or this route had several gateways.
            return true;
        }
        self.routes.remove(&key);
        self.release_route(before);
        self.net_changed(key.net);
        false
    }

    fn neighbour(&mut self, peer: Peer, neighbour: Option<Neighbour>) {
        let (index, address) = peer;
        let before = match neighbour {
            Some(neighbour) => self.neighbours.insert((address, index), neighbour),
            None => self.neighbours.remove(&(address, index)),
        };
        match neighbour {
            Some(_) => self.lost.remove((address, index)),
            None if before.is_some() => self.lose(address, index),
            None => {}
        }
        if before.map(|before| before.mac) != neighbour.map(|neighbour| neighbour.mac) {
            self.hops.touch(peer);
            self.dirty.insert(host(address));
        }
    }

    /// Remembers a neighbour that the kernel knows no more.
    fn lose(&mut self, address: IpAddr, index: u32) {
        let forgotten = self.lost.add((address, index));
        self.dirty.extend(forgotten.map(|(address, _)| host(address)));
    }

    /// When the kernel ignores a route that it has now.
    pub const fn expiry(&self) -> Option<Instant> {
        self.expiry
    }

    fn target(&mut self, target: &RouteTarget) -> Target {
        match target {
            RouteTarget::Kernel => Target::Kernel,
            RouteTarget::Blackhole => Target::Blackhole,
            RouteTarget::Connected(index) => Target::Connected(*index),
            RouteTarget::Gateways(gateways) => match self.hops.take(gateways) {
                PUNT => Target::Kernel,
                id => Target::By(id),
            },
        }
    }

    fn release(&mut self, target: Target) {
        if let Target::By(id) = target {
            self.hops.release(id);
        }
    }

    /// Marks a prefix and the neighbours in it for update.
    fn net_changed(&mut self, net: IpNet) {
        self.dirty.insert(net);
        let range = nets::range(net);
        let inside = self.neighbours.range((*range.start(), 0)..=(*range.end(), u32::MAX));
        self.dirty.extend(inside.map(|((address, _), _)| host(*address)));
        self.dirty.extend(self.lost.inside(&range).map(host));
    }

    fn local_changed(&mut self, net: IpNet) {
        if as_host(net).is_some() {
            self.dirty.insert(net);
        } else {
            self.all_changed();
        }
    }

    fn links_changed(&mut self) {
        let is_ignored =
            |link: &Link| [true, false].iter().any(|is_v4| link.is_ignored(&self.global, *is_v4));
        self.ignores_any = self.links.values().any(is_ignored);
        self.state_changed = true;
        self.all_changed();
    }

    fn all_changed(&mut self) {
        let wide = self.local.iter().copied().filter(|net| as_host(*net).is_none());
        self.wide = nets::not_forwarded().chain(wide).collect();
        self.hops.touch_all();
        self.all_dirty = true;
    }

    /// Notes whether the namespace has NAT; true if that is new.
    pub const fn set_nat(&mut self, has_nat: bool) -> bool {
        let is_new = self.has_nat != has_nat;
        self.has_nat = has_nat;
        is_new
    }

    fn interfaces(&self) -> Interfaces<'_> {
        Interfaces { links: &self.links, interface_map: &self.interface_map, global: &self.global }
    }
}
