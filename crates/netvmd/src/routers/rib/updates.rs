// SPDX-License-Identifier: Apache-2.0
//! Decides what the engine does with packets to each prefix, and builds updates from the changes.

use std::net::IpAddr;

use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, MacAddr};

use super::hops::{BLACKHOLE, PUNT, Unreachable};
use super::nets::{self, as_host, host};
use super::{Gateway, Interfaces, Peer, Rib, RouteKey, Target};

/// Most routes in an update; it keeps the engine's thread busy for some milliseconds.
const UPDATE_ROUTES: usize = 8192;

/// The handling of packets to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Is(NextHopId),
    /// Send to this neighbour, or punt, so that the kernel resolves it.
    By(Gateway),
}

impl Rib {
    /// The updates to send to the engine, in order; empty if nothing changed.
    pub fn updates(&mut self) -> Vec<Update> {
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.all_dirty) {
            dirty.extend(self.routes.keys().map(|key| key.net));
            dirty.extend(self.local.iter().chain(&self.wide));
            dirty.extend(self.neighbours.keys().map(|(address, _)| host(*address)));
            dirty.extend(self.lost.addresses().map(host));
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
        let interfaces =
            Interfaces { links: &self.links, interface_map: &self.interface_map, global: &self.global };
        let neighbours = &self.neighbours;
        let resolve = |(index, address): Peer| {
            let (interface, is_up) = interfaces.find(index).ok_or(Unreachable)?;
            if address.is_unspecified() {
                return Ok(Some(Hop { interface, mac: MacAddr::ZERO }));
            }
            let is_used = is_up && !interfaces.are_ignored(index, address.is_ipv4());
            let known = neighbours.get(&(address, index)).filter(|_| is_used);
            Ok(known.map(|neighbour| Hop { interface, mac: neighbour.mac }))
        };
        in_parts(self.hops.changes(resolve), &routes)
    }

    fn decide(&self, net: IpNet) -> Option<Decision> {
        // Also if there are rules: packets of routing protocols keep their own share of the punted packets.
        if self.local.contains(&net) && as_host(net).is_some() {
            return Some(Decision::Is(NextHopId::LOCAL));
        }
        let punted = Some(Decision::Is(NextHopId::KERNEL));
        if !self.rules.are_default(net.is_v4()) {
            // The engine cannot follow other rules: its default route punts all packets.
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
                let neighbour = address.and_then(|address| self.neighbour_route((index, address)));
                neighbour.or_else(|| Some(self.unresolved(index, net)))
            }
            None => {
                let is_known =
                    |address: &IpAddr| self.has_neighbour(*address) || self.lost.has_address(*address);
                let address = address.filter(is_known)?;
                match nets::ancestry(address).find_map(|net| self.best(net))? {
                    Target::Connected(index) => self.neighbour_route((index, address)),
                    _ => None,
                }
            }
        }
    }

    /// The route that the kernel uses for exactly this prefix.
    fn best(&self, net: IpNet) -> Option<Target> {
        let first = RouteKey { net, metric: 0, tos: 0 };
        let last = RouteKey { net, metric: u32::MAX, tos: u8::MAX };
        let of_net = self.routes.range(first..=last);
        let mut all = of_net.filter(|(_, route)| self.is_used(route.target, net.is_v4()));
        let (_, &best) = all.clone().next()?;
        // If a route has a TOS, the destination alone does not decide.
        if all.any(|(key, _)| key.tos != 0) { Some(Target::Kernel) } else { Some(best.target) }
    }

    /// Whether the kernel uses a route: it ignores those whose interfaces have no carrier, if it is set so.
    fn is_used(&self, target: Target, is_v4: bool) -> bool {
        let is_ignored = |index| self.interfaces().are_ignored(index, is_v4);
        match target {
            _ if !self.ignores_any => true,
            Target::Connected(index) => !is_ignored(index),
            Target::By(id) => !self.hops.gateways(id).iter().all(|gateway| is_ignored(gateway.peer.0)),
            Target::Kernel | Target::Blackhole => true,
        }
    }

    fn has_neighbour(&self, address: IpAddr) -> bool {
        self.neighbours.range((address, 0)..=(address, u32::MAX)).next().is_some()
    }

    /// The decision for a neighbour that is resolved, or was a while ago.
    fn neighbour_route(&self, peer: Peer) -> Option<Decision> {
        let (index, address) = peer;
        let lost = || self.lost.has((address, index)).then_some(Decision::Is(NextHopId::LOST));
        self.known(peer).or_else(lost)
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
