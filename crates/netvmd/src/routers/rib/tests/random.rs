// SPDX-License-Identifier: Apache-2.0
//! Random changes, compared with an obvious, slow reference.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netvm_router::{Hop, NextHop};
use netvm_wire::IpNet;

use super::{LAN, RibAndTables, TUNNEL, ip, known};
use crate::routers::rib::nets::not_forwarded;
use crate::routers::rib::{Change, Gateway, Neighbour, Peer, RouteKey, RouteTarget, containing};

/// Pseudo-random numbers (splitmix64).
struct Generator(u64);

impl Generator {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }

    /// One of a few addresses, so that prefixes overlap.
    fn address(&mut self) -> IpAddr {
        if self.below(2) == 0 {
            IpAddr::from([10, self.below(2) as u8, 0, self.below(4) as u8])
        } else {
            IpAddr::from([0x2001, 0xdb8, self.below(2) as u16, 0, 0, 0, 0, self.below(4) as u16])
        }
    }

    fn net(&mut self) -> IpNet {
        let lengths = if self.below(2) == 0 { [0, 8, 15, 24, 30, 32] } else { [0, 32, 48, 64, 126, 128] };
        let address = self.address();
        containing(address, lengths[self.below(6) as usize])
    }

    fn target(&mut self, net: IpNet) -> RouteTarget {
        let index = LAN + self.below(3) as u32;
        match self.below(8) {
            0 => RouteTarget::Kernel,
            1 => RouteTarget::Blackhole,
            2..=4 => RouteTarget::Connected(index),
            _ => {
                let last = self.below(3) as u8;
                let address = if net.is_v4() {
                    IpAddr::from([10, 0, 0, last])
                } else {
                    ip(&format!("2001:db8::{last}"))
                };
                RouteTarget::Gateways(vec![Gateway { peer: (index, address), weight: 1 }])
            }
        }
    }
}

/// An obvious, slow reference.
#[derive(Default)]
struct Reference {
    local: BTreeSet<IpNet>,
    routes: BTreeMap<RouteKey, RouteTarget>,
    neighbours: BTreeMap<Peer, Neighbour>,
    lost: BTreeSet<Peer>,
}

impl Reference {
    fn next_hop(&self, address: IpAddr) -> NextHop {
        let is_local = |net: &IpNet| net.contains(address);
        if self.local.iter().any(is_local) || not_forwarded().any(|net| is_local(&net)) {
            return NextHop::Punt;
        }
        let covering = self.routes.iter().filter(|(key, _)| key.net.contains(address));
        let best = covering.max_by_key(|(key, _)| (key.net.length(), Reverse(key.metric)));
        let to = |peer: Peer, unknown: NextHop| match (peer.0, self.neighbours.get(&peer)) {
            (TUNNEL, _) => NextHop::Punt,
            (_, None) => unknown,
            (index, Some(known)) => NextHop::Via(Hop { interface: (index - LAN) as u16, mac: known.mac }),
        };
        match best {
            Some((_, RouteTarget::Blackhole)) => NextHop::Blackhole,
            Some((_, RouteTarget::Connected(index))) => {
                let peer = (*index, address);
                let unknown = match self.lost.contains(&peer) {
                    true => NextHop::Punt,
                    false => NextHop::Glean(index.saturating_sub(LAN) as u16),
                };
                to(peer, unknown)
            }
            Some((_, RouteTarget::Gateways(gateways))) => to(gateways[0].peer, NextHop::Punt),
            Some((_, RouteTarget::Kernel)) | None => NextHop::Punt,
        }
    }
}

#[test]
fn after_random_changes_the_engine_agrees_with_the_kernel() {
    for seed in 0..15 {
        let (mut generator, mut both, mut reference) =
            (Generator(seed), RibAndTables::new(), Reference::default());
        for _ in 0..150 {
            let change = match generator.below(12) {
                0 => {
                    let net = generator.net();
                    reference.local.insert(net);
                    Change::Local(net)
                }
                1..=2 => {
                    let Some(net) = reference.local.pop_first() else { continue };
                    Change::LocalGone(net)
                }
                3..=6 => {
                    let key = RouteKey { net: generator.net(), metric: generator.below(2) as u32, tos: 0 };
                    let target = generator.target(key.net);
                    reference.routes.insert(key, target.clone());
                    Change::Route { key, target, replaces: true, nexthop: None, expires: None }
                }
                7 => {
                    let Some((key, target)) = reference.routes.pop_first() else { continue };
                    Change::RouteGone { key, target }
                }
                8..=10 => {
                    let peer = (LAN + generator.below(3) as u32, generator.address());
                    let neighbour = known(generator.below(9) as u8);
                    reference.neighbours.extend(neighbour.map(|neighbour| (peer, neighbour)));
                    reference.lost.remove(&peer);
                    Change::Neighbour(peer, neighbour)
                }
                _ => {
                    let Some((peer, _)) = reference.neighbours.pop_last() else { continue };
                    reference.lost.insert(peer);
                    Change::Neighbour(peer, None)
                }
            };
            let said = format!("{change:?}");
            // Sometimes send several changes together.
            if generator.below(3) == 0 {
                let _ = both.rib.apply(change);
                continue;
            }
            both.apply([change]);
            for second in 0..2 {
                for last in 0..4 {
                    for address in
                        [IpAddr::from([10, second, 0, last]), ip(&format!("2001:db8:{second}::{last}"))]
                    {
                        assert_eq!(
                            *both.of(address),
                            reference.next_hop(address),
                            "{seed}: {address} after {said}"
                        );
                    }
                }
            }
        }
    }
}
