use std::collections::BTreeMap;

use netvm_router::Tables;

use super::*;

const LAN: u32 = 2;
const WAN: u32 = 3;
/// An interface that somebody else made in the namespace.
const TUNNEL: u32 = 4;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(text: &str, metric: u32) -> RouteKey {
    RouteKey { net: net(text), metric, tos: 0 }
}

fn by(gateways: &[(u32, &str, u16)]) -> Way {
    let gateway = |(index, address, weight): &(u32, &str, u16)| Gateway {
        peer: (*index, ip(address)),
        weight: *weight,
    };
    Way::Gateways(gateways.iter().map(gateway).collect())
}

fn known(last: u8) -> Option<Neighbour> {
    Some(Neighbour { mac: MacAddr([2, 0, 0, 0, 0, last]), is_stale: false })
}

const fn hop(interface: u16, last: u8) -> NextHop {
    NextHop::Via(Hop { interface, mac: MacAddr([2, 0, 0, 0, 0, last]) })
}

fn route(text: &str, metric: u32, way: Way) -> Change {
    Change::Route { key: key(text, metric), way, replaces: false }
}

fn link(index: u32, is_up: bool) -> Change {
    let name = match index {
        LAN => "lan",
        WAN => "wan",
        _ => "tun0",
    };
    Change::Link(index, Link { name: name.to_owned(), is_up })
}

/// A RIB, and the tables of the engine that hears it.
struct Both {
    rib: Rib,
    tables: Tables,
    /// Routes that the engine was told in the last round.
    told: usize,
}

impl Both {
    fn new() -> Self {
        let rib = Rib::new(vec!["lan".to_owned(), "wan".to_owned()]);
        let mut both = Self { rib, tables: Tables::new(), told: 0 };
        both.hear([link(LAN, true), link(WAN, true), link(TUNNEL, true)]);
        both
    }

    /// Returns whether something was unclear.
    fn hear(&mut self, changes: impl IntoIterator<Item = Change>) -> bool {
        let is_unclear = changes.into_iter().fold(false, |unclear, change| self.rib.hear(change) | unclear);
        self.tell();
        is_unclear
    }

    fn tell(&mut self) {
        self.told = 0;
        for update in self.rib.updates() {
            self.told += update.routes.len();
            self.tables.apply(&update);
        }
        assert!(self.rib.updates().is_empty(), "all was told");
    }

    fn next_hop(&self, address: &str) -> NextHop {
        self.of(ip(address)).clone()
    }

    fn of(&self, address: IpAddr) -> &NextHop {
        let mut found = [NextHopId(9)];
        match address {
            IpAddr::V4(address) => self.tables.lookup_v4(&[address.to_bits()], &mut found),
            IpAddr::V6(address) => self.tables.lookup_v6(&[address.to_bits()], &mut found),
        }
        self.tables.next_hop(found[0])
    }
}

#[test]
fn neighbours_of_connected_networks_are_forwarded_to_and_the_router_itself_is_not() {
    let mut both = Both::new();
    both.hear([
        Change::Local(net("10.0.0.1/32")),
        route("10.0.0.0/24", 0, Way::Connected(LAN)),
        Change::Neighbour((LAN, ip("10.0.0.2")), known(2)),
        // Not in a network of that interface.
        Change::Neighbour((WAN, ip("10.0.0.3")), known(3)),
        Change::Neighbour((LAN, ip("10.9.0.3")), known(3)),
    ]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(0, 2));
    for punted in ["10.0.0.1", "10.0.0.3", "10.0.0.4", "10.9.0.3", "10.0.0.255", "192.0.2.1"] {
        assert_eq!(both.next_hop(punted), NextHop::Punt, "{punted}");
    }
    // Its network gets connected by that interface, and goes again.
    both.hear([route("10.9.0.0/16", 0, Way::Connected(LAN))]);
    assert_eq!(both.next_hop("10.9.0.3"), hop(0, 3));
    both.hear([Change::RouteGone { key: key("10.9.0.0/16", 0), way: Way::Connected(LAN) }]);
    assert_eq!(both.next_hop("10.9.0.3"), NextHop::Punt);
    // A better route to the neighbour's own address.
    both.hear([
        Change::Neighbour((WAN, ip("10.1.0.1")), known(9)),
        route("10.0.0.2/32", 5, by(&[(WAN, "10.1.0.1", 1)])),
    ]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(1, 9));
    both.hear([Change::Neighbour((LAN, ip("10.0.0.2")), None)]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(1, 9));
}

#[test]
fn a_gateway_that_changes_its_address_is_one_entry_and_no_route() {
    let mut both = Both::new();
    let gateway = || by(&[(WAN, "10.1.0.1", 1)]);
    let routes = (0..200).map(|n| route(&format!("20.{n}.0.0/16"), 0, gateway()));
    both.hear(routes.chain([route("10.1.0.0/24", 0, Way::Connected(WAN))]));
    assert_eq!(both.next_hop("20.7.0.1"), NextHop::Punt, "the kernel is to find the gateway");
    assert_eq!(both.rib.to_look_after().collect::<Vec<_>>(), [(WAN, ip("10.1.0.1"))]);
    both.hear([Change::Neighbour((WAN, ip("10.1.0.1")), known(1))]);
    assert_eq!((both.next_hop("20.7.0.1"), both.told), (hop(1, 1), 1), "its own address is the one");
    assert_eq!(both.rib.to_look_after().count(), 0);
    both.hear([Change::Neighbour((WAN, ip("10.1.0.1")), known(2))]);
    assert_eq!((both.next_hop("20.199.0.1"), both.told), (hop(1, 2), 0));
    assert_eq!(both.rib.counts().next_hops, 1);
    // Nobody has outcome of it: it carries on, and is asked for.
    let stale = known(2).map(|known| Neighbour { is_stale: true, ..known });
    both.hear([Change::Neighbour((WAN, ip("10.1.0.1")), stale)]);
    assert_eq!((both.next_hop("20.1.0.1"), both.told), (hop(1, 2), 0));
    assert_eq!(both.rib.to_look_after().count(), 1);
    both.hear([link(WAN, false)]);
    assert_eq!(both.next_hop("20.1.0.1"), NextHop::Punt);
}

#[test]
fn the_kernel_keeps_what_only_it_does() {
    let mut both = Both::new();
    both.hear([
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
        Change::Neighbour((TUNNEL, ip("10.2.0.1")), known(2)),
        route("0.0.0.0/0", 0, by(&[(WAN, "10.1.0.1", 1)])),
        route("20.0.0.0/8", 0, by(&[(TUNNEL, "10.2.0.1", 1)])),
        route("21.0.0.0/8", 0, by(&[(WAN, "10.1.0.1", 1), (TUNNEL, "10.2.0.1", 1)])),
        route("22.0.0.0/8", 0, Way::Kernel),
        route("23.0.0.0/8", 0, Way::Blackhole),
        Change::Local(net("24.0.0.0/8")),
        route("24.1.0.0/16", 0, by(&[(WAN, "10.1.0.1", 1)])),
        route("25.0.0.0/8", 0, by(&[(WAN, "10.1.0.1", 1)])),
        Change::Route {
            key: RouteKey { tos: 8, ..key("25.0.0.0/8", 0) },
            way: by(&[(WAN, "10.1.0.1", 1)]),
            replaces: false,
        },
    ]);
    assert_eq!(both.next_hop("192.0.2.1"), hop(1, 1));
    assert_eq!(both.next_hop("23.0.0.1"), NextHop::Blackhole);
    for punted in [
        "20.0.0.1",
        "21.0.0.1",
        "22.0.0.1",
        "24.1.0.1",
        "25.0.0.1",
        "127.0.0.1",
        "224.0.0.5",
        "255.255.255.255",
    ] {
        assert_eq!(both.next_hop(punted), NextHop::Punt, "{punted}");
    }
    both.hear([Change::LocalGone(net("24.0.0.0/8"))]);
    assert_eq!(both.next_hop("24.1.0.1"), hop(1, 1));
    both.hear([Change::Rule]);
    assert_eq!(both.next_hop("192.0.2.1"), NextHop::Punt);
    assert_eq!(both.next_hop("23.0.0.1"), NextHop::Punt);
}

#[test]
fn several_gateways_share_by_weight_and_those_not_known_get_nothing() {
    let mut both = Both::new();
    both.hear([
        route("0.0.0.0/0", 0, by(&[(LAN, "10.0.0.9", 1), (WAN, "10.1.0.1", 3)])),
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
    ]);
    assert_eq!(both.next_hop("192.0.2.1"), hop(1, 1));
    assert_eq!(both.rib.to_look_after().collect::<Vec<_>>(), [(LAN, ip("10.0.0.9"))]);
    both.hear([Change::Neighbour((LAN, ip("10.0.0.9")), known(9))]);
    let one = |interface, last| Hop { interface, mac: MacAddr([2, 0, 0, 0, 0, last]) };
    let spread = [one(0, 9), one(1, 1), one(1, 1), one(1, 1)];
    assert_eq!(both.next_hop("192.0.2.1"), NextHop::Ecmp(Box::new(spread)));
    // An IPv4 route by an IPv6 gateway (RFC 5549).
    both.hear([
        route("30.0.0.0/8", 0, by(&[(LAN, "fe80::9", 1)])),
        Change::Neighbour((LAN, ip("fe80::9")), known(7)),
    ]);
    assert_eq!(both.next_hop("30.0.0.1"), hop(0, 7));
}

#[test]
fn the_lowest_metric_wins_and_the_next_takes_over() {
    let mut both = Both::new();
    let (slow, fast) = (by(&[(LAN, "10.0.0.9", 1)]), by(&[(WAN, "10.1.0.1", 1)]));
    both.hear([
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
        Change::Neighbour((LAN, ip("10.0.0.9")), known(9)),
        route("20.0.0.0/8", 200, slow.clone()),
        route("20.0.0.0/8", 100, fast.clone()),
    ]);
    assert_eq!(both.next_hop("20.0.0.1"), hop(1, 1));
    let gone = |metric, way: &Way| Change::RouteGone { key: key("20.0.0.0/8", metric), way: way.clone() };
    assert!(!both.hear([gone(100, &fast)]));
    assert_eq!(both.next_hop("20.0.0.1"), hop(0, 9));
    assert!(both.hear([gone(200, &fast)]), "that was another route");
    assert!(both.hear([route("20.0.0.0/8", 200, fast)]), "which of two comes first is unclear");
    assert!(!both.hear([gone(300, &slow)]), "of one that is not there nothing is left");
}

#[test]
fn beginning_anew_tells_only_what_differs() {
    let mut both = Both::new();
    let all = |last: u8, count: u8| {
        let routes = (0..count).map(|n| route(&format!("20.{n}.0.0/16"), 0, by(&[(WAN, "10.1.0.1", 1)])));
        let others = [
            link(LAN, true),
            link(WAN, true),
            Change::Neighbour((WAN, ip("10.1.0.1")), known(last)),
            Change::Local(net("10.0.0.1/32")),
        ];
        others.into_iter().chain(routes)
    };
    both.rib.begin_anew(all(1, 100));
    both.tell();
    assert_eq!(both.next_hop("20.99.0.1"), hop(1, 1));
    both.rib.begin_anew(all(1, 100));
    both.tell();
    assert_eq!(both.told, 0);
    both.rib.begin_anew(all(2, 99));
    both.tell();
    assert_eq!((both.told, both.next_hop("20.98.0.1")), (1, hop(1, 2)));
    assert_eq!(both.next_hop("20.99.0.1"), NextHop::Punt);
    assert!(both.hear([link(WAN, false)]), "routes may go with it without a word");
}

/// Numbers that look random (splitmix64).
struct Generator(u64);

impl Generator {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }

    /// Of a few, so that they cover each other.
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

    fn way(&mut self, net: IpNet) -> Way {
        let index = LAN + self.below(3) as u32;
        match self.below(8) {
            0 => Way::Kernel,
            1 => Way::Blackhole,
            2..=4 => Way::Connected(index),
            _ => {
                let last = self.below(3) as u8;
                let address = if net.is_v4() {
                    IpAddr::from([10, 0, 0, last])
                } else {
                    ip(&format!("2001:db8::{last}"))
                };
                Way::Gateways(vec![Gateway { peer: (index, address), weight: 1 }])
            }
        }
    }
}

/// The same, obvious and slow.
#[derive(Default)]
struct Reference {
    local: BTreeSet<IpNet>,
    routes: BTreeMap<RouteKey, Way>,
    neighbours: BTreeMap<Peer, Neighbour>,
}

impl Reference {
    fn next_hop(&self, address: IpAddr) -> NextHop {
        let is_local = |net: &IpNet| net.contains(address);
        if self.local.iter().any(is_local) || nets::not_forwarded().any(|net| is_local(&net)) {
            return NextHop::Punt;
        }
        let covering = self.routes.iter().filter(|(key, _)| key.net.contains(address));
        let best = covering.max_by_key(|(key, _)| (key.net.length(), std::cmp::Reverse(key.metric)));
        let to = |peer: Peer| match (peer.0, self.neighbours.get(&peer)) {
            (TUNNEL, _) | (_, None) => NextHop::Punt,
            (index, Some(known)) => NextHop::Via(Hop { interface: (index - LAN) as u16, mac: known.mac }),
        };
        match best {
            Some((_, Way::Blackhole)) => NextHop::Blackhole,
            Some((_, Way::Connected(index))) => to((*index, address)),
            Some((_, Way::Gateways(gateways))) => to(gateways[0].peer),
            Some((_, Way::Kernel)) | None => NextHop::Punt,
        }
    }
}

#[test]
fn whatever_happens_the_engine_does_what_the_kernel_would() {
    for seed in 0..15 {
        let (mut generator, mut both, mut reference) = (Generator(seed), Both::new(), Reference::default());
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
                    let way = generator.way(key.net);
                    reference.routes.insert(key, way.clone());
                    Change::Route { key, way, replaces: true }
                }
                7 => {
                    let Some((key, way)) = reference.routes.pop_first() else { continue };
                    Change::RouteGone { key, way }
                }
                8..=10 => {
                    let peer = (LAN + generator.below(3) as u32, generator.address());
                    let neighbour = known(generator.below(9) as u8);
                    reference.neighbours.extend(neighbour.map(|neighbour| (peer, neighbour)));
                    Change::Neighbour(peer, neighbour)
                }
                _ => {
                    let Some((peer, _)) = reference.neighbours.pop_last() else { continue };
                    Change::Neighbour(peer, None)
                }
            };
            let said = format!("{change:?}");
            // Sometimes several at once.
            if generator.below(3) == 0 {
                let _ = both.rib.hear(change);
                continue;
            }
            both.hear([change]);
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
