// SPDX-License-Identifier: Apache-2.0
//! Neighbours that were lost, links without carrier, and the state of interfaces.

use super::*;

#[test]
fn neighbours_that_were_known_are_told_from_those_that_never_were() {
    let mut both = RibAndTables::new();
    let peer = (LAN, ip("10.0.0.2"));
    both.apply([
        route("10.0.0.0/24", 0, RouteTarget::Connected(LAN)),
        Change::Neighbour(peer, known(2)),
        Change::Neighbour((WAN, ip("10.0.0.3")), known(3)),
    ]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(0, 2));
    both.apply([Change::Neighbour(peer, None), Change::Neighbour((WAN, ip("10.0.0.3")), None)]);
    assert_eq!(both.id(ip("10.0.0.2")), NextHopId::LOST);
    assert_eq!(both.next_hop("10.0.0.3"), NextHop::Glean(0), "it was another interface's");
    both.apply([Change::Neighbour(peer, known(4))]);
    assert_eq!(both.next_hop("10.0.0.2"), hop(0, 4));
    // Also if a dump shows it, and without its network it is none.
    both.rib.resync([
        link(LAN, true),
        link(WAN, true),
        Change::Rule(Rule { is_v4: true, priority: 0, action: RuleAction::Local }),
        Change::Rule(Rule { is_v4: true, priority: 1, action: RuleAction::Main }),
        route("10.0.0.0/24", 0, RouteTarget::Connected(LAN)),
    ]);
    both.update();
    assert_eq!(both.id(ip("10.0.0.2")), NextHopId::LOST);
    both.apply([Change::RouteGone { key: key("10.0.0.0/24", 0), target: RouteTarget::Connected(LAN) }]);
    assert_eq!(both.id(ip("10.0.0.2")), NextHopId::PUNT);
}

#[test]
fn routes_by_links_without_carrier_are_ignored_if_it_is_set_so() {
    let mut both = RibAndTables::new();
    both.apply([
        Change::Neighbour((LAN, ip("10.0.0.2")), known(2)),
        Change::Neighbour((WAN, ip("10.1.0.1")), known(1)),
        route("20.0.0.0/8", 1, by(&[(WAN, "10.1.0.1", 1)])),
        route("20.0.0.0/8", 2, by(&[(LAN, "10.0.0.2", 1)])),
        route("21.0.0.0/8", 1, by(&[(WAN, "10.1.0.1", 1), (LAN, "10.0.0.2", 1)])),
    ]);
    let wan = |has_carrier| Change::Link(WAN, Link { has_carrier, ..a_link("wan", true) });
    assert!(!both.apply([wan(false)]), "the kernel changes no route");
    assert_eq!(both.next_hop("20.0.0.1"), hop(1, 1));
    let mut global = Global::default();
    global.v4.ignores_linkdown = true;
    both.apply([Change::Global(global)]);
    assert_eq!((both.next_hop("20.0.0.1"), both.next_hop("21.0.0.1")), (hop(0, 2), hop(0, 2)));
    both.apply([wan(true)]);
    assert_eq!(both.next_hop("20.0.0.1"), hop(1, 1));
    assert!(
        both.apply([link(WAN, false)]) && both.apply([link(WAN, true)]),
        "the kernel changes routes silently"
    );
}

#[test]
fn the_state_of_interfaces_follows_their_links_under_any_name() {
    let mut rib = Rib::new(vec![("lan".to_owned(), Some(70)), ("wan".to_owned(), None)]);
    let lan = |name: &str| Link { peer: Some(70), ..a_link(name, true) };
    // Another interface has the configured name.
    for change in [Change::Link(9, a_link("lan", true)), Change::Link(LAN, lan("other")), link(WAN, true)] {
        let _ = rib.apply(change);
    }
    let mut global = Global { forwards_v6: true, ..Global::default() };
    let _ = rib.apply(Change::Global(global));
    let state = rib.changed_state().unwrap();
    let wan = state.interfaces[1].clone().unwrap();
    assert!(state.interfaces[0].is_some() && wan.is_up && wan.forwards == [true, true]);
    assert_eq!((wan.rp_filter, wan.mtus, rib.changed_state()), (None, [1500; 2], None));
    // The larger filter of both counts; without an address, loose is strict.
    global.v4.rp_filter = 2;
    let _ = rib.apply(Change::Global(global));
    let filter = |rib: &mut Rib| rib.changed_state().unwrap().interfaces[1].clone().unwrap().rp_filter;
    assert_eq!(filter(&mut rib), Some(Urpf::Strict));
    let _ = rib.apply(Change::Address(WAN, ip("10.1.0.1"), 24));
    assert_eq!(filter(&mut rib), Some(Urpf::Loose));
    // A VRRP address whose macvlan does not forward.
    let mut macvlan = Link { macvlan: Some((WAN, MacAddr([0, 0, 0x5e, 0, 1, 7]))), ..a_link("vrrp", true) };
    macvlan.settings.v4.forwards = false;
    let _ = rib.apply(Change::Link(20, macvlan));
    let wan = rib.changed_state().unwrap().interfaces[1].clone().unwrap();
    assert_eq!((wan.also.len(), wan.forwards), (1, [false, true]));
    let _ = rib.apply(Change::LinkGone(WAN));
    assert_eq!(rib.changed_state().unwrap().interfaces[1], None);
}

#[test]
fn routes_by_the_bridge_of_an_l3vni_lead_to_its_interface() {
    let [l3, hosts] = [70, 71];
    let mut both = RibAndTables::new();
    let bridge = |index, name: &str| Change::Link(index, a_link(name, true));
    let remote = (l3, ip("192.0.2.2"));
    both.apply([bridge(l3, "br5000"), bridge(hosts, "br100"), Change::Neighbour(remote, known(2))]);
    both.apply([route("20.0.0.0/8", 1, by(&[(l3, "192.0.2.2", 1)]))]);
    assert_eq!(both.next_hop("20.0.0.1"), NextHop::Punt, "only the kernel knows the bridge");
    both.rib.set_bridges([(l3, Some(1)), (hosts, None)].into());
    both.update();
    assert_eq!(both.next_hop("20.0.0.1"), hop(1, 2));
    // A routing daemon says its neighbours; nobody has to ask for them.
    both.apply([Change::Neighbour(remote, None)]);
    assert_eq!(both.rib.neighbours_to_probe().count(), 0);
    both.apply([Change::Neighbour(remote, known(3)), Change::Neighbour((hosts, ip("10.0.0.9")), known(9))]);
    assert_eq!(both.next_hop("20.0.0.1"), hop(1, 3));
    assert_eq!(both.rib.counts().neighbours, 1, "hosts of a network are the switch's");
}
