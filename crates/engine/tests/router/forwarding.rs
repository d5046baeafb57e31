//! Virtual routers end to end between captures: what is forwarded, what the kernel gets, what is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::plan::{self, *};
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, behind_nf, port, source};
use netvm_config::model::{EngineConfig, Forward, Host, Output, PortConfig, PortKind, RouterId, Urpf};
use netvm_engine::{ChainId, DropReason, InterfaceCounts, PortId, PuntClass, PuntCounts, Step};
use netvm_policy::{Action, Actions, Match, Rule, RuleId, RuleParts};
use netvm_router::{NextHop, NextHopId, Update};
use netvm_wire::{FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId, parse};

#[test]
fn packets_leave_by_their_route_with_the_tag_of_the_interface() {
    for (inside, outside) in [(0, 0), (10, 0), (0, 20), (10, 20)] {
        let frames: Vec<Vec<u8>> = (0..8).map(|n| tagged(&datagram(n % 2 == 1, n), inside)).collect();
        let scratch = Scratch::new();
        let seen = Played::new(&scratch, &frames, &[], (inside, outside), &routes());
        let sent = scratch.sent(WAN);
        assert_eq!(sent.len(), 8, "{inside} {outside}: {:?}", seen.drops);
        for (before, after) in frames.iter().zip(&sent) {
            let (old, new) = (parse(before).unwrap(), parse(after).unwrap());
            assert_eq!((new.key().source_mac, new.key().destination_mac), (OUT, GATEWAY));
            assert_eq!(new.key().vlan.map_or(0, VlanId::get), outside);
            let (mut a, mut b) = (before[old.l3_offset()..].to_vec(), after[new.l3_offset()..].to_vec());
            let (ttl, sum) = if a[0] >> 4 == 4 { (8, 10..12) } else { (7, 7..8) };
            assert_eq!(a[ttl] - 1, b[ttl]);
            if a[0] >> 4 == 4 {
                assert_eq!(netvm_wire::checksum::internet_checksum(&b[..20]), 0);
            }
            for packet in [&mut a, &mut b] {
                packet[ttl] = 0;
                packet[sum.clone()].fill(0);
            }
            assert_eq!(a, b, "nothing else changes");
        }
        assert_eq!((seen.router.forwarded, seen.router.punted), (8, 0));
        let bytes = (0..8).map(|n| datagram(n % 2 == 1, n).len() as u64).sum();
        let lan = InterfaceCounts { rx_packets: 8, rx_bytes: bytes, ..InterfaceCounts::default() };
        let wan = InterfaceCounts { tx_packets: 8, tx_bytes: bytes, ..InterfaceCounts::default() };
        assert_eq!((seen.interfaces[&PortId(LAN_PUNT)], seen.interfaces[&PortId(WAN_PUNT)]), (lan, wan));
        assert!(seen.drops.is_empty(), "{:?}", seen.drops);
    }
}

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
        let seen = Played::new(&scratch, &frames, &[], (inside, 20), &routes());
        // What they get has no tag, and is otherwise as it came.
        let got = scratch.sent(LAN_PUNT);
        assert_eq!(got.len(), kept.len(), "{:?}", seen.drops);
        let (got, kept): (BTreeSet<_>, BTreeSet<_>) = (got.iter().collect(), kept.iter().collect());
        assert_eq!(got, kept);
        assert_eq!(scratch.sent(WAN).len(), 0);
        assert_eq!(seen.router.punted, frames.len() as u64);
        let bytes = kept.iter().map(|frame| frame.len() as u64).sum();
        let lan = InterfaceCounts { rx_packets: 13, rx_bytes: bytes, ..InterfaceCounts::default() };
        assert_eq!(seen.interfaces[&PortId(LAN_PUNT)], lan, "{inside}");
        assert!(seen.drops.is_empty(), "{:?}", seen.drops);
    }
}

#[test]
fn what_no_router_passes_on_is_dropped_for_a_reason() {
    let good = || v4("192.0.2.2").udp(1, 1).to_vec().unwrap();
    let changed = |at: usize, byte: u8| {
        let mut frame = good();
        frame[at] ^= byte;
        frame
    };
    let sealed = |at: usize, bytes: &[u8]| {
        let mut frame = good();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        seal(frame)
    };
    let other = |mac: MacAddr| FrameBuilder::new(HOST, mac).ip(ip("10.0.0.9"), ip("192.0.2.2"));
    let cases: Vec<(Vec<u8>, DropReason)> = vec![
        (other(MacAddr([2, 9, 9, 9, 9, 9])).udp(1, 1).to_vec().unwrap(), DropReason::NotForRouter),
        (tagged(&good(), 99), DropReason::NoRouterInterface),
        (v4("198.51.100.1").udp(1, 1).to_vec().unwrap(), DropReason::Blackhole),
        (changed(24, 1), DropReason::BadIpHeader),
        (changed(14, 0x20), DropReason::BadIpHeader),
        (sealed(16, &[0x10, 0]), DropReason::BadIpHeader),
        (sealed(26, &[127, 0, 0, 1]), DropReason::BadIpHeader),
        (sealed(26, &[224, 0, 0, 1]), DropReason::BadIpHeader),
        (sealed(30, &[127, 0, 0, 1]), DropReason::BadIpHeader),
    ];
    let frames: Vec<Vec<u8>> = cases.iter().map(|(frame, _)| frame.clone()).collect();
    let scratch = Scratch::new();
    let seen = Played::new(&scratch, &frames, &[], (0, 0), &routes());
    let mut expected = BTreeMap::new();
    cases.iter().for_each(|(_, reason)| *expected.entry(reason.name()).or_insert(0) += 1);
    assert_eq!(seen.drops, expected);
    assert_eq!((scratch.sent(WAN).len(), scratch.sent(LAN_PUNT).len()), (0, 0));
    // All but the one that no interface has.
    let lan = seen.interfaces[&PortId(LAN_PUNT)];
    assert_eq!((lan.rx_packets, lan.rx_dropped), (cases.len() as u64 - 1, cases.len() as u64 - 1));
}

/// What becomes of a packet by the source that it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Out,
    Kernel,
    Forged,
}

#[test]
fn sources_are_believed_by_the_way_back() {
    use Outcome::{Forged, Kernel, Out};
    let hop = |interface, mac| netvm_router::Hop { interface, mac };
    let mut update = routes();
    update.routes.retain(|(net, _)| !net.to_string().starts_with("10.0.0."));
    let ecmp = NextHop::Ecmp(Box::new([hop(1, GATEWAY), hop(0, HOST)]));
    update.next_hops.extend([
        (NextHopId(10), NextHop::Glean(0)),
        (NextHopId(11), NextHop::Glean(1)),
        (NextHopId(12), NextHop::Via(hop(0, HOST))),
        (NextHopId(13), ecmp),
    ]);
    let (local, kernel) = (NextHopId::LOCAL.0, NextHopId::KERNEL.0);
    update.routes.extend(
        [("10.0.0.0/24", 10), ("10.0.5.0/24", 11), ("10.0.0.9/32", 12), ("172.16.0.0/12", 13)]
            .into_iter()
            .chain([("10.0.0.1/32", local), ("203.0.113.0/24", kernel), ("2001:db8::/64", 10)])
            .map(|(net, id)| plan::route(net, id)),
    );
    // Source, and what becomes of it with strict and with loose checks.
    let cases = [
        ("10.0.0.9", Out, Out),
        ("10.0.0.77", Out, Out),
        ("10.0.5.7", Forged, Out),
        ("192.0.2.77", Forged, Out),
        ("172.16.0.1", Out, Out),
        ("198.51.100.1", Forged, Forged),
        ("10.0.0.1", Forged, Forged),
        ("203.0.113.9", Kernel, Out),
        ("100.64.0.1", Forged, Forged),
        ("2001:db8::9", Out, Out),
        ("2001:db8:1::77", Forged, Out),
        ("2001:db8:2::1", Forged, Forged),
    ];
    let frame = |source: &str, n: usize| {
        let to = if source.contains(':') { "2001:db8:1::2" } else { "192.0.2.2" };
        let frame = FrameBuilder::new(HOST, IN).ip(ip(source), ip(to)).ttl(64);
        frame.udp(n as u16, 1).payload(b"whence?").to_vec().unwrap()
    };
    let mut frames: Vec<Vec<u8>> = cases.iter().enumerate().map(|(n, case)| frame(case.0, n)).collect();
    // What is for the router itself is checked, too.
    let to_router = |source: &str| FrameBuilder::new(HOST, IN).ip(ip(source), ip("10.0.0.1")).ttl(64);
    frames.extend(["192.0.2.77", "10.0.0.9"].map(|source| to_router(source).udp(1, 1).to_vec().unwrap()));
    for (urpf, [of_forged, of_own]) in [
        (None, [Kernel, Kernel]),
        (Some(Urpf::Strict), [Forged, Kernel]),
        (Some(Urpf::Loose), [Kernel, Kernel]),
    ] {
        let expected = cases.iter().map(|(_, strict, loose)| match urpf {
            None => Out,
            Some(Urpf::Strict) => *strict,
            Some(Urpf::Loose) => *loose,
        });
        let expected: Vec<Outcome> = expected.chain([of_forged, of_own]).collect();
        let count = |outcome| expected.iter().filter(|one| **one == outcome).count();
        for inside in [0, 10] {
            let scratch = Scratch::new();
            let frames: Vec<Vec<u8>> = frames.iter().map(|frame| tagged(frame, inside)).collect();
            let mut host = host(&scratch, &frames, &[], (inside, 20));
            host.routers[0].interfaces[0].urpf = urpf;
            let seen = Played::of(&host, &update);
            let sources = |port| {
                let sent = scratch.sent(port);
                sent.iter()
                    .map(|frame| parse(frame).unwrap().key().source.to_string())
                    .collect::<BTreeSet<_>>()
            };
            let named = |outcome| {
                let all = cases.iter().zip(&expected).filter(|(_, one)| **one == outcome);
                all.map(|(case, _)| case.0.to_owned()).collect::<BTreeSet<_>>()
            };
            assert_eq!(sources(WAN), named(Out), "{urpf:?} {:?}", seen.drops);
            assert_eq!(scratch.sent(LAN_PUNT).len(), count(Kernel), "{urpf:?} {:?}", seen.drops);
            assert_eq!(seen.drops.get("urpf").copied().unwrap_or(0), count(Forged) as u64, "{urpf:?}");
        }
    }
}

#[test]
fn what_comes_from_the_kernel_leaves_by_its_interface() {
    for outside in [0, 20] {
        let frames: Vec<Vec<u8>> = (0..5).map(|n| datagram(false, n)).collect();
        let scratch = Scratch::new();
        let seen = Played::new(&scratch, &[], &frames, (10, outside), &Update::default());
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
    let mut host = host(&scratch, &frames, &[], (0, 0));
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
    let mut host = host(&scratch, &frames, &[], (0, 0));
    host.routers[0].interfaces[0].punt_rate = 10_000;
    let mut update = routes();
    let route = |net: &str, id| (net.parse().unwrap(), Some(id));
    update.routes.retain(|(net, _)| net.to_string() != "10.0.0.1/32");
    update.routes.extend([route("10.0.0.0/16", NextHopId::RESOLVE), route("10.0.0.1/32", NextHopId::LOCAL)]);
    let seen = Played::of(&host, &update);
    let count = |class: PuntClass| seen.punts[&PortId(LAN_PUNT)][class as usize];
    let all = |punted| PuntCounts { punted, dropped: 0 };
    assert_eq!(count(PuntClass::Routing), all(100), "BGP with TTL 1, too");
    assert_eq!(count(PuntClass::Local), all(50));
    assert_eq!(count(PuntClass::Neighbour), all(50));
    assert_eq!(count(PuntClass::Kernel), all(50), "what only passes is not of the router's protocols");
    let misses = count(PuntClass::Miss);
    assert_eq!(misses.punted + misses.dropped, 1600);
    assert!((300..1300).contains(&misses.punted), "{misses:?}");
    let again = scratch.sent(LAN_PUNT).iter().filter(|frame| **frame == scanned(0)).count();
    assert!((1..=17).contains(&again), "{again}");
    assert_eq!(seen.drops, BTreeMap::from([("punt-quota", misses.dropped)]));
}

#[test]
fn flows_spread_over_hops_and_keep_to_theirs() {
    let flow = |n: u32, repeat: u32| {
        v4("192.0.2.2").udp(1000 + n as u16, 53).payload(&repeat.to_be_bytes()).to_vec().unwrap()
    };
    let frames: Vec<Vec<u8>> = (0..1600).map(|n| flow(n % 400, n / 400)).collect();
    let scratch = Scratch::new();
    let mut update = routes();
    let hops = [GATEWAY, MacAddr([2, 0, 0, 0, 9, 2])].map(|mac| netvm_router::Hop { interface: 1, mac });
    update.next_hops[0].1 = NextHop::Ecmp(Box::new(hops));
    let seen = Played::new(&scratch, &frames, &[], (0, 20), &update);
    let mut by_flow: BTreeMap<u16, Vec<(MacAddr, u32)>> = BTreeMap::new();
    for frame in scratch.sent(WAN) {
        let headers = parse(&frame).unwrap();
        let repeat = u32::from_be_bytes(*frame[headers.payload_offset()..].first_chunk().unwrap());
        by_flow.entry(headers.key().source_port).or_default().push((headers.key().destination_mac, repeat));
    }
    assert_eq!((by_flow.len(), seen.router.forwarded), (400, 1600), "{:?}", seen.drops);
    let mut first = 0;
    for (flow, packets) in &by_flow {
        let expected: Vec<_> = (0..4).map(|repeat| (packets[0].0, repeat)).collect();
        assert_eq!(*packets, expected, "flow {flow} keeps to its hop and its order");
        first += usize::from(packets[0].0 == GATEWAY);
    }
    assert!((120..280).contains(&first), "{first} of 400 flows by one of two hops");
}

#[test]
fn rules_lead_to_routers_and_hold_on_the_way_out() {
    let rule = |id, matches, terminal| {
        let actions = Actions { terminal: Some(terminal), ..Actions::default() };
        Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
    };
    let icmp = || Match { protocol: vec![IpProto::ICMP], ..Match::default() };
    let frames: Vec<Vec<u8>> = (0..6)
        .map(|n: u16| match n % 3 {
            0 => datagram(false, n.into()),
            1 => v4("192.0.2.2").echo(false, 1, n).to_vec().unwrap(),
            _ => v4("192.0.2.2").udp(1, 25).to_vec().unwrap(),
        })
        .collect();
    let scratch = Scratch::new();
    let mut host = host(&scratch, &frames, &[], (0, 20));
    host.ports[0].policy.forward = Forward::None;
    let to_wan = Match { to: vec![PortId(WAN)], ..icmp() };
    let from_lan = Match { from: vec![PortId(LAN)], ..Match::default() };
    let smtp = Match { destination_ports: vec![netvm_wire::PortRange::single(25)], ..from_lan.clone() };
    host.rules = vec![
        rule(0, to_wan, Action::Drop),
        rule(1, smtp, Action::Drop),
        rule(2, from_lan, Action::Router(RouterId(0))),
    ];
    let seen = Played::of(&host, &routes());
    assert_eq!(scratch.sent(WAN).len(), 2, "{:?}", seen.drops);
    assert_eq!(seen.drops, BTreeMap::from([("rule", 4)]));
    assert_eq!(seen.router.forwarded, 4);
}

#[test]
fn packets_are_routed_behind_a_chain() {
    let frames: Vec<Vec<u8>> = (0..20).map(|n| datagram(n % 2 == 1, n)).collect();
    let scratch = Scratch::new();
    let host = |frames: &[Vec<u8>]| {
        let mut host = behind_nf(plan::host(&scratch, frames, &[], (0, 0)), Output::Router(RouterId(0)));
        host.ports[usize::from(LAN)].policy.forward = Forward::Chain(ChainId(0));
        host
    };
    let mut rig = Rig::new(&EngineConfig::default());
    start_routed(&mut rig, &host(&[]), &routes());
    rig.attach("fw", "forward", false);
    rig.engine.apply(&host(&frames)).unwrap();
    finish(&mut rig);
    let router = rig.engine.routers()[0];
    assert_eq!((router.forwarded, router.punted), (20, 0), "{}", rig.story());
    rig.engine.apply(&Host { ports: Vec::new(), routers: Vec::new(), ..host(&[]) }).unwrap();
    let sent = scratch.sent(WAN);
    assert_eq!(sent.len(), 20);
    assert!(sent.iter().all(|frame| frame[6..12] == OUT.0), "rewritten");
}

#[test]
fn a_trace_says_where_a_router_sends_a_packet() {
    let scratch = Scratch::new();
    let host = host(&scratch, &[], &[], (10, 20));
    let mut rig = Rig::new(&EngineConfig::default());
    start_routed(&mut rig, &host, &routes());
    let steps = |rig: &Rig, frame: &[u8]| rig.engine.trace(PortId(LAN), frame, frame.len());
    let frame = tagged(&datagram(false, 1), 10);
    let found = steps(&rig, &frame);
    assert!(
        found.ends_with(&[
            Step::Router(RouterId(0)),
            Step::NextHop { port: PortId(WAN), vlan: VlanId::new(20).ok(), mac: GATEWAY },
            Step::Out(PortId(WAN)),
        ]),
        "{found:?}"
    );
    let local = tagged(&v4("10.0.0.1").udp(1, 1).to_vec().unwrap(), 10);
    let found = steps(&rig, &local);
    assert!(found.ends_with(&[Step::Punted, Step::Out(PortId(LAN_PUNT))]), "{found:?}");
    let hole = tagged(&v4("198.51.100.1").udp(1, 1).to_vec().unwrap(), 10);
    assert_eq!(steps(&rig, &hole).last(), Some(&Step::Dropped(DropReason::Blackhole)));
    let lost = datagram(false, 1);
    assert_eq!(steps(&rig, &lost).last(), Some(&Step::Dropped(DropReason::NoRouterInterface)));
    let mut checked = host.clone();
    checked.routers[0].interfaces[0].urpf = Some(Urpf::Strict);
    rig.engine.apply(&checked).unwrap();
    assert_eq!(steps(&rig, &frame).last(), Some(&Step::Dropped(DropReason::Urpf)), "no route to the source");
}

/// The route changes under full load: each packet leaves by the one or the other, and none is lost.
#[test]
fn routes_change_under_load_without_a_loss() {
    let mut ports: Vec<PortConfig> = vec![port(LAN, "lan", source(60, None, false))];
    ports.extend([WAN, LAN_PUNT, WAN_PUNT].map(|id| port(id, &format!("p{id}"), PortKind::Sink)));
    let dmz = 4;
    ports.extend([dmz, 5].map(|id| port(id, &format!("p{id}"), PortKind::Sink)));
    let mut host = routed(ports, (0, 0));
    host.routers[0].interfaces[0].mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let mut third = host.routers[0].interfaces[1].clone();
    (third.name, third.port, third.punt) = ("dmz".to_owned(), PortId(dmz), PortId(5));
    host.routers[0].interfaces.push(third);
    let to = |interface: u16, spare: u32| Update {
        next_hops: vec![(NextHopId(1), via(interface))],
        routes: vec![
            route("192.168.0.0/16", 1),
            (format!("172.16.{}.0/24", spare % 256).parse().unwrap(), Some(NextHopId(1))),
        ],
    };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..host.clone() }).unwrap();
    rig.engine.update_router(RouterId(0), to(1, 0)).unwrap();
    assert!(rig.until(LIMIT, |engine| engine.routers()[0].routes.0 == 2), "{}", rig.story());
    let free = rig.free_buffers();
    rig.engine.apply(&host).unwrap();
    let mut last = 0;
    for n in 1..60 {
        rig.engine.update_router(RouterId(0), to([1, 2][n as usize % 2], n)).unwrap();
        let (out, before) = ([WAN, dmz][n as usize % 2], rig.sent([WAN, dmz][n as usize % 2]));
        assert!(
            rig.until(LIMIT, |engine| {
                engine.ports().iter().any(|port| port.id == PortId(out) && port.tx_packets > before + 32)
            }),
            "change {n}: {}",
            rig.story()
        );
        last = rig.engine.routers()[0].routes.0;
    }
    assert!(last >= 59, "{last} routes");
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..host.clone() }).unwrap();
    let counters = rig.engine.workers().next().unwrap().counters;
    for reason in DropReason::ALL {
        let drops: u64 = counters.ports.iter().map(|port| port.drops.get(reason)).sum();
        assert_eq!(drops, 0, "{}", reason.name());
    }
    let sent = [WAN, dmz].map(|port| counters.ports[usize::from(port)].tx_packets.get());
    let received = counters.ports[usize::from(LAN)].rx_packets.get();
    assert!(sent.iter().all(|sent| *sent > 1000), "{sent:?}");
    // What came before the interface had its route went to the kernel; none did.
    assert_eq!((received, rig.engine.routers()[0].punted), (sent[0] + sent[1], 0));
    let home = |rig: &Rig| rig.free_buffers() >= free;
    assert!(home(&rig), "{:?} of {free:?}", rig.free_buffers());
    // Without its routes everything goes to the kernel.
    let mut changed = host.clone();
    changed.routers[0].interfaces.swap(1, 2);
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..changed }).unwrap();
    assert_eq!(rig.engine.routers()[0].routes, (0, 0), "places changed");
    rig.engine.apply(&Host::default()).unwrap();
    assert!(rig.engine.update_router(RouterId(0), Update::default()).is_err());
}

pub const LIMIT: Duration = Duration::from_secs(60);
