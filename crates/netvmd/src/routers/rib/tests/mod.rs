// SPDX-License-Identifier: Apache-2.0
//! Applies changes of a kernel, and checks where the engine then sends packets.

mod links;
mod random;

use netvm_model::Urpf;
use netvm_router::{Hop, NextHop, Tables};
use netvm_wire::MacAddr;

use super::*;

const LAN: u32 = 2;
const WAN: u32 = 3;
/// An interface in the namespace that the engine does not have.
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

fn by(gateways: &[(u32, &str, u16)]) -> RouteTarget {
    let gateway = |(index, address, weight): &(u32, &str, u16)| Gateway {
        peer: (*index, ip(address)),
        weight: *weight,
    };
    RouteTarget::Gateways(gateways.iter().map(gateway).collect())
}

fn known(last: u8) -> Option<Neighbour> {
    Some(Neighbour { mac: MacAddr([2, 0, 0, 0, 0, last]), is_stale: false })
}

const fn hop(interface: u16, last: u8) -> NextHop {
    NextHop::Via(Hop { interface, mac: MacAddr([2, 0, 0, 0, 0, last]) })
}

fn route(text: &str, metric: u32, target: RouteTarget) -> Change {
    Change::Route { key: key(text, metric), target, replaces: false, nexthop: None, expires: None }
}

fn a_link(name: &str, is_up: bool) -> Link {
    let v4 = SettingsV4 { forwards: true, ..SettingsV4::default() };
    let v6 = SettingsV6 { mtu: 1500, ..SettingsV6::default() };
    let settings = Settings { mac: MacAddr::ZERO, mtu: 1500, is_enslaved: false, v4, v6 };
    Link { name: name.to_owned(), is_up, has_carrier: is_up, peer: None, macvlan: None, settings }
}

fn link(index: u32, is_up: bool) -> Change {
    let name = match index {
        LAN => "lan",
        WAN => "wan",
        _ => "tun0",
    };
    Change::Link(index, a_link(name, is_up))
}

/// A RIB, and the engine tables that take its updates.
struct RibAndTables {
    rib: Rib,
    tables: Tables,
    /// Routes in the last round's updates.
    sent: usize,
}

impl RibAndTables {
    fn new() -> Self {
        let rib = Rib::new(["lan", "wan"].map(|name| (name.to_owned(), None)).to_vec());
        let mut both = Self { rib, tables: Tables::new(), sent: 0 };
        both.apply([link(LAN, true), link(WAN, true), link(TUNNEL, true)]);
        both
    }

    /// Applies changes; true if one was unclear.
    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> bool {
        let is_unclear = changes.into_iter().fold(false, |unclear, change| self.rib.apply(change) | unclear);
        self.update();
        is_unclear
    }

    fn update(&mut self) {
        self.sent = 0;
        for update in self.rib.updates() {
            self.sent += update.routes.len();
            self.tables.apply(&update);
        }
        assert!(self.rib.updates().is_empty(), "nothing is left to send");
    }

    fn next_hop(&self, address: &str) -> NextHop {
        self.of(ip(address)).clone()
    }

    fn of(&self, address: IpAddr) -> &NextHop {
        self.tables.next_hop(self.id(address))
    }

    fn id(&self, address: IpAddr) -> NextHopId {
        let mut found = [NextHopId(9)];
        match address {
            IpAddr::V4(address) => self.tables.lookup_v4(&[address.to_bits()], &mut found),
            IpAddr::V6(address) => self.tables.lookup_v6(&[address.octets()], &mut found),
        }
        found[0]
    }
}

#[test]
fn neighbours_of_connected_networks_have_routes_but_local_addresses_do_not() {
    let mut both = RibAndTables::new();
    both.apply([
        Change::Local(net("10.0.0.1/32")),
        route("10.0.0.0/24", 0, RouteTarget::Connected(LAN)),
        Change::Neighbour((LAN, ip("10.0.0.2")), known(2)),
        // Outside that interface's networks.
        Change::Neighbour((WAN, ip("10.0.0.3")), known(3)),
        Change::Neighbour((LAN, ip("10.9.0.3")), known(3)),
    ]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(0, 2));
    for punted in ["10.0.0.1", "10.9.0.3", "192.0.2.1"] {
        assert_eq!(both.next_hop(punted), NextHop::Punt, "{punted}");
    }
    for unresolved in ["10.0.0.3", "10.0.0.4", "10.0.0.255"] {
        assert_eq!(both.next_hop(unresolved), NextHop::Glean(0), "{unresolved}");
    }
    assert_eq!(both.id(ip("192.0.2.1")), NextHopId::PUNT, "there is no route");
    assert_eq!(both.rib.counts().next_hops, 1);
    assert_eq!(both.rib.neighbours_to_probe().count(), 0);
    // Its network is connected by that interface, then removed.
    both.apply([route("10.9.0.0/16", 0, RouteTarget::Connected(LAN))]);
    assert_eq!(both.next_hop("10.9.0.3"), hop(0, 3));
    both.apply([Change::RouteGone { key: key("10.9.0.0/16", 0), target: RouteTarget::Connected(LAN) }]);
    assert_eq!(both.next_hop("10.9.0.3"), NextHop::Punt);
    // A better route to the neighbour's address.
    both.apply([
        Change::Neighbour((WAN, ip("10.1.0.1")), known(9)),
        route("10.0.0.2/32", 5, by(&[(WAN, "10.1.0.1", 1)])),
    ]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(1, 9));
    both.apply([Change::Neighbour((LAN, ip("10.0.0.2")), None)]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(1, 9));
}

#[test]
fn a_changed_gateway_updates_one_entry_and_no_route() {
    let mut both = RibAndTables::new();
    let gateway = || by(&[(WAN, "10.1.0.1", 1)]);
    let routes = (0..200).map(|n| route(&format!("20.{n}.0.0/16"), 0, gateway()));
    both.apply(routes.chain([route("10.1.0.0/24", 0, RouteTarget::Connected(WAN))]));
    assert_eq!(both.next_hop("20.7.0.1"), NextHop::Punt, "the kernel must resolve the gateway");
    assert_eq!(both.rib.neighbours_to_probe().collect::<Vec<_>>(), [(WAN, ip("10.1.0.1"))]);
    both.apply([Change::Neighbour((WAN, ip("10.1.0.1")), known(1))]);
    assert_eq!((both.next_hop("20.7.0.1"), both.sent), (hop(1, 1), 1), "only its host route is new");
    assert_eq!(both.rib.neighbours_to_probe().count(), 0);
    both.apply([Change::Neighbour((WAN, ip("10.1.0.1")), known(2))]);
    assert_eq!((both.next_hop("20.199.0.1"), both.sent), (hop(1, 2), 0));
    assert_eq!(both.rib.counts().next_hops, 1);
    // Stale: it stays in use and is probed.
    let stale = known(2).map(|known| Neighbour { is_stale: true, ..known });
    both.apply([Change::Neighbour((WAN, ip("10.1.0.1")), stale)]);
    assert_eq!((both.next_hop("20.1.0.1"), both.sent), (hop(1, 2), 0));
    assert_eq!(both.rib.neighbours_to_probe().count(), 1);
    both.apply([link(WAN, false)]);
    assert_eq!(both.next_hop("20.1.0.1"), NextHop::Punt);
}

#[test]
fn routes_that_only_the_kernel_handles_are_punted() {
    let mut both = RibAndTables::new();
    both.apply([
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
        Change::Neighbour((TUNNEL, ip("10.2.0.1")), known(2)),
        route("0.0.0.0/0", 0, by(&[(WAN, "10.1.0.1", 1)])),
        route("20.0.0.0/8", 0, by(&[(TUNNEL, "10.2.0.1", 1)])),
        route("21.0.0.0/8", 0, by(&[(WAN, "10.1.0.1", 1), (TUNNEL, "10.2.0.1", 1)])),
        route("22.0.0.0/8", 0, RouteTarget::Kernel),
        route("23.0.0.0/8", 0, RouteTarget::Blackhole),
        Change::Local(net("24.0.0.0/8")),
        route("24.1.0.0/16", 0, by(&[(WAN, "10.1.0.1", 1)])),
        route("25.0.0.0/8", 0, by(&[(WAN, "10.1.0.1", 1)])),
        Change::Route {
            key: RouteKey { tos: 8, ..key("25.0.0.0/8", 0) },
            target: by(&[(WAN, "10.1.0.1", 1)]),
            replaces: false,
            nexthop: None,
            expires: None,
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
        assert_ne!(both.id(ip(punted)), NextHopId::PUNT, "{punted}: there is a route");
    }
    both.apply([Change::LocalGone(net("24.0.0.0/8"))]);
    assert_eq!(both.next_hop("24.1.0.1"), hop(1, 1));
}

#[test]
fn rules_make_the_engine_punt_all_packets_of_their_family() {
    let mut both = RibAndTables::new();
    let state = || {
        [
            link(WAN, true),
            Change::Local(net("10.1.0.9/32")),
            Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
            route("0.0.0.0/0", 0, by(&[(WAN, "10.1.0.1", 1)])),
            route("23.0.0.0/8", 0, RouteTarget::Blackhole),
            route("2001:db8::/32", 0, RouteTarget::Blackhole),
        ]
    };
    let rules = |families: &[bool]| -> Vec<Change> {
        families.iter().flat_map(|is_v4| Rule::defaults(*is_v4)).map(Change::Rule).collect()
    };
    let is_followed = |both: &RibAndTables, is_v4: bool| {
        let (routed, blackhole) =
            if is_v4 { ("192.0.2.1", "23.0.0.1") } else { ("2001:db9::1", "2001:db8::1") };
        let expected = if is_v4 { hop(1, 1) } else { NextHop::Punt };
        if both.next_hop(blackhole) == NextHop::Blackhole {
            assert_eq!(both.next_hop(routed), expected);
            return true;
        }
        for anywhere in [routed, blackhole] {
            assert_eq!(both.id(ip(anywhere)), NextHopId::KERNEL, "{anywhere}: its rules decide");
        }
        false
    };
    both.apply(state());
    assert!(is_followed(&both, true) && is_followed(&both, false), "a new namespace");
    assert_eq!(both.rib.limitations().0, None);
    // An added rule is in force before the next dump.
    assert!(!both.apply([Change::Rule(Rule { is_v4: true, priority: 7, action: RuleAction::Other })]));
    assert!(!is_followed(&both, true) && is_followed(&both, false));
    assert_eq!(both.id(ip("10.1.0.9")), NextHopId::LOCAL, "packets for the router keep their class");
    assert_eq!((both.rib.limitations().0, both.rib.counts().has_rules), (Some("IPv4"), true));
    // Dumps: without it, without the rules of a family, without any.
    let mut dump = |rules: Vec<Change>| {
        both.rib.resync(state().into_iter().chain(rules));
        both.update();
        ([true, false].map(|is_v4| is_followed(&both, is_v4)), both.rib.limitations().0)
    };
    assert_eq!(dump(rules(&[true, false])), ([true, true], None));
    assert_eq!(dump(rules(&[true])), ([true, false], Some("IPv6")));
    assert_eq!(dump(rules(&[])), ([false, false], Some("IPv4 and IPv6")));
    // The missing rules are added one by one.
    both.apply(rules(&[false]));
    assert!(!is_followed(&both, true) && is_followed(&both, false));
    both.apply(rules(&[true]));
    assert!(is_followed(&both, true) && is_followed(&both, false));
}

#[test]
fn gateways_share_by_weight_and_unresolved_ones_get_nothing() {
    let mut both = RibAndTables::new();
    both.apply([
        route("0.0.0.0/0", 0, by(&[(LAN, "10.0.0.9", 1), (WAN, "10.1.0.1", 3)])),
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
    ]);
    assert_eq!(both.next_hop("192.0.2.1"), hop(1, 1));
    assert_eq!(both.rib.neighbours_to_probe().collect::<Vec<_>>(), [(LAN, ip("10.0.0.9"))]);
    both.apply([Change::Neighbour((LAN, ip("10.0.0.9")), known(9))]);
    let one = |interface, last| Hop { interface, mac: MacAddr([2, 0, 0, 0, 0, last]) };
    let spread = [one(0, 9), one(1, 1), one(1, 1), one(1, 1)];
    assert_eq!(both.next_hop("192.0.2.1"), NextHop::Ecmp(Box::new(spread)));
    // An IPv4 route by an IPv6 gateway (RFC 5549).
    both.apply([
        route("30.0.0.0/8", 0, by(&[(LAN, "fe80::9", 1)])),
        Change::Neighbour((LAN, ip("fe80::9")), known(7)),
    ]);
    assert_eq!(both.next_hop("30.0.0.1"), hop(0, 7));
}

#[test]
fn the_lowest_metric_wins_and_the_next_takes_over() {
    let mut both = RibAndTables::new();
    let (slow, fast) = (by(&[(LAN, "10.0.0.9", 1)]), by(&[(WAN, "10.1.0.1", 1)]));
    both.apply([
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
        Change::Neighbour((LAN, ip("10.0.0.9")), known(9)),
        route("20.0.0.0/8", 200, slow.clone()),
        route("20.0.0.0/8", 100, fast.clone()),
    ]);
    assert_eq!(both.next_hop("20.0.0.1"), hop(1, 1));
    let gone = |metric, target: &RouteTarget| Change::RouteGone {
        key: key("20.0.0.0/8", metric),
        target: target.clone(),
    };
    assert!(!both.apply([gone(100, &fast)]));
    assert_eq!(both.next_hop("20.0.0.1"), hop(0, 9));
    assert!(both.apply([gone(200, &fast)]), "another route had this key");
    assert!(both.apply([route("20.0.0.0/8", 200, fast)]), "the order of two is unclear");
    assert!(!both.apply([gone(300, &slow)]), "removing an unknown route changes nothing");
}

#[test]
fn a_dump_sends_only_differences() {
    let mut both = RibAndTables::new();
    let all = |last: u8, count: u8| {
        let routes = (0..count).map(|n| route(&format!("20.{n}.0.0/16"), 0, by(&[(WAN, "10.1.0.1", 1)])));
        let others = [
            link(LAN, true),
            link(WAN, true),
            Change::Neighbour((WAN, ip("10.1.0.1")), known(last)),
            Change::Local(net("10.0.0.1/32")),
        ];
        others.into_iter().chain(Rule::defaults(true).map(Change::Rule)).chain(routes)
    };
    both.rib.resync(all(1, 100));
    both.update();
    assert_eq!(both.next_hop("20.99.0.1"), hop(1, 1));
    both.rib.resync(all(1, 100));
    both.update();
    assert_eq!(both.sent, 0);
    both.rib.resync(all(2, 99));
    both.update();
    assert_eq!((both.sent, both.next_hop("20.98.0.1")), (1, hop(1, 2)));
    assert_eq!(both.next_hop("20.99.0.1"), NextHop::Punt);
    assert!(both.apply([link(WAN, false)]), "the kernel may remove routes without an event");
}

#[test]
fn routes_are_selected_by_family_prefix_and_address_and_read_in_pages() {
    let mut both = RibAndTables::new();
    both.apply([
        Change::Local(net("10.0.0.1/32")),
        route("10.0.0.0/24", 0, RouteTarget::Connected(LAN)),
        route("20.0.0.0/8", 0, by(&[(WAN, "10.1.0.1", 1)])),
        route("20.1.0.0/16", 0, RouteTarget::Blackhole),
        route("2001:db8::/32", 0, RouteTarget::Blackhole),
        Change::Address(LAN, ip("10.0.0.1"), 24),
        Change::Address(LAN, ip("fe80::1"), 64),
    ]);
    let nets =
        |select: Select| -> Vec<String> { both.rib.routes(select).map(|(net, _)| net.to_string()).collect() };
    let all = nets(Select::default());
    let v6 = Select { family: Some(6), ..Select::default() };
    assert!(nets(v6).contains(&"2001:db8::/32".to_owned()) && nets(v6).iter().all(|net| net.contains(':')));
    let within = |prefix| nets(Select { prefix: Some(net(prefix)), ..Select::default() });
    assert_eq!(within("20.0.0.0/8"), ["20.0.0.0/8", "20.1.0.0/16"]);
    assert_eq!(within("20.1.2.0/24"), [""; 0]);
    let to = |address| nets(Select { address: Some(ip(address)), ..Select::default() });
    assert_eq!((to("20.1.2.3"), to("20.2.0.1")), (vec!["20.1.0.0/16".into()], vec!["20.0.0.0/8".into()]));
    assert_eq!((to("10.0.0.1"), to("10.0.0.2")), (vec!["10.0.0.1/32".into()], vec!["10.0.0.0/24".into()]));
    assert_eq!(to("30.0.0.1"), [""; 0]);
    // Page by page it is the same.
    let mut paged: Vec<String> = Vec::new();
    while let Some(next) =
        nets(Select { after: paged.last().map(|last| net(last)), ..Select::default() }).first()
    {
        paged.push(next.clone());
    }
    assert_eq!(paged, all);
    let addresses = |rib: &Rib| {
        let lan = rib.own_interfaces().find(|(_, name, ..)| *name == "lan");
        lan.map(|(place, _, mac, addresses)| (place, mac, addresses)).unwrap()
    };
    assert_eq!(addresses(&both.rib), (0, MacAddr::ZERO, vec![(ip("10.0.0.1"), 24)]));
    both.apply([Change::AddressGone(LAN, ip("10.0.0.1"))]);
    assert_eq!(addresses(&both.rib), (0, MacAddr::ZERO, Vec::new()));
}
