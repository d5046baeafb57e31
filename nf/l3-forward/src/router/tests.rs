// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::sync::Mutex;

use super::*;
use clap::Parser;
use netlib::sim::{Outcome, Simulator};
use netvm_nf_common::testing::{self, ALICE, base, built, vlan};
use netvm_nf_common::{Lines, Live};
use netvm_wire::checksum::verify;
use netvm_wire::{FrameBuilder, IpProto, MacAddr};
use proptest::prelude::*;

const LEFT: PortId = PortId(0);
const RIGHT: PortId = PortId(1);
const OWN: MacAddr = MacAddr([2, 0x6e, 0x65, 0x74, 0x76, 0x6d]);
const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ROUTES: &str = "10.0.0.0/8 02:00:00:00:00:01 right\n\
                      10.9.0.0/16 02:00:00:00:00:02 left 7\n\
                      10.8.0.0/16 02:00:00:00:00:02 gone\n\
                      fd00::/16 02:00:00:00:00:01 right\n\
                      fd00:9::/32 02:00:00:00:00:02 left 7\n";

fn with(args: &[&str]) -> (Simulator, Router) {
    let simulator = Simulator::new(&["left", "right"], &[]).unwrap();
    let args = Args::try_parse_from([&["nf", "--routes", "r"], args].concat()).unwrap();
    let routes = Live::new(|| Routes::from_lines(&Lines::from_text(Path::new("r"), ROUTES))).unwrap();
    let nf = Router::new(args, routes.view(), &simulator.context());
    (simulator, nf)
}

fn send(frame: &[u8]) -> Outcome {
    let (mut simulator, mut nf) = with(&["--proxy-arp"]);
    simulator.inject(&mut nf, LEFT, frame)
}

fn counters(nf: &Router) -> Vec<(&'static str, u64)> {
    let mut counters = [0; MAX_COUNTERS];
    nf.report(&mut counters);
    COUNTERS.into_iter().zip(counters).filter(|(_, count)| *count > 0).collect()
}

/// The frame as the router must forward it.
fn routed(builder: FrameBuilder<'_>, ttl: u8) -> Vec<u8> {
    built(&builder.ttl(ttl))
}

#[test]
fn packets_leave_as_a_router_sends_them() {
    for (from, to, tagged_to) in
        [("192.0.2.1:9", "10.1.2.3:80", "10.9.2.3:80"), ("[2001:db8::1]:9", "[fd00::1]:80", "[fd00:9::1]:80")]
    {
        let plain = |to: &str| base(from, to).tcp(9, 80, netvm_wire::TcpFlags::ACK).payload(b"payload");
        let from_router = |to: &str, mac: MacAddr, tag: Option<u16>| {
            let mut builder = FrameBuilder::new(OWN, mac);
            if let Some(tag) = tag {
                builder = builder.vlan(vlan(tag));
            }
            let address = |text: &str| text.parse::<std::net::SocketAddr>().unwrap().ip();
            builder.ip(address(from), address(to)).tcp(9, 80, netvm_wire::TcpFlags::ACK).payload(b"payload")
        };
        for ttl in [2, 64, 255] {
            let outcome = send(&built(&plain(to).ttl(ttl)));
            assert_eq!(outcome.verdict, Verdict::Port(RIGHT));
            assert_eq!(outcome.bytes, routed(from_router(to, HOST, None), ttl - 1));
        }
        for tags in 0..=2 {
            let mut builder = plain(to);
            let mut tagged = plain(tagged_to);
            for tag in 0..tags {
                builder = builder.vlan(vlan(100 + tag));
                tagged = tagged.vlan(vlan(100 + tag));
            }
            let outcome = send(&built(&builder));
            assert_eq!(
                (outcome.verdict, outcome.bytes),
                (Verdict::Port(RIGHT), routed(from_router(to, HOST, None), 63))
            );
            let outcome = send(&built(&tagged));
            let expected = routed(from_router(tagged_to, OTHER, Some(7)), 63);
            assert_eq!((outcome.verdict, outcome.bytes), (Verdict::Port(LEFT), expected));
        }
    }
}

#[test]
fn drops_are_counted_by_reason() {
    let (mut simulator, mut nf) = with(&["--only-mine"]);
    let mine = |from: &str, to: &str| {
        let mut frame = testing::udp(from, to, b"x");
        frame[..6].copy_from_slice(&OWN.octets());
        frame
    };
    let mut broadcast = mine("192.0.2.1:1", "10.1.1.1:1");
    let mut expired = broadcast.clone();
    let mut wrong_sum = broadcast.clone();
    broadcast[..6].fill(0xff);
    // Time to live and checksum: 64 to 1 in the word's high byte is 0x3f00 more in the sum.
    let sum = u16::from_be_bytes([expired[24], expired[25]]);
    expired[22] = 1;
    expired[24..26].copy_from_slice(&netvm_wire::checksum::updated(sum, 0x4011, 0x0111).to_be_bytes());
    wrong_sum[25] ^= 1;
    let frames = [
        mine("192.0.2.1:1", "10.1.1.1:1"),
        mine("192.0.2.1:1", "203.0.113.1:1"),
        mine("192.0.2.1:1", "10.8.1.1:1"),
        mine("192.0.2.1:1", "224.0.0.5:1"),
        mine("192.0.2.1:1", "255.255.255.255:1"),
        mine("127.0.0.1:1", "10.1.1.1:1"),
        mine("0.0.0.0:1", "10.1.1.1:1"),
        mine("10.1.1.1:1", "169.254.0.1:1"),
        mine("[fe80::1]:1", "[fd00::1]:1"),
        mine("[fd00::1]:1", "[ff02::1]:1"),
        mine("[fd00::1]:1", "[::1]:1"),
        testing::udp("192.0.2.1:1", "10.1.1.1:1", b"x"),
        broadcast,
        expired,
        wrong_sum,
        built(&FrameBuilder::new(ALICE, OWN).arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
        vec![0; 13],
    ];
    for frame in &frames[1..] {
        let outcome = simulator.inject(&mut nf, LEFT, frame);
        assert_eq!((outcome.verdict, &outcome.bytes), (Verdict::Drop, frame), "{frame:02x?}");
    }
    simulator.inject(&mut nf, LEFT, &frames[0]);
    let expected = [
        ("routed", 1),
        ("looked-up", 3),
        ("no-route", 1),
        ("no-port", 1),
        ("expired", 1),
        ("not-forwarded", 8),
        ("not-mine", 2),
        ("not-ip", 1),
        ("malformed", 2),
        ("flows", 3),
    ];
    assert_eq!(counters(&nf), expected);
}

/// A datagram with this time to live.
fn datagram(to: &str, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let from = if to.starts_with('[') { "[2001:db8::1]:9" } else { "192.0.2.1:9" };
    built(&base(from, to).ttl(ttl).udp(9, 80).payload(payload))
}

#[test]
fn senders_of_expired_packets_get_errors_from_the_routers_address_at_a_bounded_rate() {
    let (mut simulator, mut nf) = with(&["--address", "192.0.2.254,2001:db8::fe"]);
    for (to, own, kind) in [("10.1.1.1:80", "192.0.2.254", (11, 0)), ("[fd00::1]:80", "2001:db8::fe", (3, 0))]
    {
        let expired = datagram(to, 1, b"x");
        let sent = simulator.exchange(&mut nf, &[(LEFT, &expired)]);
        let [error, dropped] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((dropped.verdict, &dropped.bytes), (Verdict::Drop, &expired));
        let headers = netvm_wire::parse(&error.bytes).unwrap();
        let key = headers.key();
        assert_eq!((error.verdict, key.icmp_type, key.icmp_code), (Verdict::Port(LEFT), kind.0, kind.1));
        assert_eq!((key.source.to_ip().to_string(), key.source_mac), (own.to_owned(), OWN));
        assert_eq!(key.destination_mac, netvm_wire::parse(&expired).unwrap().key().source_mac);
        assert_eq!(verify(&error.bytes, &headers), Ok(()));
        // An error gets none.
        let mut again = error.bytes.clone();
        again[..6].copy_from_slice(&OWN.octets());
        assert!(simulator.exchange(&mut nf, &[(LEFT, &again)]).len() == 1);
    }
    let expired = datagram("10.1.1.1:80", 1, b"x");
    let flood = vec![(LEFT, &expired[..]); 50];
    assert_eq!(simulator.exchange(&mut nf, &flood).len(), 50 + 8, "ten a tick");
    simulator.advance(&mut nf, std::time::Duration::from_millis(100));
    assert_eq!(simulator.exchange(&mut nf, &flood).len(), 50 + 10);
    // Without an address of its own, it sends none.
    let (mut simulator, mut nf) = with(&[]);
    assert_eq!(simulator.exchange(&mut nf, &flood).len(), 50);
}

#[test]
fn packets_longer_than_the_mtu_are_cut_or_reported() {
    let (mut simulator, mut nf) = with(&["--mtu", "600", "--address", "192.0.2.254,2001:db8::fe"]);
    let payload: Vec<u8> = (0..1500u32).map(|n| n as u8).collect();
    let mut long = datagram("10.1.1.1:80", 64, &payload);
    long[20] = 0;
    let header = netvm_wire::checksum::internet_checksum(&[&long[14..24], &[0, 0], &long[26..34]].concat());
    long[24..26].copy_from_slice(&header.to_be_bytes());
    let sent = simulator.exchange(&mut nf, &[(LEFT, &long)]);
    assert_eq!(sent.len(), 3, "{sent:?}");
    let mut whole = Vec::new();
    for (n, fragment) in sent.iter().enumerate() {
        assert_eq!(fragment.verdict, Verdict::Port(RIGHT));
        assert!(fragment.bytes.len() <= 614 && fragment.bytes[..6] == HOST.octets());
        assert_eq!((fragment.bytes[22], fragment.bytes[20] & 0x20 != 0), (63, n < 2));
        assert_eq!(netvm_wire::checksum::internet_checksum(&fragment.bytes[14..34]), 0);
        whole.extend_from_slice(&fragment.bytes[34..]);
    }
    assert_eq!(whole, long[34..], "in order");
    // One that must not be cut, and IPv6.
    long[20] = 0x40;
    let header = netvm_wire::checksum::internet_checksum(&[&long[14..24], &[0, 0], &long[26..34]].concat());
    long[24..26].copy_from_slice(&header.to_be_bytes());
    for (frame, kind) in [(long, (3, 4)), (datagram("[fd00::1]:80", 64, &payload), (2, 0))] {
        let sent = simulator.exchange(&mut nf, &[(LEFT, &frame)]);
        let [error, dropped] = &sent[..] else { panic!("{sent:?}") };
        let headers = netvm_wire::parse(&error.bytes).unwrap();
        assert_eq!((headers.key().icmp_type, headers.key().icmp_code), kind);
        assert_eq!(error.bytes[headers.l4_offset().unwrap() + 6..][..2], 600u16.to_be_bytes());
        assert_eq!((dropped.verdict, &dropped.bytes), (Verdict::Drop, &frame));
    }
    let expected = [
        ("routed", 1),
        ("looked-up", 2),
        ("flows", 2),
        ("fragmented", 1),
        ("too-long", 2),
        ("errors-sent", 2),
    ];
    assert_eq!(counters(&nf), expected);
}

#[test]
fn a_flow_is_looked_up_once() {
    let (mut simulator, mut nf) = with(&["--flows", "2"]);
    for flow in ["1", "1", "2", "1", "3", "1"] {
        simulator.inject(&mut nf, LEFT, &testing::udp(&format!("192.0.2.1:{flow}"), "10.1.1.1:1", b""));
    }
    assert_eq!(counters(&nf), [("routed", 6), ("looked-up", 3), ("flows", 2)]);
}

#[test]
fn arp_requests_are_answered_for_any_address() {
    let (host, target) = ([10, 0, 0, 1].into(), [10, 0, 0, 254].into());
    let request = FrameBuilder::new(ALICE, MacAddr::BROADCAST);
    let reply = FrameBuilder::new(OWN, ALICE);
    for tag in [None, Some(vlan(9))] {
        let tagged = |builder: FrameBuilder<'static>| tag.map_or(builder, |tag| builder.vlan(tag));
        let outcome = send(&built(&tagged(request).arp_request(host, target)));
        assert_eq!(outcome.verdict, Verdict::Port(LEFT));
        assert_eq!(outcome.bytes, built(&tagged(reply).arp_reply(target, host)));
    }
    let probe = built(&request.arp_request([0, 0, 0, 0].into(), target));
    let announcement = built(&request.arp_request(host, host));
    for frame in [probe, announcement, built(&reply.arp_reply(target, host))] {
        let outcome = send(&frame);
        assert_eq!((outcome.verdict, outcome.bytes), (Verdict::Drop, frame));
    }
}

/// A solicitation with these options.
fn solicitation(asker: &str, target: std::net::Ipv6Addr, options: &[u8]) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend(options);
    let builder = base(asker, "[ff02::1:ff00:9]:0").protocol(IpProto::ICMPV6).ttl(255).payload(&message);
    let mut frame = built(&builder);
    let headers = netvm_wire::parse(&frame).unwrap();
    netvm_wire::checksum::fill(&mut frame, &headers).unwrap();
    frame
}

#[test]
fn neighbour_solicitations_are_answered_for_any_address() {
    let target: std::net::Ipv6Addr = "fd00::9".parse().unwrap();
    // The source address option, no option, and more options than an advertisement has.
    for options in [&[1, 1, 2, 0, 0, 0, 0, 0x0a][..], &[], &[14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        let outcome = send(&solicitation("[fd00::1]:0", target, options));
        assert_eq!(outcome.verdict, Verdict::Port(LEFT));
        let headers = netvm_wire::parse(&outcome.bytes).unwrap();
        let key = headers.key();
        assert_eq!(verify(&outcome.bytes, &headers), Ok(()));
        assert_eq!((key.source_mac, key.destination_mac, key.icmp_type, key.icmp_code), (OWN, ALICE, 136, 0));
        assert_eq!((key.source, key.destination.to_ip().to_string()), (target.into(), "fd00::1".to_owned()));
        let message = &outcome.bytes[54..];
        assert_eq!(outcome.bytes[21], 255, "hop limit");
        assert_eq!(
            (message.len(), &message[4..8], &message[8..24]),
            (32, &[0xc0, 0, 0, 0][..], &target.octets()[..])
        );
        assert_eq!((&message[24..26], &message[26..]), (&[2, 1][..], &OWN.octets()[..]));
    }
}

#[test]
fn invalid_solicitations_are_not_answered() {
    let target: std::net::Ipv6Addr = "fd00::9".parse().unwrap();
    let good = solicitation("[fd00::1]:0", target, &[]);
    let duplicate_detection = solicitation("[::]:0", target, &[]);
    let group = solicitation("[fd00::1]:0", "ff02::1".parse().unwrap(), &[]);
    let (mut far, mut wrong_sum) = (good.clone(), good.clone());
    far[21] = 64;
    wrong_sum[57] ^= 1;
    for frame in [duplicate_detection, group, far, wrong_sum] {
        let outcome = send(&frame);
        assert_eq!((outcome.verdict, outcome.bytes), (Verdict::Drop, frame));
    }
    let (mut simulator, mut nf) = with(&[]);
    assert_eq!(simulator.inject(&mut nf, LEFT, &good).verdict, Verdict::Drop, "not enabled");
}

#[test]
fn new_routes_apply_from_the_next_burst() {
    static TEXT: Mutex<&str> = Mutex::new(ROUTES);
    let mut simulator = Simulator::new(&["left", "right"], &[]).unwrap();
    let live =
        Live::new(|| Routes::from_lines(&Lines::from_text(Path::new("r"), *TEXT.lock().unwrap()))).unwrap();
    let args = Args::try_parse_from(["nf", "--routes", "r"]).unwrap();
    let mut nf = Router::new(args, live.view(), &simulator.context());
    let frame = testing::udp("192.0.2.1:1", "10.1.1.1:1", b"");
    assert_eq!(simulator.inject(&mut nf, LEFT, &frame).verdict, Verdict::Port(RIGHT));
    *TEXT.lock().unwrap() = "0.0.0.0/0 02:00:00:00:00:05 left";
    live.request().store(true, std::sync::atomic::Ordering::Relaxed);
    nf.tick();
    testing::until("the new route is used", || {
        simulator.inject(&mut nf, LEFT, &frame).verdict == Verdict::Port(LEFT)
    });
}

#[test]
fn impossible_mac_addresses_are_refused() {
    for mac in ["01:00:00:00:00:01", "00:00:00:00:00:00", "xx"] {
        let args = ["nf", "--routes", "r", "--mac", mac];
        assert!(Args::try_parse_from(args).is_err(), "{mac}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_harm_it(frames in testing::hostile()) {
        let (mut simulator, mut nf) = with(&["--proxy-arp", "--malformed", "pass"]);
        let outcomes = testing::survives(&mut simulator, &mut nf, &frames);
        for (outcome, frame) in outcomes.iter().zip(&frames) {
            if let Verdict::Port(_) = outcome.verdict {
                // Output is well-formed, has the router's source address, and is as valid as the input.
                let headers = netvm_wire::parse(&outcome.bytes).unwrap();
                prop_assert_eq!(headers.key().source_mac, OWN);
                let before = netvm_wire::parse(frame).map(|headers| verify(frame, &headers));
                prop_assert_eq!(before.unwrap(), verify(&outcome.bytes, &headers));
            } else {
                prop_assert_eq!(&outcome.bytes, frame);
            }
        }
    }
}
