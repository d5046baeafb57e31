// SPDX-License-Identifier: Apache-2.0
use netvm_wire::VlanId;
use proptest::prelude::*;

use super::*;
use crate::{FdbOptions, Learned};

const GUEST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn id(vlan: u16) -> VlanId {
    VlanId::new(vlan).unwrap()
}

fn port(vlan: VlanPort, group: u16) -> BridgePort {
    BridgePort { vlan, group: NonZeroU16::new(group), limit: None, new_per_second: None }
}

/// Ports 1 and 2 of group 7, port 3 of no group, uplink 900, port 5 of another VLAN, and VLAN-unaware port 255.
fn bridge() -> Bridge {
    let access = VlanPort::Access(id(10));
    let uplink = VlanPort::Trunk { allowed: [id(10), id(20)].into_iter().collect(), native: None };
    Bridge::new([
        (1, port(access.clone(), 7)),
        (2, port(access.clone(), 7)),
        (3, port(access, 0)),
        (900, port(uplink, 0)),
        (5, port(VlanPort::Access(id(20)), 7)),
        (255, port(VlanPort::Unaware, 0)),
    ])
    .unwrap()
}

#[test]
fn floods_skip_the_ingress_port_and_its_group() {
    let bridge = bridge();
    let flooded = |ingress, vlan| bridge.flood(ingress, vlan).collect::<Vec<_>>();
    let empty = [(900, 30), (255, 0), (9, 10), (256, u16::MAX), (1023, 10), (u16::MAX, 10)];
    for destination in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), GUEST] {
        let forward = |ingress, vlan| bridge.forward(ingress, vlan, destination, None);
        for (ingress, vlan) in [(1, 10), (3, 10), (900, 10), (900, 20)] {
            assert_eq!(forward(ingress, vlan), Forward::Flood);
        }
        for (ingress, vlan) in empty {
            assert_eq!(forward(ingress, vlan), Forward::Drop(NotForwarded::NoMembers));
        }
    }
    assert_eq!(flooded(1, 10), [3, 900]);
    assert_eq!(flooded(3, 10), [1, 2, 900]);
    assert_eq!(flooded(900, 10), [1, 2, 3]);
    assert_eq!(flooded(900, 20), [5]);
    assert!(empty.iter().all(|(ingress, vlan)| flooded(*ingress, *vlan).is_empty()));
}

#[test]
fn known_destinations_are_checked_against_vlan_and_group() {
    let bridge = bridge();
    let forward = |ingress, vlan, behind| bridge.forward(ingress, vlan, GUEST, Some(behind));
    assert_eq!(forward(1, 10, 900), Forward::Port(900));
    assert_eq!(forward(1, 10, 1), Forward::Drop(NotForwarded::SamePort));
    assert_eq!(forward(1, 10, 2), Forward::Drop(NotForwarded::SplitHorizon));
    assert_eq!(forward(1, 10, 5), Forward::Drop(NotForwarded::NotMember));
    assert_eq!(forward(1, 10, 300), Forward::Drop(NotForwarded::NotMember));
    assert_eq!(forward(1, 10, 2000), Forward::Drop(NotForwarded::NotMember));
    assert_eq!(bridge.forward(1, 10, MacAddr::BROADCAST, Some(900)), Forward::Flood);
}

#[test]
fn link_local_groups_are_forwarded_on_request_only() {
    let (bridge, wire) = (bridge(), bridge().with_bpdus(true));
    for last in 0..=255 {
        let group = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
        let forwards = |by: &Bridge| by.forward(1, 10, group, None) != Forward::Drop(NotForwarded::LinkLocal);
        assert_eq!(forwards(&bridge), last > 0x0f, "{group}");
        assert_eq!(forwards(&wire), last != 1, "{group}: all but PAUSE frames");
    }
}

#[test]
fn vlans_are_classified_by_port() {
    let bridge = bridge();
    assert_eq!(bridge.ingress(1, None), Some(Ok(10)));
    assert_eq!(bridge.ingress(1, Some(10)), Some(Err(VlanError::Tagged)));
    assert_eq!((bridge.ingress(9, None), bridge.ingress(901, None)), (None, None));
    assert_eq!((bridge.egress(900, 20), bridge.egress(900, 30)), (Some(Tagging::Tagged), None));
    assert_eq!(bridge.egress(9, 10), None);
}

#[test]
fn limits_are_set_per_port() {
    let fdb = Fdb::new(FdbOptions::default()).unwrap();
    let limited = BridgePort { limit: Some(2), ..port(VlanPort::Unaware, 0) };
    let slow = BridgePort { new_per_second: Some(3), ..port(VlanPort::Unaware, 0) };
    let bridge = Bridge::new([(1, limited), (2, slow)]).unwrap();
    bridge.set_limits(&fdb);
    let learned = |port: u8| {
        let outcome = |n| fdb.learn(0, MacAddr([2, 0, 0, 0, port, n]), port.into(), 0);
        [0, 1, 2, 3].map(outcome)
    };
    use Learned::{LimitReached, New, OverQuota};
    assert_eq!(learned(1), [New, New, LimitReached, LimitReached]);
    assert_eq!(learned(2), [New, New, New, OverQuota]);
    assert_eq!(learned(3), [LimitReached; 4]);
}

#[test]
fn invalid_and_duplicate_ports_are_refused() {
    let port = || port(VlanPort::Unaware, 0);
    assert_eq!(Bridge::new([(1024, port())]).unwrap_err(), BridgeError::Port(1024));
    assert_eq!(Bridge::new([(1, port()), (1, port())]).unwrap_err(), BridgeError::Duplicate(1));
}

fn any_port() -> impl Strategy<Value = BridgePort> {
    let vlan = prop_oneof![
        Just(VlanPort::Unaware),
        (1..4u16).prop_map(|vlan| VlanPort::Access(id(vlan))),
        (prop::collection::vec((1..4u16).prop_map(id), 0..3), prop::option::of((1..4u16).prop_map(id)))
            .prop_map(|(allowed, native)| VlanPort::Trunk { allowed: allowed.into_iter().collect(), native }),
    ];
    (vlan, 0..3u16).prop_map(|(vlan, group)| port(vlan, group))
}

proptest! {
    /// Asks each port on its own whether it may receive the frame.
    #[test]
    fn a_flood_reaches_every_eligible_port(
        ports in prop::collection::btree_map(0..1024u16, any_port(), 1..12),
        vlan in 0..5u16,
        behind in 0..1024u16,
    ) {
        let bridge = Bridge::new(ports.clone()).unwrap();
        for (from, own) in &ports {
            let may = |to: u16, other: &BridgePort| {
                let apart = own.group.is_none() || own.group != other.group;
                to != *from && apart && other.vlan.egress(vlan).is_some()
            };
            let wanted: Vec<u16> = ports.iter().filter(|(to, other)| may(**to, other)).map(|(to, _)| *to).collect();
            prop_assert_eq!(&bridge.flood(*from, vlan).collect::<Vec<_>>(), &wanted);
            for behind in wanted.iter().copied().chain([behind]) {
                let unicast = bridge.forward(*from, vlan, GUEST, Some(behind));
                prop_assert_eq!(unicast == Forward::Port(behind), wanted.contains(&behind));
            }
            let group = bridge.forward(*from, vlan, MacAddr::BROADCAST, None);
            prop_assert_eq!(group == Forward::Flood, !wanted.is_empty());
        }
    }
}
