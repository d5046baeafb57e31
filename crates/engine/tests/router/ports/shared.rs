// SPDX-License-Identifier: Apache-2.0
//! Two routers on one port without a tag, each with a MAC address of its own.

use std::collections::BTreeMap;

use crate::plan::*;
use crate::support::pcap::Scratch;
use netvm_engine::{PortId, PuntReason};
use netvm_model::{Forward, Host, RouterConfig, RouterId, RouterInterface};
use netvm_wire::{FrameBuilder, MacAddr};

/// The second router's address, and its port to its kernel.
const RED: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
const RED_PUNT: u16 = 4;

/// Adds the second router, with an interface like this one.
fn add_red(host: &mut Host, scratch: &Scratch, like: RouterInterface) {
    host.ports.push(scratch.port(RED_PUNT, &[]));
    host.ports[usize::from(RED_PUNT)].policy.forward = Forward::Router(RouterId(1));
    host.routers.push(RouterConfig {
        id: RouterId(1),
        name: "red".to_owned(),
        interfaces: vec![RouterInterface { mac: RED, punt: PortId(RED_PUNT), ..like }],
        ..host.routers[0].clone()
    });
}

#[test]
fn routers_on_one_port_get_their_own_packets_and_all_packets_to_groups() {
    let arp = FrameBuilder::new(HOST, MacAddr::BROADCAST)
        .arp_request("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap())
        .to_vec()
        .unwrap();
    let to = |mac: MacAddr, number| {
        let mut frame = datagram(false, number);
        frame[..6].copy_from_slice(&mac.0);
        frame
    };
    let solicitation = to(MacAddr([0x33, 0x33, 0xff, 0, 0, 1]), 4);
    for vlan in [0, 10] {
        let frames =
            [&to(IN, 1), &arp, &to(RED, 2), &to(RED, 3), &solicitation, &to(MacAddr([2, 9, 9, 9, 9, 9]), 5)];
        let frames: Vec<_> = frames.iter().map(|frame| tagged(frame, vlan)).collect();
        let scratch = Scratch::new();
        let mut host = host(&scratch, &frames, vlan, 0);
        // No rule names it.
        let like = host.routers[0].interfaces[0].clone();
        add_red(&mut host, &scratch, like);
        let seen = Played::of(&host, &routes());
        assert_eq!(scratch.sent(LAN_PUNT), [arp.clone(), solicitation.clone()], "{vlan}: {:?}", seen.drops);
        // It has no routes.
        let mut red = scratch.sent(RED_PUNT);
        red.sort_unstable();
        let mut expected = [arp.clone(), to(RED, 2), to(RED, 3), solicitation.clone()];
        expected.sort_unstable();
        assert_eq!(red, expected, "{vlan}: {:?}", seen.drops);
        assert_eq!(scratch.sent(WAN).len(), 1, "what is for the first is forwarded");
        assert_eq!(seen.drops, BTreeMap::from([("not-for-router", 1)]));
        let red = &seen.punts[&PortId(RED_PUNT)];
        assert_eq!(red[PuntReason::Neighbour as usize].punted, 1, "in its class");
        assert_eq!(seen.interfaces[&PortId(RED_PUNT)].rx_packets, 4);
    }
}

#[test]
fn copies_are_limited_by_the_share_of_their_class() {
    let broadcast = |n: u32| {
        let mut frame = datagram(false, n);
        frame[..6].fill(0xff);
        frame
    };
    let frames: Vec<_> = (0..1000).map(broadcast).collect();
    let scratch = Scratch::new();
    let mut host = host(&scratch, &frames, 0, 0);
    let like = RouterInterface { punt_rate: 1, ..host.routers[0].interfaces[0].clone() };
    add_red(&mut host, &scratch, like);
    let seen = Played::of(&host, &routes());
    assert_eq!(scratch.sent(LAN_PUNT).len(), 1000);
    let got = scratch.sent(RED_PUNT).len();
    assert!((64..200).contains(&got), "a burst, and one a second: {got}");
    assert_eq!(seen.drops, BTreeMap::from([("punt-quota", 1000 - got as u64)]));
}
