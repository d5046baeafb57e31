// SPDX-License-Identifier: Apache-2.0
//! What the kernel of a router gets, what comes from it, and how much it can get.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::*;
use crate::support::pcap::Scratch;
use netvm_engine::{InterfaceCounts, PortId, PuntCounts, PuntReason};
use netvm_router::{NextHopId, Update};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};

#[test]
fn the_kernel_gets_what_only_it_can_answer() {
    let to = |frame: FrameBuilder<'static>| frame.udp(1000, 53).payload(b"whole").to_vec().unwrap();
    let with = |frame: Vec<u8>, at: usize, bytes: &[u8]| {
        let mut frame = frame;
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        seal(frame)
    };
    let long = v4("192.0.2.2").udp(1, 1).payload(&[7; 200]).to_vec().unwrap();
    let mut options = to(v4("192.0.2.2"));
    options.splice(34..34, [1, 1, 1, 1]);
    let length = (options.len() - 14) as u16;
    let options = with(with(options, 14, &[0x46]), 16, &length.to_be_bytes());
    let kept = vec![
        to(v4("192.0.2.2").ttl(1)),
        to(v6("2001:db8:1::2").ttl(1)),
        options,
        with(to(v6("2001:db8:1::2")), 20, &[0]),
        long,
        // The router's own address, a neighbour that is not known, and no route at all.
        to(v4("10.0.0.1")),
        to(v4("10.0.0.77")),
        to(v4("203.0.113.1")),
        to(v6("2001:db8:ffff::1")),
        to(v6("fe80::1")),
        FrameBuilder::new(HOST, MacAddr::BROADCAST)
            .arp_request("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap())
            .to_vec()
            .unwrap(),
        with(to(v4("224.0.0.5")), 0, &[1, 0, 0x5e, 0, 0, 5]),
        with(to(v4("192.0.2.2")), 12, &[0x88, 0xcc]),
    ];
    for inside in [0, 10] {
        let frames: Vec<Vec<u8>> = kept.iter().map(|frame| tagged(frame, inside)).collect();
        let scratch = Scratch::new();
        let seen = Played::of(&host(&scratch, &frames, inside, 20), &routes());
        // The kernel gets packets without their tags, and otherwise unchanged.
        let got = scratch.sent(LAN_PUNT);
        assert_eq!(got.len(), kept.len(), "{:?}", seen.drops);
        let (got, kept): (BTreeSet<_>, BTreeSet<_>) = (got.iter().collect(), kept.iter().collect());
        assert_eq!(got, kept);
        assert_eq!(scratch.sent(WAN).len(), 0);
        assert_eq!(seen.router.punted, frames.len() as u64);
        let bytes = kept.iter().map(|frame| frame.len() as u64).sum();
        let lan = InterfaceCounts { rx_packets: 13, rx_bytes: bytes, ..InterfaceCounts::default() };
        assert_eq!(seen.interfaces[&PortId(LAN_PUNT)], lan, "{inside}");
        let counts = PuntReason::ALL.into_iter().zip(seen.punts[&PortId(LAN_PUNT)]);
        let reasons: Vec<_> = counts
            .filter(|(_, count)| *count != PuntCounts::default())
            .map(|(reason, count)| (reason.name(), count.punted))
            .collect();
        // `routes` has no route to 10.0.0.0/24 either.
        let expected = [
            ("neighbour-discovery", 1),
            ("own-address", 1),
            ("ttl-expired", 2),
            ("ip-options", 2),
            ("group-address", 1),
            ("ether-type", 1),
            ("exceeds-mtu", 1),
            ("no-route", 4),
        ];
        assert_eq!(reasons, expected, "{inside}");
        assert!(seen.drops.is_empty(), "{:?}", seen.drops);
    }
}

#[test]
fn what_comes_from_the_kernel_leaves_by_its_interface() {
    for outside in [0, 20] {
        let frames: Vec<Vec<u8>> = (0..5).map(|n| datagram(false, n)).collect();
        let scratch = Scratch::new();
        let seen = Played::of(&host_of_kernel(&scratch, &frames, 10, outside), &Update::default());
        let expected: Vec<Vec<u8>> = frames.iter().map(|frame| tagged(frame, outside)).collect();
        assert_eq!(scratch.sent(WAN), expected, "{:?}", seen.drops);
        assert_eq!((seen.router.from_kernel, seen.router.forwarded), (5, 0));
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        let wan = InterfaceCounts { tx_packets: 5, tx_bytes: bytes, ..InterfaceCounts::default() };
        assert_eq!(seen.interfaces[&PortId(WAN_PUNT)], wan);
    }
}

#[test]
fn a_kernel_gets_no_more_than_its_quota() {
    let frames: Vec<Vec<u8>> =
        (0..400).map(|n: u32| v4("10.0.0.77").udp(1, n as u16).to_vec().unwrap()).collect();
    let scratch = Scratch::new();
    let mut host = host(&scratch, &frames, 0, 0);
    host.routers[0].interfaces[0].punt_rate = 1;
    let seen = Played::of(&host, &routes());
    let got = scratch.sent(LAN_PUNT).len();
    // A burst of 64, and one for each second that it took.
    assert!((64..200).contains(&got), "{got}");
    assert_eq!(seen.drops, BTreeMap::from([("punt-quota", 400 - got as u64)]));
    assert_eq!(seen.router.punted, got as u64);
}

/// A scan of unused addresses, in which each class of packets for the kernel keeps its share.
#[test]
fn a_scan_takes_nothing_from_routing_protocols() {
    let scanned = |n: u32| {
        let address = format!("10.0.{}.{}", 1 + n / 250, 1 + n % 250);
        v4(&address).udp(1, 9).to_vec().unwrap()
    };
    let ospf = || {
        let mut frame = v4("224.0.0.5").udp(1, 1).to_vec().unwrap();
        frame[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 5]);
        frame[23] = 89;
        seal(frame)
    };
    let bgp = || v4("10.0.0.1").ttl(1).tcp(179, 40_000, TcpFlags::SYN).to_vec().unwrap();
    let ping = || v4("10.0.0.1").echo(true, 1, 1).to_vec().unwrap();
    let transit = || v4("192.0.2.2").ttl(1).tcp(179, 40_000, TcpFlags::SYN).to_vec().unwrap();
    let arp = || {
        let to = FrameBuilder::new(HOST, MacAddr::BROADCAST);
        to.arp_request("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap()).to_vec().unwrap()
    };
    let mut frames: Vec<Vec<u8>> = (0..1500).map(scanned).collect();
    // One that is asked for again and again.
    frames.extend((0..100).map(|_| scanned(0)));
    for _ in 0..50 {
        frames.extend([ospf(), bgp(), ping(), transit(), arp()]);
    }
    let scratch = Scratch::new();
    let mut host = host(&scratch, &frames, 0, 0);
    host.routers[0].interfaces[0].punt_rate = 10_000;
    let mut update = routes();
    let route = |net: &str, id| (net.parse().unwrap(), Some(id));
    update.routes.retain(|(net, _)| net.to_string() != "10.0.0.1/32");
    update.routes.extend([route("10.0.0.0/16", NextHopId::RESOLVE), route("10.0.0.1/32", NextHopId::LOCAL)]);
    let seen = Played::of(&host, &update);
    let count = |reason: PuntReason| seen.punts[&PortId(LAN_PUNT)][reason as usize];
    let all = |punted| PuntCounts { punted, dropped: 0 };
    assert_eq!(count(PuntReason::Routing), all(100), "BGP with TTL 1, too");
    assert_eq!(count(PuntReason::Local), all(50));
    assert_eq!(count(PuntReason::Neighbour), all(50));
    assert_eq!(count(PuntReason::Expired), all(50), "what only passes is not of the router's protocols");
    let misses = count(PuntReason::Miss);
    assert_eq!(misses.punted + misses.dropped, 1600);
    // What the kernel has to resolve is limited by the size of its table, and one source gets a part.
    assert!((16..1300).contains(&misses.punted), "{misses:?}");
    let again = scratch.sent(LAN_PUNT).iter().filter(|frame| **frame == scanned(0)).count();
    assert!((1..=17).contains(&again), "{again}");
    assert_eq!(seen.drops, BTreeMap::from([("punt-quota", misses.dropped)]));
}
