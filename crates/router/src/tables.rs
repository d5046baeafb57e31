// SPDX-License-Identifier: Apache-2.0
//! One version of a router's forwarding tables.

use netvm_wire::IpNet;

use crate::next_hop::{NextHop, NextHopId};
use crate::prefix::Prefix;
use crate::trie::Trie;
use crate::update::Update;
use crate::v4::V4;

/// The routes of both families and their next hops. Without routes, every packet is punted.
#[derive(Default)]
pub struct Tables {
    v4: V4,
    v6: Trie,
    next_hops: Vec<NextHop>,
}

impl Tables {
    /// Empty tables, which punt every packet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies changes. The time depends only on the number of routes within the changed prefixes.
    pub fn apply(&mut self, update: &Update) {
        for (id, next_hop) in &update.next_hops {
            self.set_next_hop(*id, next_hop);
        }
        let id = |id: Option<NextHopId>| id.map(|id| if id.is_valid() { id } else { NextHopId::PUNT });
        self.v4.apply(update.routes.iter().filter_map(|(net, to)| match net {
            IpNet::V4(net) => Some((Prefix::new(net.network().to_bits(), net.length()), id(*to))),
            IpNet::V6(_) => None,
        }));
        self.v6.apply(update.routes.iter().filter_map(|(net, to)| match net {
            IpNet::V6(net) => Some((Prefix::new(net.network().to_bits(), net.length()), id(*to))),
            IpNet::V4(_) => None,
        }));
    }

    fn set_next_hop(&mut self, id: NextHopId, next_hop: &NextHop) {
        if id == NextHopId::PUNT || !id.is_valid() {
            return;
        }
        if self.next_hops.len() <= id.index() {
            self.next_hops.resize(id.index() + 1, NextHop::Punt);
        }
        if let Some(place) = self.next_hops.get_mut(id.index()) {
            place.clone_from(next_hop);
        }
    }

    /// Longest-prefix match of a burst of IPv4 addresses. Writes the next hop of each, [`NextHopId::PUNT`] if no route
    /// matches, up to the shorter of the two slices.
    #[inline]
    pub fn lookup_v4(&self, addresses: &[u32], found: &mut [NextHopId]) {
        self.v4.lookup_burst(addresses, found);
    }

    /// Like [`Tables::lookup_v4`], for IPv6 addresses as on the wire.
    #[inline]
    pub fn lookup_v6(&self, addresses: &[[u8; 16]], found: &mut [NextHopId]) {
        self.v6.lookup_burst(addresses, found);
    }

    /// The next hop of an id; [`NextHop::Punt`] if it was never set.
    #[inline]
    #[must_use]
    pub fn next_hop(&self, id: NextHopId) -> &NextHop {
        self.next_hops.get(id.index()).unwrap_or(&NextHop::Punt)
    }

    /// Number of IPv4 and of IPv6 routes.
    #[must_use]
    pub fn routes(&self) -> (usize, usize) {
        (self.v4.routes(), self.v6.routes())
    }

    /// Whether routes were left to the kernel because a family needs more than a GiB. They are [`NextHopId::PUNT`]
    /// until they change.
    #[must_use]
    pub fn was_full(&self) -> bool {
        self.v4.was_full() || self.v6.was_full()
    }

    /// Total bytes. The share of the ordered map of routes is an estimate.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory() + self.next_hops.capacity() * size_of::<NextHop>()
    }
}

#[cfg(test)]
mod tests {
    use netvm_wire::MacAddr;

    use super::*;
    use crate::next_hop::Hop;

    fn one(tables: &Tables, address: &str) -> NextHopId {
        let mut found = [NextHopId(9)];
        match address.parse().unwrap() {
            std::net::IpAddr::V4(address) => tables.lookup_v4(&[address.to_bits()], &mut found),
            std::net::IpAddr::V6(address) => tables.lookup_v6(&[address.octets()], &mut found),
        }
        found[0]
    }

    #[test]
    fn the_longest_prefix_wins_in_both_families() {
        let mut tables = Tables::new();
        let to = |id| Some(NextHopId(id));
        let route = |net: &str, id| (net.parse().unwrap(), id);
        tables.apply(&Update {
            routes: vec![
                route("0.0.0.0/0", to(1)),
                route("10.0.0.0/8", to(2)),
                route("10.1.2.3/32", to(3)),
                route("2001:db8::/32", to(4)),
                route("2001:db8::1/128", to(5)),
            ],
            ..Update::default()
        });
        assert_eq!(tables.routes(), (3, 2));
        for (address, id) in [
            ("9.255.255.255", 1),
            ("10.1.2.2", 2),
            ("10.1.2.3", 3),
            ("10.1.2.4", 2),
            ("2001:db8::", 4),
            ("2001:db8::1", 5),
            ("2001:db9::1", 0),
        ] {
            assert_eq!(one(&tables, address), NextHopId(id), "{address}");
        }
        tables.apply(&Update {
            routes: vec![route("10.0.0.0/8", None), route("2001:db8::1/128", None)],
            ..Update::default()
        });
        assert_eq!(one(&tables, "10.1.2.2"), NextHopId(1));
        assert_eq!(one(&tables, "10.1.2.3"), NextHopId(3));
        assert_eq!(one(&tables, "2001:db8::1"), NextHopId(4));
    }

    #[test]
    fn small_tables_are_small() {
        let mut tables = Tables::new();
        let nets = (0..16u8).flat_map(|n| [format!("10.{n}.0.0/24"), format!("2001:db8:{n}::/64")]);
        let hosts = (0..16u8).flat_map(|n| [format!("10.{n}.0.7/32"), format!("2001:db8:{n}::7/128")]);
        let routes = nets.chain(hosts).map(|net| (net.parse().unwrap(), Some(NextHopId(1))));
        tables.apply(&Update { routes: routes.collect(), ..Update::default() });
        // Two roots of 256 KiB, and some nodes.
        assert!(tables.memory() < 620 << 10, "{}", tables.memory());
    }

    #[test]
    fn the_punt_id_cannot_be_changed() {
        let via = NextHop::Via(Hop { interface: 0, mac: MacAddr::BROADCAST });
        let wrong = NextHopId(u16::MAX);
        let mut tables = Tables::new();
        tables.apply(&Update {
            next_hops: vec![
                (NextHopId::PUNT, via.clone()),
                (wrong, via.clone()),
                (NextHopId(2), via.clone()),
            ],
            routes: vec![("10.0.0.0/8".parse().unwrap(), Some(wrong))],
        });
        assert_eq!(tables.next_hop(NextHopId::PUNT), &NextHop::Punt);
        assert_eq!(tables.next_hop(wrong), &NextHop::Punt);
        assert_eq!(tables.next_hop(NextHopId(1)), &NextHop::Punt);
        assert_eq!(tables.next_hop(NextHopId(2)), &via);
        assert_eq!(one(&tables, "10.0.0.1"), NextHopId::PUNT);
    }
}
