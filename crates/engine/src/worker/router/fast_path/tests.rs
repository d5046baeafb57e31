// SPDX-License-Identifier: Apache-2.0
//! Both paths of a router must agree.

use std::sync::Arc;

use netvm_router::{Hop, Tables, Update, forward_v4};
use netvm_wire::FrameBuilder;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::counters::{Counter, WorkerCounters};
use crate::memory::Memory;
use crate::router::DestinationLimit;
use crate::worker::router::head::{Class, Head, V4};
use crate::worker::router::tests::{OWN, PEER, PORT, VIRTUAL, frame, packets, router, tagged};
use crate::worker::router::{Redirects, TAGGED_V4, UNTAGGED_V4, counters_of};
use crate::worker::tests::rig::{bytes_of, mbuf_of};

/// Destinations of the two routes.
const TO: [&str; 2] = ["192.0.2.2", "192.0.2.200"];

/// A router with a route by each of these interfaces.
fn router_by(interfaces: [u16; 2]) -> RouterPath {
    let mut tables = Tables::new();
    let ids = [1, 2].map(NextHopId);
    let hops = interfaces.map(|interface| NextHop::Via(Hop { interface, mac: PEER }));
    let routes =
        ["192.0.2.0/25", "192.0.2.128/25", "2001:db8:1::/48"].into_iter().zip([ids[0], ids[1], ids[0]]);
    tables.apply(&Update {
        next_hops: ids.into_iter().zip(hops).collect(),
        routes: routes.map(|(to, id)| (to.parse().unwrap(), Some(id))).collect(),
    });
    let mut router = router();
    router.tables = Arc::new(tables);
    router
}

/// A packet to one of the routes.
fn packet(mac: MacAddr, to: &str, tag: Option<[u8; 4]>) -> Vec<u8> {
    let frame = FrameBuilder::new(PEER, mac).ip("10.0.0.1".parse().unwrap(), to.parse().unwrap());
    let frame = frame.ttl(64).udp(1000, 53).payload(b"whose?").to_vec().unwrap();
    tag.map_or_else(|| frame.clone(), |tag| tagged(&frame, tag))
}

/// What a router did with a burst.
#[derive(Debug, PartialEq)]
struct Decided {
    verdicts: Vec<RouteVerdict>,
    packets: Vec<Vec<u8>>,
    /// Of each interface, what it counted.
    counts: Vec<[u64; 5]>,
}

/// Decides a burst, and says whether it took the fast path.
fn decide(memory: &Memory, router: &RouterPath, frames: &[Vec<u8>], tries: bool) -> (Decided, bool) {
    let mut batch = Batch::new();
    for frame in frames {
        batch.push(mbuf_of(memory, frame)).unwrap();
    }
    let (mut burst, interfaces_here) = (Box::new(RouterBurst::new()), router.on(PORT));
    let fast = if tries { burst.decide_fast(router, interfaces_here, &mut batch) } else { None };
    let is_uniform = fast.unwrap_or_else(|| {
        burst.skipped = 1;
        let limit = DestinationLimit::of_redirects(1_000_000_000);
        let mut redirects = Redirects { limit: Some(&limit), now: 1 };
        burst.decide(router, interfaces_here, &mut redirects, &mut batch)
    });
    let counters = WorkerCounters::new();
    burst.count(router, &batch, is_uniform && interfaces_here.is_one(), &counters);
    let counts = |interface: &InterfacePath| {
        let c = counters_of(interface, &counters);
        [&c.rx_packets, &c.rx_bytes, &c.rx_dropped, &c.tx_packets, &c.tx_bytes].map(Counter::get)
    };
    let verdicts = if is_uniform && interfaces_here.is_one() {
        vec![burst.verdicts[0]; frames.len()]
    } else {
        burst.verdicts[..frames.len()].to_vec()
    };
    let packets = batch.as_slice().iter().map(bytes_of).collect();
    (Decided { verdicts, packets, counts: router.interfaces.iter().map(counts).collect() }, fast.is_some())
}

#[test]
fn only_bursts_that_suit_take_the_fast_path() {
    let memory = Memory::for_tests(512, 0, 64);
    let tag = Some([0x81, 0, 0x60, 5]);
    let [plain, other, tagged] =
        [(TO[0], None), (TO[1], None), (TO[0], tag)].map(|(to, tag)| packet(OWN, to, tag));
    let also = packet(VIRTUAL, TO[0], None);
    let is_fast = |by, frames: &[&Vec<u8>]| {
        let frames: Vec<_> = frames.iter().map(|frame| (*frame).clone()).collect();
        decide(&memory, &router_by(by), &frames, true).1
    };
    assert!(is_fast([3, 3], &[&plain, &plain]));
    assert!(is_fast([3, 2], &[&plain, &other]), "two next hops");
    assert!(is_fast([2, 2], &[&plain]), "it leaves with a tag");
    assert!(is_fast([3, 3], &[&tagged, &tagged]), "it loses its tag");
    assert!(is_fast([2, 2], &[&tagged]), "its tag changes");
    assert!(is_fast([3, 3], &[&also, &also]), "to a virtual address, as by VRRP");
    assert!(!is_fast([3, 3], &[&plain, &also]));
    assert!(!is_fast([3, 3], &[&plain, &tagged]));
    assert!(!is_fast([3, 3], &[&plain, &frame(OWN, true)]));
    assert!(!is_fast([0, 0], &[&plain]), "the kernel sends a redirect");
    assert!(!is_fast([3, 1], &[&tagged, &packet(OWN, TO[1], tag)]), "the kernel sends a redirect");
    let unknown = packet(OWN, TO[0], Some([0x81, 0, 0, 9]));
    assert!(!is_fast([3, 3], &[&tagged, &unknown]), "no interface has this VLAN");
}

#[test]
fn bursts_after_others_take_the_general_path_for_longer_and_longer() {
    let memory = Memory::for_tests(512, 0, 64);
    let (router, mut burst) = (router_by([3, 3]), Box::new(RouterBurst::new()));
    let mut is_fast = |frames: &[Vec<u8>]| {
        let mut batch = Batch::new();
        frames.iter().for_each(|frame| batch.push(mbuf_of(&memory, frame)).unwrap());
        burst.decide_fast(&router, router.on(PORT), &mut batch).is_some()
    };
    let (plain, mixed) = ([packet(OWN, TO[0], None)], [packet(OWN, TO[0], None), frame(OWN, true)]);
    for skipped in [1, 3, 7, 15, 15] {
        assert!(!is_fast(&mixed));
        (0..skipped).for_each(|n| assert!(!is_fast(&plain), "{n} of {skipped}"));
    }
    assert!(is_fast(&plain) && is_fast(&plain));
    assert!(!is_fast(&mixed) && !is_fast(&plain) && is_fast(&plain));
}

#[test]
fn link_local_and_other_special_addresses_do_not_suit() {
    let router = router();
    for (address, suits) in [
        ("169.253.255.255", true),
        ("169.254.0.1", false),
        ("169.255.0.1", true),
        ("0.1.2.3", false),
        ("127.0.0.1", false),
        ("223.255.255.255", true),
        ("224.0.0.1", false),
    ] {
        for (from, to) in [("10.0.0.1", address), (address, "192.0.2.2")] {
            let frame = FrameBuilder::new(PEER, OWN).ip(from.parse().unwrap(), to.parse().unwrap());
            let frame = frame.ttl(64).udp(1000, 53).to_vec().unwrap();
            let destination = Headers::untagged(frame.first_chunk().unwrap()).destination(frame.len() as u32);
            let class = Head::of(&frame).classify(&router, router.on(PORT), frame.len() as u32);
            assert_eq!(destination.is_some(), suits, "{from} to {to}");
            assert_eq!(matches!(class, Class::V4 { .. }), suits, "{from} to {to}");
        }
    }
}

#[test]
fn a_tag_needs_room() {
    let memory = Memory::for_tests(512, 0, 64);
    let mut batch = Batch::new();
    let mut mbuf = mbuf_of(&memory, &packet(OWN, TO[0], None));
    let length = mbuf.data_len();
    mbuf.set_bounds(3, length).unwrap();
    batch.push(mbuf).unwrap();
    let (router, mut burst) = (router_by([2, 2]), Box::new(RouterBurst::new()));
    assert_eq!(burst.decide_fast(&router, router.on(PORT), &mut batch), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A packet that suits needs a route by the general path, too.
    #[test]
    fn both_paths_agree(packet in packets(), cut in 0u32..200) {
        let length = (packet.len() as u32).saturating_sub(cut / 20);
        let router = router();
        let tagged = packet.first_chunk().and_then(Headers::tagged);
        for headers in packet.first_chunk().map(Headers::untagged).into_iter().chain(tagged) {
            if let Some(destination) = headers.destination(length)
                && let Some(ingress) = Ingress::of(&router, router.on(PORT), &headers)
            {
                let mut head = Head::of(&packet);
                let class = head.classify(&router, router.on(PORT), length);
                prop_assert_eq!(class, Class::V4 { destination, length: headers.length().into() });
                prop_assert_eq!(head.interface(), ingress.number);
            }
        }
    }

    /// Both paths write the same headers, whatever is in them.
    #[test]
    fn both_paths_write_the_same(mut packet: [u8; UNTAGGED_V4], ttl in 2u8..) {
        packet[12..15].copy_from_slice(&[8, 0, 0x45]);
        packet[14 + 8] = ttl;
        let mut fast = Headers::untagged(&packet);
        fast.forward(OWN, PEER, None);
        packet[..6].copy_from_slice(&PEER.0);
        packet[6..12].copy_from_slice(&OWN.0);
        forward_v4(&mut packet[14..14 + V4]).unwrap();
        prop_assert_eq!(fast.bytes(), packet);
    }

    /// A tag is written as it was read, with its priority.
    #[test]
    fn tags_are_read_and_written(mut packet: [u8; TAGGED_V4], ttl in 2u8..) {
        packet[12..14].copy_from_slice(&[0x81, 0]);
        packet[18 + 8] = ttl;
        let headers = Headers::tagged(&packet).unwrap();
        prop_assert_eq!(headers.tagged_bytes(), packet);
        let plain = [&packet[..12], &packet[16..]].concat();
        prop_assert_eq!(&headers.bytes()[..], &plain[..]);
        let mut sent = headers;
        sent.forward(OWN, PEER, VlanId::new(7).ok());
        prop_assert_eq!(&sent.tagged_bytes()[14..16], &[packet[14] & 0xf0, 7]);
    }
}

/// Packets that suit, of one kind.
fn ordinary() -> impl Strategy<Value = Vec<u8>> {
    let tag = select(vec![None, Some([0x81, 0, 0, 5]), Some([0x81, 0, 0xe0, 5]), Some([0x81, 0, 0x20, 0])]);
    (select(vec![OWN, VIRTUAL]), select(TO.to_vec()), tag).prop_map(|(mac, to, tag)| packet(mac, to, tag))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A burst gets the same verdicts, headers and counts by both paths, also if some packets do not suit.
    #[test]
    fn bursts_are_decided_alike(
        by: [u16; 2],
        usual in ordinary(),
        count in 1..=MAX,
        to_second in any::<u64>(),
        others in vec((any::<Index>(), prop_oneof![packets(), ordinary()]), 0..3),
    ) {
        let memory = Memory::for_tests(512, 0, 64);
        let mut second = usual.clone();
        // The destination's last byte, and the checksum for it.
        let ip = usual.len() - packet(OWN, TO[0], None).len() + 14;
        second[ip + 19] = 200 + 2 - second[ip + 19];
        second[ip + 10..ip + 12].fill(0);
        let sum = netvm_wire::checksum::internet_checksum(&second[ip..ip + V4]);
        second[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        let mut frames: Vec<_> =
            (0..count).map(|n| if to_second >> n & 1 == 1 { second.clone() } else { usual.clone() }).collect();
        for (at, packet) in others {
            frames[at.index(count)] = packet;
        }
        let router = router_by(by.map(|by| by % 5));
        let [fast, other] = [true, false].map(|tries| decide(&memory, &router, &frames, tries).0);
        prop_assert_eq!(fast, other);
    }
}
