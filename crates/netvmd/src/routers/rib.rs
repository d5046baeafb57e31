//! The routing information base of a router: kernel changes come in, updates of the engine's FIB go out. No I/O.
//!
//! The engine forwards a packet only if it can do so exactly as the kernel would; it punts all others, also those for
//! routes that this module does not understand. For each prefix, in this order:
//! 1. prefixes of the kernel's `local` table are punted, whatever is more specific in `main`;
//! 2. the route of `main` with the lowest metric decides: its gateways, or punt for a connected one, so that the kernel
//!    resolves the neighbour;
//! 3. a neighbour that the kernel has resolved, in a network connected by its interface, is a host route.
//!
//! Custom policy routing rules (`ip rule`) make the engine punt everything, because the destination no longer decides
//! alone.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Bound;

use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, MacAddr};

mod change;
mod hops;
mod nets;
#[cfg(test)]
mod tests;

pub use change::{Change, Counts, Destination, Link, Neighbour, RouteKey, RouteTarget, Select};
use hops::{BLACKHOLE, Hops, PUNT, Unreachable};
pub use hops::{Gateway, Peer};
pub use nets::containing;
use nets::{as_host, host};

/// Most routes in an update, which then takes the engine's thread some milliseconds.
pub const UPDATE_ROUTES: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Kernel,
    Blackhole,
    Connected(u32),
    By(NextHopId),
}

/// The handling of packets to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Is(NextHopId),
    /// Send to this neighbour, or have it resolved.
    By(Gateway),
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
    /// Names of the router's netvm interfaces, in the engine's order.
    interfaces: Vec<String>,
    links: BTreeMap<u32, Link>,
    /// Addresses by interface, with their prefix lengths.
    addresses: BTreeMap<(u32, IpAddr), u8>,
    local: BTreeSet<IpNet>,
    /// The local prefixes longer than one address, and the prefixes that are never forwarded.
    wide: Vec<IpNet>,
    routes: BTreeMap<RouteKey, Route>,
    /// Nexthop objects that routes use, and by how many.
    nexthops: HashMap<NonZeroU32, u32>,
    neighbours: BTreeMap<(IpAddr, u32), Neighbour>,
    has_rules: bool,
    /// The namespace has chains of type `nat`.
    has_nat: bool,
    hops: Hops,
    /// Next hops in use for neighbours' host routes.
    held: BTreeMap<IpNet, NextHopId>,
    /// The routes that the engine has.
    sent: BTreeMap<IpNet, NextHopId>,
    dirty: BTreeSet<IpNet>,
    all_dirty: bool,
    sent_macs: Vec<(u16, MacAddr)>,
}

/// Which links are interfaces of the engine.
#[derive(Clone, Copy)]
struct Interfaces<'a> {
    links: &'a BTreeMap<u32, Link>,
    names: &'a [String],
}

impl Interfaces<'_> {
    /// The engine's interface of a link or of the one under a macvlan, and whether the link is up.
    fn find(self, index: u32) -> Option<(u16, bool)> {
        let link = self.links.get(&index)?;
        let place = |link: &Link| self.names.iter().position(|name| *name == link.name);
        let under = || place(self.links.get(&link.macvlan?.0)?);
        Some((place(link).or_else(under)? as u16, link.is_up))
    }
}

impl Rib {
    /// An empty RIB.
    pub fn new(interfaces: Vec<String>) -> Self {
        let mut rib = Self { interfaces, ..Self::default() };
        rib.all_changed();
        rib
    }

    /// Replaces everything by a dump. The next updates hold only the differences.
    pub fn resync(&mut self, all: impl IntoIterator<Item = Change>) {
        let before = std::mem::take(&mut self.routes);
        self.links.clear();
        self.addresses.clear();
        self.local.clear();
        self.neighbours.clear();
        self.has_rules = false;
        for change in all {
            match change {
                Change::Route { key, .. } if self.routes.contains_key(&key) => {
                    // For equal keys, the kernel uses the first IPv4 route, and either IPv6 route.
                    if !key.net.is_v4() {
                        self.insert(key, Route { target: Target::Kernel, nexthop: None });
                    }
                }
                // A dump leaves nothing unclear.
                other => drop(self.apply(other)),
            }
        }
        // Last, so that next hops still in use keep their ids.
        before.into_values().for_each(|route| self.release_route(route));
        self.all_changed();
    }

    /// Applies a change. True if only a dump can tell the new state.
    #[must_use]
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Link(index, link) => {
                let before = self.links.insert(index, link.clone());
                if before.as_ref() != Some(&link) {
                    self.all_changed();
                }
                // The kernel removes IPv4 routes with their interface without an event.
                before.is_some_and(|before| before.is_up && !link.is_up)
            }
            Change::LinkGone(index) => {
                self.links.remove(&index);
                self.all_changed();
                true
            }
            Change::Address(index, address, length) => {
                self.addresses.insert((index, address), length);
                false
            }
            Change::AddressGone(index, address) => {
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
            Change::Route { key, target, replaces, nexthop } => {
                let target = self.target(&target);
                self.route(key, Route { target, nexthop }, replaces)
            }
            Change::RouteGone { key, target } => self.route_gone(key, &target),
            Change::Neighbour(peer, neighbour) => {
                self.neighbour(peer, neighbour);
                false
            }
            Change::Rule => {
                self.has_rules = true;
                self.all_changed();
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
            // Another route with this key existed, or this one had several gateways.
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
        if before.map(|before| before.mac) != neighbour.map(|neighbour| neighbour.mac) {
            self.hops.touch(peer);
            self.dirty.insert(host(address));
        }
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
    }

    fn local_changed(&mut self, net: IpNet) {
        if as_host(net).is_some() {
            self.dirty.insert(net);
        } else {
            self.all_changed();
        }
    }

    fn all_changed(&mut self) {
        let wide = self.local.iter().copied().filter(|net| as_host(*net).is_none());
        self.wide = nets::not_forwarded().chain(wide).collect();
        self.hops.touch_all();
        self.all_dirty = true;
    }

    /// The updates to send to the engine, in order; empty if nothing changed.
    pub fn updates(&mut self) -> Vec<Update> {
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.all_dirty) {
            dirty.extend(self.routes.keys().map(|key| key.net));
            dirty.extend(self.local.iter().chain(&self.wide));
            dirty.extend(self.neighbours.keys().map(|(address, _)| host(*address)));
            dirty.extend(self.sent.keys());
            dirty.extend([true, false].map(nets::default));
        }
        let mut routes = Vec::new();
        for net in dirty {
            let (now, held) = match self.decide(net) {
                None => (None, None),
                Some(Decision::Is(id)) => (Some(id), None),
                Some(Decision::By(gateway)) => match self.hops.take(&[gateway]) {
                    PUNT => (Some(NextHopId::KERNEL), None),
                    id => (Some(id), Some(id)),
                },
            };
            let no_more_held = match held {
                Some(id) => self.held.insert(net, id),
                None => self.held.remove(&net),
            };
            if let Some(id) = no_more_held {
                self.hops.release(id);
            }
            let before = match now {
                Some(id) => self.sent.insert(net, id),
                None => self.sent.remove(&net),
            };
            if now != before {
                routes.push((net, now));
            }
        }
        let (interfaces, neighbours) =
            (Interfaces { links: &self.links, names: &self.interfaces }, &self.neighbours);
        let resolve = |(index, address): Peer| {
            let (interface, is_up) = interfaces.find(index).ok_or(Unreachable)?;
            if address.is_unspecified() {
                return Ok(Some(Hop { interface, mac: MacAddr::ZERO }));
            }
            let known = neighbours.get(&(address, index)).filter(|_| is_up);
            Ok(known.map(|neighbour| Hop { interface, mac: neighbour.mac }))
        };
        in_parts(self.hops.changes(resolve), &routes)
    }

    fn decide(&self, net: IpNet) -> Option<Decision> {
        // Also with rules, so that the packets of routing protocols keep their share of what the kernel gets.
        if self.local.contains(&net) && as_host(net).is_some() {
            return Some(Decision::Is(NextHopId::LOCAL));
        }
        let punted = Some(Decision::Is(NextHopId::KERNEL));
        if self.has_rules {
            // There are routes, of which the engine knows nothing.
            return punted.filter(|_| net.length() == 0);
        }
        if self.local.contains(&net) || self.wide.iter().any(|wide| wide.contains_net(net)) {
            return punted;
        }
        let address = as_host(net);
        match self.best(net) {
            Some(Target::Kernel) => punted,
            Some(Target::Blackhole) => Some(Decision::Is(BLACKHOLE)),
            Some(Target::By(id)) => Some(Decision::Is(id)),
            Some(Target::Connected(index)) => {
                let neighbour = address.and_then(|address| self.known((index, address)));
                neighbour.or_else(|| Some(self.unresolved(index, net)))
            }
            None => {
                let address = address.filter(|address| self.has_neighbour(*address))?;
                match nets::ancestry(address).find_map(|net| self.best(net))? {
                    Target::Connected(index) => self.known((index, address)),
                    _ => None,
                }
            }
        }
    }

    /// The route that the kernel uses for exactly this prefix.
    fn best(&self, net: IpNet) -> Option<Target> {
        let first = RouteKey { net, metric: 0, tos: 0 };
        let last = RouteKey { net, metric: u32::MAX, tos: u8::MAX };
        let mut all = self.routes.range(first..=last);
        let (_, &best) = all.clone().next()?;
        // With a TOS, the destination does not decide alone.
        if all.any(|(key, _)| key.tos != 0) { Some(Target::Kernel) } else { Some(best.target) }
    }

    fn has_neighbour(&self, address: IpAddr) -> bool {
        self.neighbours.range((address, 0)..=(address, u32::MAX)).next().is_some()
    }

    /// The decision for a resolved neighbour.
    fn known(&self, peer: Peer) -> Option<Decision> {
        let (index, address) = peer;
        let is_ours = self.interfaces().find(index).is_some();
        let is_known = is_ours && self.neighbours.contains_key(&(address, index));
        is_known.then_some(Decision::By(Gateway { peer, weight: 1 }))
    }

    /// The decision for the other neighbours in a network that a link connects.
    fn unresolved(&self, index: u32, net: IpNet) -> Decision {
        match self.interfaces().find(index) {
            Some(_) => Decision::By(Gateway::glean(index, net.is_v4())),
            None => Decision::Is(NextHopId::RESOLVE),
        }
    }

    fn interfaces(&self) -> Interfaces<'_> {
        Interfaces { links: &self.links, names: &self.interfaces }
    }

    /// The MAC addresses that interfaces have besides their own, if they have changed since the last call.
    pub fn changed_macs(&mut self) -> Option<Vec<(u16, MacAddr)>> {
        let interfaces = self.interfaces();
        let mac = |link: &Link| {
            let (under, mac) = link.macvlan.filter(|_| link.is_up)?;
            Some((interfaces.find(under)?.0, mac))
        };
        let mut macs: Vec<(u16, MacAddr)> = self.links.values().filter_map(mac).collect();
        macs.sort_unstable();
        if macs == self.sent_macs {
            return None;
        }
        self.sent_macs.clone_from(&macs);
        Some(macs)
    }

    /// Neighbours with their MAC addresses on interfaces of the router, by address.
    pub fn neighbours(&self) -> impl Iterator<Item = (IpAddr, &str, Neighbour)> {
        self.neighbours.iter().filter_map(|((address, index), neighbour)| {
            let name = &self.links.get(index)?.name;
            self.interfaces.contains(name).then_some((*address, &**name, *neighbour))
        })
    }

    /// Neighbours to probe: unresolved gateways and stale neighbours in use. The kernel does not probe them itself, as
    /// it does not see the packets.
    pub fn neighbours_to_probe(&self) -> impl Iterator<Item = Peer> {
        self.hops.peers().filter(|(index, address)| {
            self.interfaces().find(*index).is_some_and(|(_, is_up)| is_up)
                && self.neighbours.get(&(*address, *index)).is_none_or(|neighbour| neighbour.is_stale)
        })
    }

    /// Notes whether the namespace has NAT; true if that is new.
    pub const fn set_nat(&mut self, has_nat: bool) -> bool {
        let is_new = self.has_nat != has_nat;
        self.has_nat = has_nat;
        is_new
    }

    /// Whether policy routing rules exist, and whether next hops ran out.
    pub const fn limitations(&self) -> (bool, bool) {
        (self.has_rules, self.hops.refused() > 0)
    }

    /// The sizes of the tables.
    pub fn counts(&self) -> Counts {
        let v4 = self.routes.keys().filter(|key| key.net.is_v4()).count();
        Counts {
            routes_v4: v4,
            routes_v6: self.routes.len() - v4,
            next_hops: self.hops.count(),
            neighbours: self.neighbours.len(),
            refused: self.hops.refused(),
            has_rules: self.has_rules,
            has_nat: self.has_nat,
        }
    }

    /// The engine's routes by prefix, with their destinations, as far as they are selected.
    pub fn routes(&self, select: Select) -> Box<dyn Iterator<Item = (IpNet, Destination<'_>)> + '_> {
        let first = select.after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.sent.range((first, Bound::Unbounded)).map(|(net, id)| (*net, *id));
        let shown = |(net, id)| (net, self.destination(id));
        match select.address {
            None => Box::new(behind.filter(move |(net, _)| select.holds(*net)).map(shown)),
            Some(address) => {
                let found = nets::ancestry(address).find_map(|net| Some((net, *self.sent.get(&net)?)));
                let is_behind = move |net| select.after.is_none_or(|after| after < net);
                Box::new(
                    found.filter(|(net, _)| select.holds(*net) && is_behind(*net)).map(shown).into_iter(),
                )
            }
        }
    }

    fn destination(&self, id: NextHopId) -> Destination<'_> {
        match id {
            PUNT | NextHopId::LOCAL | NextHopId::RESOLVE | NextHopId::KERNEL => Destination::Kernel,
            BLACKHOLE => Destination::Blackhole,
            id => match self.hops.gateways(id) {
                [only] if only.is_glean() => Destination::Kernel,
                gateways => Destination::Gateways(gateways),
            },
        }
    }

    /// The addresses of interfaces, with their prefix lengths; without link-local ones of IPv6.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, IpAddr, u8)> {
        let is_link_local = |address| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let shown = self.addresses.iter().filter(move |((_, address), _)| !is_link_local(*address));
        shown
            .filter_map(|((index, address), length)| Some((&*self.links.get(index)?.name, *address, *length)))
    }

    /// The MAC address of a neighbour, and the name of its interface.
    pub fn peer(&self, (index, address): Peer) -> (Option<MacAddr>, Option<&str>) {
        let mac = self.neighbours.get(&(address, index)).map(|neighbour| neighbour.mac);
        (mac, self.links.get(&index).map(|link| &*link.name))
    }
}

fn in_parts(next_hops: Vec<(NextHopId, NextHop)>, routes: &[(IpNet, Option<NextHopId>)]) -> Vec<Update> {
    if next_hops.is_empty() && routes.is_empty() {
        return Vec::new();
    }
    let mut parts: Vec<Update> = routes
        .chunks(UPDATE_ROUTES)
        .map(|routes| Update { next_hops: Vec::new(), routes: routes.to_vec() })
        .collect();
    if parts.is_empty() {
        parts.push(Update::default());
    }
    if let Some(first) = parts.first_mut() {
        first.next_hops = next_hops;
    }
    parts
}
