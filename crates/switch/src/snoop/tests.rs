// SPDX-License-Identifier: Apache-2.0
//! Snooping as a whole, beside a slow reference.

mod messages;
mod model;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_wire::{Address, MacAddr, VlanId, parse};

use super::*;
use crate::{Bridge, BridgePort, FloodOf, VlanPort};

const SECOND: Duration = Duration::from_secs(1);

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn settings(querier: Option<&str>) -> SnoopSettings {
    let own = |v4: &str| QuerierAddresses::of(MacAddr([2, 0, 0, 0, 0, 7]), v4.parse::<Ipv4Addr>().unwrap());
    SnoopSettings {
        querier: querier.map(own),
        query_interval: 100 * SECOND,
        response: 10 * SECOND,
        last_member_interval: SECOND,
        floods_unregistered: true,
    }
}

fn port() -> PortSettings {
    PortSettings { has_fast_leave: false, router: RouterPort::Auto, max_groups: 100, groups: Vec::new() }
}

/// Ports of one VLAN, without a number.
fn bridge(ports: &BTreeMap<u16, PortSettings>) -> Arc<Bridge> {
    let port = |number: &u16| {
        (*number, BridgePort { vlan: VlanPort::Unaware, group: None, limit: None, new_per_second: None })
    };
    Arc::new(Bridge::new(ports.keys().map(port)).unwrap())
}

/// A switch with ports 1 to 4, and the time.
struct Switch {
    snooper: Snooper,
    bridge: Arc<Bridge>,
    table: GroupTable,
    now: Instant,
}

impl Switch {
    fn new(settings: SnoopSettings, changed: impl Fn(&mut BTreeMap<u16, PortSettings>)) -> Self {
        let mut ports: BTreeMap<u16, PortSettings> = (1..=4).map(|number| (number, port())).collect();
        changed(&mut ports);
        let (bridge, now) = (bridge(&ports), Instant::now());
        let snooper = Snooper::new(settings, ports, Arc::clone(&bridge), now);
        Self { snooper, bridge, table: GroupTable::default(), now }
    }

    /// Lets time pass in steps of the manager. Returns the frames that were sent.
    fn pass(&mut self, time: Duration) -> Vec<ToSend> {
        let (end, mut sent) = (self.now + time, Vec::new());
        loop {
            sent.extend(self.snooper.service(self.now));
            if self.snooper.take_changed() {
                self.table = self.snooper.table();
            }
            if self.now >= end {
                return sent;
            }
            self.now = (self.now + SECOND / 4).min(end);
        }
    }

    fn hear(&mut self, port: u16, announced: Announcement) {
        self.snooper.hear(port, (0, announced), self.now);
    }

    fn say(&mut self, port: u16, group: &str, change: Change) {
        self.hear(port, Announcement::Group(address(group), change));
    }

    /// The ports that a packet of a host behind port 4 for a group goes to.
    fn ports_of(&self, group: &str) -> Vec<u16> {
        let set = self.table.of_group(0, address(group));
        match set.is_all() {
            true => self.bridge.flood(4, 0).collect(),
            false => self.table.flood(set, &self.bridge, FloodOf { ingress: 4, vlan: 0, first: 0 }).collect(),
        }
    }
}

fn query(source: &str, group: Option<&str>) -> Announcement {
    Announcement::Query(Query {
        source: address(source),
        group: group.map(address),
        response: if group.is_some() { SECOND } else { 10 * SECOND },
        interval: None,
        may_end: true,
    })
}

const GROUP: &str = "239.1.1.1";

#[test]
fn groups_are_pruned_while_somebody_queries() {
    let mut switch = Switch::new(settings(None), |_| ());
    switch.say(1, GROUP, Change::Join);
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2, 3], "nobody queries");
    switch.hear(3, query("10.0.0.1", None));
    switch.pass(9 * SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2, 3], "hosts may still answer");
    switch.pass(2 * SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 3], "the member and the router");
    assert_eq!(switch.ports_of("239.9.9.9"), [1, 2, 3], "unregistered");
    assert_eq!(switch.ports_of("ff15::1"), [1, 2, 3], "of MLD, in which nobody queries");
    let view = &switch.snooper.views(switch.now)[0];
    let querier = QuerierView { address: Some(address("10.0.0.1")), port: Some(3) };
    assert_eq!((view.querier, view.is_pruned, view.groups.len()), (Some(querier), true, 1));
    switch.pass(300 * SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2, 3], "the querier is gone");
    assert!(switch.snooper.views(switch.now).is_empty());
}

#[test]
fn a_querier_asks_and_yields_to_a_lower_address() {
    let mut switch = Switch::new(settings(Some("10.0.0.5")), |_| ());
    let sent = switch.pass(24 * SECOND);
    let of_v4 = |sent: &[ToSend]| sent.iter().filter(|one| one.frame[12..14] == [8, 0]).count();
    assert_eq!((sent.len(), of_v4(&sent)), (8, 4), "one of each protocol by each port");
    assert_eq!(of_v4(&switch.pass(2 * SECOND)), 4, "the second of the start");
    assert_eq!(of_v4(&switch.pass(98 * SECOND)), 0);
    assert_eq!(of_v4(&switch.pass(3 * SECOND)), 4);
    switch.say(1, GROUP, Change::Join);
    switch.hear(2, query("10.0.0.9", None));
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2], "another router, which will yield");
    assert_eq!(of_v4(&switch.pass(100 * SECOND)), 4);
    switch.hear(3, query("10.0.0.2", None));
    let silent = |switch: &mut Switch| of_v4(&switch.pass(204 * SECOND)) == 0;
    assert!(silent(&mut switch));
    switch.hear(3, query("0.0.0.0", None));
    assert_eq!(of_v4(&switch.pass(2 * SECOND)), 4, "it is gone, and one without an address does not count");
}

#[test]
fn two_queriers_without_addresses_both_ask() {
    let mut switch = Switch::new(settings(Some("0.0.0.0")), |_| ());
    switch.pass(30 * SECOND);
    switch.hear(2, query("0.0.0.0", None));
    let of_v4 = |sent: &[ToSend]| sent.iter().filter(|one| one.frame[12..14] == [8, 0]).count();
    assert_eq!(of_v4(&switch.pass(100 * SECOND)), 4);
    assert!(switch.snooper.views(switch.now)[0].routers.is_empty(), "no router");
    switch.hear(2, query("192.0.2.1", None));
    assert_eq!(of_v4(&switch.pass(150 * SECOND)), 0, "any address is preferred");
}

#[test]
fn what_a_port_has_announced_ends_with_its_link() {
    let mut switch = Switch::new(settings(Some("10.0.0.5")), |_| ());
    switch.pass(30 * SECOND);
    (1..=2).for_each(|port| switch.say(port, GROUP, Change::Join));
    switch.hear(1, Announcement::Router { is_v4: true });
    switch.pass(SECOND);
    assert_eq!((switch.ports_of(GROUP), switch.snooper.counts(1)), (vec![1, 2], (1, 0)));
    switch.snooper.link_down(1);
    switch.pass(SECOND);
    assert_eq!((switch.ports_of(GROUP), switch.snooper.counts(1)), (vec![2], (0, 0)));
    assert_eq!(switch.snooper.counts(2), (1, 0));
    assert!(switch.snooper.views(switch.now)[0].routers.is_empty());
    switch.say(1, GROUP, Change::Join);
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2], "its hosts report anew");
}

#[test]
fn a_group_ends_when_no_host_answers() {
    let mut switch = Switch::new(settings(Some("10.0.0.5")), |_| ());
    switch.pass(30 * SECOND);
    (1..=2).for_each(|port| switch.say(port, GROUP, Change::Join));
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2]);
    (1..=2).for_each(|port| switch.say(port, GROUP, Change::Leave));
    let sent = switch.pass(SECOND);
    let headers = sent.iter().map(|one| (one.port, parse(&one.frame).unwrap().key().destination));
    let group = address(GROUP);
    assert_eq!(headers.collect::<Vec<_>>(), [(1, group), (2, group), (1, group), (2, group)]);
    switch.say(2, GROUP, Change::Join);
    assert!(switch.pass(2 * SECOND).is_empty());
    assert_eq!(switch.ports_of(GROUP), [2], "another host behind port 2 answered");
    switch.say(1, GROUP, Change::JoinV1);
    switch.say(1, GROUP, Change::Leave);
    assert!(switch.pass(3 * SECOND).is_empty(), "hosts of IGMPv1 do not say when they end");
    assert_eq!(switch.ports_of(GROUP), [1, 2]);
}

#[test]
fn another_queriers_question_ends_a_group() {
    let mut switch = Switch::new(settings(None), |_| ());
    switch.hear(3, query("10.0.0.1", None));
    (1..=2).for_each(|port| switch.say(port, GROUP, Change::Join));
    switch.pass(15 * SECOND);
    switch.say(1, GROUP, Change::Leave);
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2, 3], "it is the querier's to ask");
    switch.hear(3, query("10.0.0.1", Some(GROUP)));
    switch.pass(SECOND);
    switch.say(2, GROUP, Change::Join);
    switch.pass(2 * SECOND);
    assert_eq!(switch.ports_of(GROUP), [2, 3]);
}

#[test]
fn ports_have_their_own_settings() {
    let mut switch = Switch::new(settings(Some("10.0.0.5")), |ports| {
        *ports.get_mut(&1).unwrap() = PortSettings { has_fast_leave: true, max_groups: 2, ..port() };
        ports.get_mut(&2).unwrap().router = RouterPort::Never;
        let fixed = vec![(0, address("239.7.7.7"))];
        *ports.get_mut(&3).unwrap() = PortSettings { router: RouterPort::Always, groups: fixed, ..port() };
    });
    switch.pass(30 * SECOND);
    for n in 0..5 {
        switch.say(1, &format!("239.1.1.{n}"), Change::Join);
        switch.say(2, &format!("239.1.1.{n}"), Change::Join);
    }
    switch.hear(2, query("10.0.0.1", None));
    switch.pass(SECOND);
    let all: Vec<Vec<u16>> = (0..5).map(|n| switch.ports_of(&format!("239.1.1.{n}"))).collect();
    assert_eq!(all, [vec![1, 2, 3], vec![1, 2, 3], vec![2, 3], vec![2, 3], vec![2, 3]]);
    assert_eq!((switch.snooper.counts(1), switch.snooper.counts(2)), ((2, 3), (5, 0)));
    assert_eq!(switch.ports_of("239.7.7.7"), [3]);
    switch.say(1, "239.1.1.0", Change::Leave);
    switch.say(1, "239.1.1.4", Change::Join);
    switch.pass(Duration::ZERO);
    assert_eq!(switch.ports_of("239.1.1.0"), [2, 3]);
    assert_eq!(switch.ports_of("239.1.1.4"), [1, 2, 3], "there is room again");
    assert_eq!(switch.snooper.views(switch.now)[0].querier.unwrap().port, None, "port 2 has no querier");
}

#[test]
fn unregistered_groups_can_be_for_routers_only() {
    let only_routers = SnoopSettings { floods_unregistered: false, ..settings(Some("0.0.0.0")) };
    let mut switch = Switch::new(only_routers, |_| ());
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [1, 2, 3]);
    switch.pass(10 * SECOND);
    assert!(switch.ports_of(GROUP).is_empty());
    switch.hear(2, Announcement::Router { is_v4: true });
    switch.pass(SECOND);
    assert_eq!(switch.ports_of(GROUP), [2]);
}

#[test]
fn memberships_follow_the_bridge() {
    let vlan = |number| VlanId::new(number).unwrap();
    let of = |vlan| BridgePort { vlan, group: None, limit: None, new_per_second: None };
    let access = |number| of(VlanPort::Access(vlan(number)));
    let trunk = || of(VlanPort::Trunk { allowed: [vlan(10), vlan(20)].into_iter().collect(), native: None });
    let bridge =
        |second| Arc::new(Bridge::new([(1, access(10)), (2, access(second)), (3, trunk())]).unwrap());
    let ports: BTreeMap<u16, PortSettings> = (1..=3).map(|number| (number, port())).collect();
    let mut now = Instant::now();
    let (settings, before) = (settings(Some("10.0.0.5")), bridge(10));
    assert_eq!(before.vlans().collect::<Vec<_>>(), [10]);
    let mut snooper = Snooper::new(settings, ports.clone(), before, now);
    let sent: Vec<(u16, bool)> = snooper.service(now).map(|one| (one.port, one.frame[12] == 0x81)).collect();
    assert_eq!(sent, [(1, false), (2, false), (3, true), (1, false), (2, false), (3, true)]);
    let join = Announcement::Group(address(GROUP), Change::Join);
    for (port, vlan) in [(1, 10), (2, 10), (3, 10), (3, 20), (1, 20)] {
        snooper.hear(port, (vlan, join), now);
    }
    now += 11 * SECOND;
    assert_eq!(snooper.service(now).count(), 1, "in VLAN 20, where port 3 is alone");
    assert_eq!([1, 2, 3].map(|port| snooper.counts(port).0), [1, 1, 2]);
    snooper.follow(settings, ports, bridge(20), now);
    assert_eq!(snooper.service(now).filter(|one| one.port == 2).count(), 2, "a querier for VLAN 20, too");
    assert_eq!([1, 2, 3].map(|port| snooper.counts(port).0), [1, 0, 2]);
}
