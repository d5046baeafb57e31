//! What a router's kernel knows, and what of it the engine is to do: pure, told of changes, asked for updates.
//!
//! The engine forwards what it can do exactly as the kernel would, and punts everything else, so a route that is not
//! understood is punted. In this order, for each prefix:
//! 1. what the kernel's `local` table has is for the kernel, whatever is more specific in `main`;
//! 2. the route of `main` with the lowest metric: by its gateways; a connected one is punted, so that the kernel resolves
//!    the neighbour;
//! 3. a neighbour that the kernel has resolved, in a network that is connected by its interface, is a route of its own.
//!
//! With rules of policy routing (`ip rule`) of somebody's own everything is punted: then not the destination alone decides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, MacAddr};

mod change;
mod hops;
mod nets;
#[cfg(test)]
mod tests;

pub use change::{Change, Link, Neighbour, RouteKey, Way};
use hops::{BLACKHOLE, Hops, PUNT, Unreachable};
pub use hops::{Gateway, Peer};
pub use nets::containing;
use nets::{as_host, host};

/// Routes in one update: it keeps the engine's thread busy for no more than some milliseconds.
pub const UPDATE_ROUTES: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Kernel,
    Blackhole,
    Connected(u32),
    By(NextHopId),
}

/// What is to become of packets to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Is(NextHopId),
    /// They go to the neighbour that has this address.
    Neighbour(Peer),
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IPv4 routes in the kernel's main table.
    pub routes_v4: usize,
    /// IPv6 routes.
    pub routes_v6: usize,
    /// Sets of gateways and neighbours in use.
    pub next_hops: usize,
    /// Neighbours that are resolved.
    pub neighbours: usize,
    /// Routes that are punted as there was no next hop left for them.
    pub refused: u64,
    /// Whether everything is punted because of rules of policy routing.
    pub has_rules: bool,
}

/// A router's routes.
#[derive(Debug, Default)]
pub struct Rib {
    /// The interfaces that netvm has a part in, by name, in the order in which the engine numbers them.
    interfaces: Vec<String>,
    links: BTreeMap<u32, Link>,
    local: BTreeSet<IpNet>,
    /// Those of them with more than one address, and what is never forwarded.
    wide: Vec<IpNet>,
    routes: BTreeMap<RouteKey, Target>,
    neighbours: BTreeMap<(IpAddr, u32), Neighbour>,
    has_rules: bool,
    hops: Hops,
    /// Next hops that are in use for a neighbour's own address.
    held: BTreeMap<IpNet, NextHopId>,
    /// What the engine was told.
    told: BTreeMap<IpNet, NextHopId>,
    dirty: BTreeSet<IpNet>,
    all_dirty: bool,
}

impl Rib {
    /// Of a router with these interfaces, of which nothing is known yet.
    pub fn new(interfaces: Vec<String>) -> Self {
        let mut rib = Self { interfaces, ..Self::default() };
        rib.all_changed();
        rib
    }

    /// Begins anew with all that there is. What the engine is told next is only what differs.
    pub fn begin_anew(&mut self, all: impl IntoIterator<Item = Change>) {
        let before = std::mem::take(&mut self.routes);
        self.links.clear();
        self.local.clear();
        self.neighbours.clear();
        self.has_rules = false;
        for change in all {
            match change {
                Change::Route { key, .. } if self.routes.contains_key(&key) => {
                    // The kernel takes the first of IPv4, and of IPv6 one or the other.
                    if !key.net.is_v4()
                        && let Some(other) = self.routes.insert(key, Target::Kernel)
                    {
                        self.release(other);
                    }
                }
                // Nothing is clearer than this.
                other => drop(self.hear(other)),
            }
        }
        // Last, so that next hops that are still in use keep their numbers.
        before.into_values().for_each(|target| self.release(target));
        self.all_changed();
    }

    /// Takes note of a change. Says whether only a look at everything can tell what is now.
    #[must_use]
    pub fn hear(&mut self, change: Change) -> bool {
        match change {
            Change::Link(index, link) => {
                let before = self.links.insert(index, link.clone());
                if before.as_ref() != Some(&link) {
                    self.all_changed();
                }
                // The kernel takes IPv4 routes away with their interface, and does not say so.
                before.is_some_and(|before| before.is_up && !link.is_up)
            }
            Change::LinkGone(index) => {
                self.links.remove(&index);
                self.all_changed();
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
                // Routes with this source address go, too.
                true
            }
            Change::Route { key, way, replaces } => self.route(key, &way, replaces),
            Change::RouteGone { key, way } => self.route_gone(key, &way),
            Change::Neighbour(peer, neighbour) => {
                self.neighbour(peer, neighbour);
                false
            }
            Change::Rule => {
                self.has_rules = true;
                self.all_changed();
                false
            }
            Change::Unclear => true,
        }
    }

    fn route(&mut self, key: RouteKey, way: &Way, replaces: bool) -> bool {
        let target = self.target(way);
        let before = self.routes.insert(key, target);
        if let Some(before) = before {
            self.release(before);
        }
        if before != Some(target) {
            self.net_changed(key.net);
        }
        // A second route of one key: which of them comes first is for the kernel to say.
        before.is_some_and(|before| !replaces && before != target)
    }

    fn route_gone(&mut self, key: RouteKey, way: &Way) -> bool {
        let Some(before) = self.routes.get(&key).copied() else { return false };
        let gone = self.target(way);
        self.release(gone);
        if gone != before {
            // There was another of this key, or it was one of several ways of this one.
            return true;
        }
        self.routes.remove(&key);
        self.release(before);
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

    fn target(&mut self, way: &Way) -> Target {
        match way {
            Way::Kernel => Target::Kernel,
            Way::Blackhole => Target::Blackhole,
            Way::Connected(index) => Target::Connected(*index),
            Way::Gateways(gateways) => match self.hops.take(gateways) {
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

    /// A route to a prefix has changed, and what neighbours in it are.
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

    /// What the engine is to be told, in parts to be told one after the other; none when that is nothing.
    pub fn updates(&mut self) -> Vec<Update> {
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.all_dirty) {
            dirty.extend(self.routes.keys().map(|key| key.net));
            dirty.extend(self.local.iter().chain(&self.wide));
            dirty.extend(self.neighbours.keys().map(|(address, _)| host(*address)));
            dirty.extend(self.told.keys());
        }
        let mut routes = Vec::new();
        for net in dirty {
            let (now, held) = match self.decide(net) {
                None => (None, None),
                Some(Decision::Is(id)) => (Some(id), None),
                Some(Decision::Neighbour(peer)) => match self.hops.take(&[Gateway { peer, weight: 1 }]) {
                    PUNT => (Some(PUNT), None),
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
                Some(id) => self.told.insert(net, id),
                None => self.told.remove(&net),
            };
            if now != before {
                routes.push((net, now));
            }
        }
        let (links, interfaces, neighbours) = (&self.links, &self.interfaces, &self.neighbours);
        let resolve = |(index, address): Peer| {
            let link = links.get(&index).ok_or(Unreachable)?;
            let place = interfaces.iter().position(|name| *name == link.name).ok_or(Unreachable)?;
            let known = neighbours.get(&(address, index)).filter(|_| link.is_up);
            Ok(known.map(|neighbour| Hop { interface: place as u16, mac: neighbour.mac }))
        };
        in_parts(self.hops.changes(resolve), &routes)
    }

    fn decide(&self, net: IpNet) -> Option<Decision> {
        if self.has_rules {
            return None;
        }
        let punted = Some(Decision::Is(PUNT));
        if self.local.contains(&net) || self.wide.iter().any(|wide| wide.contains_net(net)) {
            return punted;
        }
        let address = as_host(net);
        match self.best(net) {
            Some(Target::Kernel) => punted,
            Some(Target::Blackhole) => Some(Decision::Is(BLACKHOLE)),
            Some(Target::By(id)) => Some(Decision::Is(id)),
            Some(Target::Connected(index)) => {
                address.and_then(|address| self.known((index, address))).or(punted)
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

    /// The route to exactly this prefix that the kernel takes.
    fn best(&self, net: IpNet) -> Option<Target> {
        let first = RouteKey { net, metric: 0, tos: 0 };
        let last = RouteKey { net, metric: u32::MAX, tos: u8::MAX };
        let mut all = self.routes.range(first..=last);
        let (_, &best) = all.clone().next()?;
        // Not the destination alone decides then.
        if all.any(|(key, _)| key.tos != 0) { Some(Target::Kernel) } else { Some(best) }
    }

    fn has_neighbour(&self, address: IpAddr) -> bool {
        self.neighbours.range((address, 0)..=(address, u32::MAX)).next().is_some()
    }

    /// A neighbour that packets can be sent to.
    fn known(&self, peer: Peer) -> Option<Decision> {
        let (index, address) = peer;
        let is_ours = self.interfaces.contains(&self.links.get(&index)?.name);
        (is_ours && self.neighbours.contains_key(&(address, index))).then_some(Decision::Neighbour(peer))
    }

    /// Neighbours that the kernel should look after: gateways that are not known, and those in use of which nobody has
    /// outcome for a while. The kernel sees none of the packets that would have it do so by itself.
    pub fn to_look_after(&self) -> impl Iterator<Item = Peer> {
        self.hops.peers().filter(|(index, address)| {
            let is_ours = |link: &Link| link.is_up && self.interfaces.contains(&link.name);
            self.links.get(index).is_some_and(is_ours)
                && self.neighbours.get(&(*address, *index)).is_none_or(|neighbour| neighbour.is_stale)
        })
    }

    /// Whether somebody has rules of policy routing, and whether there were more next hops to be had than there are.
    pub const fn complaints(&self) -> (bool, bool) {
        (self.has_rules, self.hops.refused() > 0)
    }

    /// How much there is.
    pub fn counts(&self) -> Counts {
        let v4 = self.routes.keys().filter(|key| key.net.is_v4()).count();
        Counts {
            routes_v4: v4,
            routes_v6: self.routes.len() - v4,
            next_hops: self.hops.count(),
            neighbours: self.neighbours.len(),
            refused: self.hops.refused(),
            has_rules: self.has_rules,
        }
    }

    /// What the engine was told, in the order of prefixes, with who gets it.
    pub fn told(&self) -> impl ExactSizeIterator<Item = (IpNet, Leads<'_>)> {
        self.told.iter().map(|(net, id)| {
            let leads = match *id {
                PUNT => Leads::Kernel,
                BLACKHOLE => Leads::Blackhole,
                id => Leads::Gateways(self.hops.gateways(id)),
            };
            (*net, leads)
        })
    }

    /// The MAC address of a neighbour, and the name of its interface.
    pub fn peer(&self, (index, address): Peer) -> (Option<MacAddr>, Option<&str>) {
        let mac = self.neighbours.get(&(address, index)).map(|neighbour| neighbour.mac);
        (mac, self.links.get(&index).map(|link| &*link.name))
    }
}

/// Where what the engine was told leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads<'a> {
    /// To the kernel.
    Kernel,
    /// Nowhere.
    Blackhole,
    /// To these, as far as they are known.
    Gateways(&'a [Gateway]),
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
