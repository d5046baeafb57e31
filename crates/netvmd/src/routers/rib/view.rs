// SPDX-License-Identifier: Apache-2.0
//! Read access to a [`Rib`], for the API and for neighbour probes.

use std::net::IpAddr;
use std::ops::Bound;

use netvm_router::NextHopId;
use netvm_wire::{IpNet, MacAddr};

use super::hops::{BLACKHOLE, PUNT};
use super::{Counts, Destination, Neighbour, Peer, Rib, Select, nets};

impl Rib {
    /// Neighbours with their MAC addresses on interfaces of the router, by address.
    pub fn neighbours(&self) -> impl Iterator<Item = (IpAddr, &str, Neighbour)> {
        self.neighbours.iter().filter_map(|((address, index), neighbour)| {
            let name = &self.links.get(index)?.name;
            self.interface_map.of(*index).map(|_| (*address, &**name, *neighbour))
        })
    }

    /// Neighbours to probe: unresolved gateways and stale neighbours in use. The kernel does not probe them itself,
    /// because it does not see the packets.
    pub fn neighbours_to_probe(&self) -> impl Iterator<Item = Peer> {
        self.hops.peers().filter(|(index, address)| {
            !self.interface_map.is_bridge(*index)
                && self.interfaces().find(*index).is_some_and(|(_, is_up)| is_up)
                && self.neighbours.get(&(*address, *index)).is_none_or(|neighbour| neighbour.is_stale)
        })
    }

    /// A neighbour to resolve: an address of a connected network, behind which the engine has no MAC address. Others'
    /// gateways are among [`Rib::neighbours_to_probe`].
    pub fn to_resolve(&self, address: IpAddr) -> Option<Peer> {
        let known = |net: IpNet| self.sent.get(&net).filter(|id| **id != NextHopId::LOST);
        let id = nets::ancestry(address).find_map(known)?;
        match self.hops.gateways(*id) {
            [only] if only.is_glean() => {
                let index = only.peer.0;
                self.interfaces().find(index).filter(|(_, is_up)| *is_up).map(|_| (index, address))
            }
            _ => None,
        }
    }

    /// The families whose packets are all punted because of policy routing rules, and whether next hops ran out.
    pub fn limitations(&self) -> (Option<&'static str>, bool) {
        let families = match [true, false].map(|is_v4| self.rules.are_default(is_v4)) {
            [true, true] => None,
            [false, true] => Some("IPv4"),
            [true, false] => Some("IPv6"),
            [false, false] => Some("IPv4 and IPv6"),
        };
        (families, self.hops.refused() > 0)
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
            has_rules: self.limitations().0.is_some(),
            has_nat: self.has_nat,
        }
    }

    /// The selected routes of the engine by prefix, with their destinations.
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
            PUNT | NextHopId::LOCAL | NextHopId::RESOLVE | NextHopId::KERNEL | NextHopId::LOST => {
                Destination::Kernel
            }
            BLACKHOLE => Destination::Blackhole,
            id => match self.hops.gateways(id) {
                [only] if only.is_glean() => Destination::Kernel,
                gateways => Destination::Gateways(gateways),
            },
        }
    }

    /// The router's interfaces as its namespace has them, by their places in the configuration: name, MAC address, and
    /// addresses with their prefix lengths, except link-local IPv6 addresses.
    pub fn own_interfaces(&self) -> impl Iterator<Item = (u16, &str, MacAddr, Vec<(IpAddr, u8)>)> {
        self.links.iter().filter_map(move |(index, link)| {
            let addresses = self.addresses_on(*index).collect();
            Some((self.interface_map.of(*index)?, &*link.name, link.settings.mac, addresses))
        })
    }

    /// The addresses of an interface with their prefix lengths, except link-local IPv6 addresses.
    pub(super) fn addresses_on(&self, index: u32) -> impl Iterator<Item = (IpAddr, u8)> {
        let is_link_local = |address| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let of = self.addresses.iter().filter(move |((of, _), _)| *of == index);
        let shown = of.filter(move |((_, address), _)| !is_link_local(*address));
        shown.map(|((_, address), length)| (*address, *length))
    }

    /// The MAC address of a neighbour, and the name of its interface.
    pub fn peer(&self, (index, address): Peer) -> (Option<MacAddr>, Option<&str>) {
        let mac = self.neighbours.get(&(address, index)).map(|neighbour| neighbour.mac);
        (mac, self.links.get(&index).map(|link| &*link.name))
    }
}
