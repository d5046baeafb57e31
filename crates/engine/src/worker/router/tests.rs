// SPDX-License-Identifier: Apache-2.0
//! For arbitrary bytes: the router reads within bounds, and forwards packets unchanged except for what a router must
//! change.

use std::sync::Arc;

use netvm_model::{Rate, RouterId};
use netvm_router::Tables;
use netvm_wire::{FrameBuilder, MacAddr, VlanId};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::router::{Ingress, InterfacePath, PuntLimits, UnresolvedLimit};

const HZ: u64 = 1_000_000_000;

fn unresolved() -> Arc<UnresolvedLimit> {
    Arc::new(UnresolvedLimit::new(1024, HZ).unwrap())
}

pub(super) const PORT: PortId = PortId(0);
pub(in crate::worker) const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// A second address, as VRRP has one.
pub(super) const VIRTUAL: MacAddr = MacAddr([0, 0, 0x5e, 0, 1, 7]);
pub(in crate::worker) const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Interfaces without a tag, with VLAN 5 on the same port, with VLAN 7 on another one, and without a tag on a third.
pub(in crate::worker) fn router() -> RouterPath {
    let interface = |port, vlan, last| InterfacePath {
        port: PortId(port),
        vlan: VlanId::new(vlan).ok(),
        mac: MacAddr([2, 0, 0, 0, 0, last]),
        ingress: Ingress::default(),
        also: Box::new([VIRTUAL]),
        mtus: [1500; 2],
        urpf: [None; 2],
        own: [None; 2],
        punt: PortId(100 + u16::from(last)),
        punts: Arc::new(PuntLimits::new(Rate { per_second: 1000, burst: 100 }, unresolved(), HZ).unwrap()),
    };
    let interfaces =
        Box::new([interface(0, 0, 1), interface(0, 5, 1), interface(1, 7, 3), interface(2, 0, 4)]);
    RouterPath::new(RouterId(0), interfaces, Arc::new(Tables::new()), &[0x0a00_0063])
}

pub(in crate::worker) fn tagged(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

pub(super) fn frame(to: MacAddr, v6: bool) -> Vec<u8> {
    let (source, destination) = if v6 { ("2001:db8::1", "2001:db8:1::2") } else { ("10.0.0.1", "192.0.2.2") };
    let frame = FrameBuilder::new(PEER, to).ip(source.parse().unwrap(), destination.parse().unwrap());
    frame.ttl(64).udp(1000, 53).payload(b"whose?").to_vec().unwrap()
}

#[test]
fn packets_are_their_interface_s() {
    let router = router();
    let class = |frame: &[u8]| Head::of(frame).classify(&router, router.on(PORT), frame.len() as u32);
    let plain = frame(OWN, false);
    assert!(matches!(class(&plain), Class::V4 { destination: 0xc000_0202, length: 34 }));
    assert!(matches!(class(&frame(OWN, true)), Class::V6 { length: 54, .. }));
    for (tag, expected) in [
        ([0x81, 0, 0, 5], Class::V4 { destination: 0xc000_0202, length: 34 }),
        ([0x88, 0xa8, 0xe0, 5], Class::V4 { destination: 0xc000_0202, length: 34 }),
        // A priority, and no VLAN.
        ([0x81, 0, 0xe0, 0], Class::V4 { destination: 0xc000_0202, length: 34 }),
        ([0x81, 0, 0, 7], Class::Drop(DropReason::NoRouterInterface)),
    ] {
        assert_eq!(class(&tagged(&plain, tag)), expected, "{tag:?}");
    }
    assert!(matches!(class(&frame(VIRTUAL, false)), Class::V4 { destination: 0xc000_0202, .. }));
    assert_eq!(class(&frame(MacAddr([0, 0, 0x5e, 0, 1, 8]), false)), Class::Drop(DropReason::NotForRouter));
    // A second tag is not looked behind.
    let twice = tagged(&tagged(&plain, [0x81, 0, 0, 9]), [0x81, 0, 0, 5]);
    assert_eq!(class(&twice), Class::Punt(PuntReason::EtherType));
    assert_eq!(class(&frame(MacAddr::BROADCAST, false)), Class::Punt(PuntReason::Group));
    assert_eq!(class(&frame(MacAddr([2, 0, 0, 0, 0, 2]), false)), Class::Drop(DropReason::NotForRouter));
    assert_eq!(class(&plain[..13]), Class::Drop(DropReason::BadIpHeader));
    assert_eq!(class(&plain[..33]), Class::Drop(DropReason::BadIpHeader));
}

#[test]
fn what_the_namespace_says_of_an_interface_decides() {
    let class = |ingress: Ingress, frame: &[u8]| {
        let mut router = router();
        router.interfaces[0].ingress = ingress;
        Head::of(frame).classify(&router, router.on(PORT), frame.len() as u32)
    };
    let of = |source: &str, to: &str| {
        let frame = FrameBuilder::new(PEER, OWN).ip(source.parse().unwrap(), to.parse().unwrap());
        frame.ttl(64).udp(1000, 53).to_vec().unwrap()
    };
    let (v4, v6) = (frame(OWN, false), frame(OWN, true));
    let (elsewhere, group) = (frame(MacAddr([2, 9, 9, 9, 9, 9]), false), frame(MacAddr::BROADCAST, false));
    let (own, loopback) = (of("10.0.0.99", "192.0.2.2"), of("127.0.0.1", "192.0.2.2"));
    let punt = Class::Punt(PuntReason::NotForwarding);
    let down = Class::Drop(DropReason::InterfaceDown);
    for frame in [&v4, &v6, &elsewhere, &group, &own] {
        assert_eq!(class(Ingress::DOWN, frame), down);
    }
    assert_eq!(class(Ingress::ENSLAVED, &v4), punt);
    assert_eq!(class(Ingress::ENSLAVED, &elsewhere), punt, "a bridge receives it");
    assert_eq!(class(Ingress::PUNTS_V4, &v4), punt);
    assert!(matches!(class(Ingress::PUNTS_V4, &v6), Class::V6 { .. }));
    assert_eq!(class(Ingress::PUNTS_V6, &v6), punt);
    assert!(matches!(class(Ingress::PUNTS_V6, &v4), Class::V4 { .. }));
    assert_eq!(class(Ingress::PUNTS_V4, &elsewhere), Class::Drop(DropReason::NotForRouter));
    assert_eq!(class(Ingress::default(), &own), Class::Martian);
    assert!(matches!(class(Ingress::ACCEPTS_LOCAL, &own), Class::V4 { .. }));
    assert_eq!(class(Ingress::default(), &loopback), Class::Drop(DropReason::BadIpHeader));
    assert_eq!(class(Ingress::SEES_MARTIANS, &loopback), Class::Punt(PuntReason::Martian));
    // Neighbour discovery to another address, which the kernel may answer for (RFC 4389).
    let mut solicitation = of("2001:db8::1", "2001:db8:1::2");
    (solicitation[20], solicitation[21], solicitation[54]) = (58, 255, 135);
    assert_eq!(class(Ingress::default(), &solicitation), Class::Punt(PuntReason::Neighbour));
    solicitation[21] = 64;
    assert!(matches!(class(Ingress::default(), &solicitation), Class::V6 { .. }));
}

#[test]
fn fragments_of_a_datagram_go_one_way() {
    let key = |port, fragment| {
        let frame = frame(OWN, false);
        let mut key = FlowKey::of_frame(&frame, frame.len()).unwrap();
        (key.destination_port, key.fragment) = (port, fragment);
        Some(key)
    };
    let first = flow_hash(key(53, Fragment::First));
    assert_eq!(first, flow_hash(key(0, Fragment::Later)));
    assert_ne!(flow_hash(key(53, Fragment::Whole)), flow_hash(key(54, Fragment::Whole)));
}

/// Bytes that look like something now and then.
pub(super) fn packets() -> impl Strategy<Value = Vec<u8>> {
    let of = prop_oneof![Just(frame(OWN, false)), Just(frame(OWN, true))];
    let tag = prop_oneof![Just(None), Just(Some([0x81, 0, 0x60, 5])), any::<[u8; 4]>().prop_map(Some)];
    let spoilt = (of, tag, vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), 0usize..100);
    prop_oneof![
        vec(any::<u8>(), 0..100),
        spoilt.prop_map(|(frame, tag, spoils, length)| {
            let mut frame = tag.map_or_else(|| frame.clone(), |tag| tagged(&frame, tag));
            for (at, byte) in spoils {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame.truncate(frame.len().min(length + 20));
            frame
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn nothing_is_read_or_changed_that_is_not_to_be(packet in packets(), cut in 0u32..200, out in 0u16..3) {
        let router = router();
        let mut head = Head::of(&packet);
        let length = (packet.len() as u32).saturating_sub(cut / 20);
        let header = match head.classify(&router, router.on(PORT), length) {
            Class::V4 { length: ip, .. } => {
                prop_assert!(ip <= length);
                V4
            }
            Class::V6 { length: ip, .. } => {
                prop_assert!(ip <= length);
                V6
            }
            Class::Punt(_) | Class::Martian | Class::Drop(_) => return Ok(()),
        };
        let old = usize::from(head.old(header));
        let l2 = old - header;
        let interface = router.interface(out).unwrap();
        let new = head.forward(interface, PEER, header).unwrap().to_vec();
        prop_assert_eq!(&new[..6], &PEER.0);
        prop_assert_eq!(&new[6..12], &interface.mac.0);
        let ip = new.len() - header;
        prop_assert_eq!(ip, if out == 0 { 14 } else { 18 });
        if let Some(vlan) = interface.vlan {
            let priority = if l2 == 18 { packet[14] & 0xf0 } else { 0 };
            prop_assert_eq!(&new[12..16], &[0x81, 0, priority, vlan.get() as u8]);
        }
        prop_assert_eq!(&new[ip - 2..ip], &packet[l2 - 2..l2]);
        let (before, after) = (&packet[l2..old], &new[ip..]);
        let changes: Vec<usize> = (0..header).filter(|n| before[*n] != after[*n]).collect();
        let (ttl, allowed) = if header == V4 { (8, &[8usize, 10, 11][..]) } else { (7, &[7][..]) };
        prop_assert_eq!(before[ttl] - 1, after[ttl]);
        prop_assert!(changes.iter().all(|n| allowed.contains(n)), "{:?}", changes);
        if header == V4 {
            prop_assert_eq!(netvm_wire::checksum::internet_checksum(after), 0);
        }
    }
}
