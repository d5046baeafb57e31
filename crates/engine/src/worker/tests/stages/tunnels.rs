// SPDX-License-Identifier: Apache-2.0
//! Tunnels: packets of a port get outer headers and leave by a router, and come back without them.

use std::net::IpAddr;
use std::sync::Arc;

use netvm_clock as clock;
use netvm_model::{
    Forward, Host, PortConfig, PortKind, Rate, RouterConfig, RouterId, RouterInterface, VxlanConfig,
};
use netvm_policy::{Actions, Match, Rule, RuleId, RuleParts};
use netvm_router::{Hop, NextHop, NextHopId, Tables, Update};
use netvm_wire::partial::transport;
use netvm_wire::vxlan::{Outer, Vni, datagram, vni};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags, checksum, parse};

use super::virtual_ports::to;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::router::{InterfacePath, PuntLimits, RouterPath, UnresolvedLimit, Vteps};
use crate::snapshot::Snapshot;
use crate::worker::tests::rig::{Rig, mac, port};

/// Port 0 is inside, port 1 leads to the other servers, port 2 has the tunnel.
pub(super) const INSIDE: usize = 0;
pub(super) const WAN: usize = 1;
pub(super) const TUNNEL: usize = 2;
const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 9, 1]);
pub(super) const VNI: u32 = 0x12_3456;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// This server, two others, and one that is unknown.
pub(super) fn servers(v6: bool) -> [IpAddr; 4] {
    let all = if v6 {
        ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::9"]
    } else {
        ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.9"]
    };
    all.map(address)
}

pub(super) fn config(v6: bool, remotes: usize) -> VxlanConfig {
    let [local, all @ ..] = servers(v6);
    VxlanConfig { vni: VNI, local, remotes: all[..remotes].to_vec(), ttl: 33, ..VxlanConfig::default() }
}

pub(super) fn host(config: VxlanConfig) -> Host {
    let tunnel = PortConfig { kind: PortKind::Vxlan(config), mtu: 300, ..port(2, to(0)) };
    let interface = RouterInterface {
        name: "wan".to_owned(),
        port: PortId(1),
        vlan: None,
        mac: OWN,
        addresses: Vec::new(),
        punt_rate: 1000,
        urpf: None,
        punt: PortId(3),
        host_end: "wan".to_owned(),
        snat: None,
    };
    let router = RouterConfig {
        id: RouterId(0),
        name: "blue".to_owned(),
        interfaces: vec![interface],
        routes: Vec::new(),
        track: false,
        weight: 1,
        reserve: 0,
        nat64: None,
    };
    let ports = vec![port(0, to(2)), port(1, Forward::Router(RouterId(0))), tunnel, port(3, Forward::None)];
    Host { ports, routers: vec![router], ..Host::default() }
}

/// The router, whose routes to the other servers lead to the gateway.
pub(super) fn router(host: &Host, vteps: &Vteps) -> RouterPath {
    router_by(host, vteps, 0)
}

/// The same by this interface.
pub(super) fn router_by(host: &Host, vteps: &Vteps, by: u16) -> RouterPath {
    let hz = clock::cycles_in_micros(1_000_000);
    let unresolved = Arc::new(UnresolvedLimit::new(1024, hz).unwrap());
    let rate = Rate { per_second: 1000, burst: 100 };
    let punts = Arc::new(PuntLimits::new(rate, unresolved, hz).unwrap());
    let interfaces = &host.routers[0].interfaces;
    let interfaces = interfaces.iter().map(|one| InterfacePath::new(one, 1500, &punts, None)).collect();
    let mut tables = Tables::new();
    let gateway = NextHop::Via(Hop { interface: by, mac: GATEWAY });
    let route = |net: &str, id| (net.parse().unwrap(), Some(id));
    let local = NextHopId::LOCAL;
    tables.apply(&Update {
        next_hops: vec![(NextHopId(7), gateway)],
        routes: vec![
            route("192.0.2.0/24", NextHopId(7)),
            route("192.0.2.1/32", local),
            route("2001:db8::/64", NextHopId(7)),
            route("2001:db8::1/128", local),
        ],
    });
    let mut path = RouterPath::new(RouterId(0), interfaces, Arc::new(tables), &[]);
    path.tunnels = vteps.tunnels_of(RouterId(0));
    path
}

pub(super) fn rig(config: VxlanConfig) -> Rig {
    rig_of(&host(config))
}

fn rig_of(host: &Host) -> Rig {
    let mut rig = Rig::of(host);
    let mut vteps = Vteps::default();
    vteps.follow(host);
    let routers = vec![Some(Arc::new(router(host, &vteps)))].into();
    rig.worker.snapshot = Arc::new(Snapshot { routers, ..Snapshot::clone(&rig.worker.snapshot) });
    rig
}

pub(super) fn inner(source: u8, destination: u8) -> FrameBuilder<'static> {
    FrameBuilder::new(mac(source), mac(destination)).ip(address("10.0.0.1"), address("10.0.0.2")).dscp(46)
}

/// The frame as another server sends it.
pub(super) fn outer(from: IpAddr, to: IpAddr, frame: &[u8]) -> Vec<u8> {
    let headers = Outer {
        source: from.into(),
        destination: to.into(),
        ports: [50_000, 4789],
        vni: Vni::new(VNI).unwrap(),
        tos: 0,
        ttl: 1,
        may_fragment: false,
    };
    let mut bytes = vec![0; headers.length()];
    headers.write(frame.len(), &mut bytes).unwrap();
    let kind: &[u8] = if from.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] };
    [&OWN.0[..], &GATEWAY.0, kind, &bytes, frame].concat()
}

/// What is in a frame that leaves: whom it goes to, and the inner frame. Its headers are right.
pub(super) fn opened(frame: &[u8]) -> (IpAddr, u16, Vec<u8>) {
    let parsed = parse(frame).unwrap();
    checksum::verify(frame, &parsed).unwrap();
    let key = parsed.key();
    assert_eq!((key.source_mac, key.destination_mac, key.destination_port), (OWN, GATEWAY, 4789));
    let found = datagram(&frame[14..]).unwrap();
    let udp = &frame[14 + found.ip_header..];
    assert_eq!(vni(udp, udp.len()).unwrap().get(), VNI);
    (key.destination.to_ip(), key.source_port, udp[16..].to_vec())
}

#[test]
fn a_packet_leaves_behind_outer_headers_and_comes_back_without() {
    for v6 in [false, true] {
        let [local, remote, ..] = servers(v6);
        let mut rig = rig(config(v6, 1));
        let frames: Vec<Vec<u8>> = (0..8)
            .map(|n| inner(1, 2).udp(1000 + n / 2, 53).payload(&[n as u8; 9]).to_vec().unwrap())
            .collect();
        let arp = FrameBuilder::new(mac(1), MacAddr::BROADCAST)
            .arp_request("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
            .to_vec()
            .unwrap();
        frames.iter().chain([&arp]).for_each(|frame| rig.receive(INSIDE, frame));
        rig.turn();
        let sent = rig.sent(WAN);
        let (tos, ttl) = if v6 {
            ((sent[0][14] << 4 | sent[0][15] >> 4), sent[0][21])
        } else {
            (sent[0][15], sent[0][22])
        };
        assert_eq!((tos, ttl), (46 << 2, 33));
        assert!(v6 || sent[0][20] == 0x40, "do not fragment");
        let opened: Vec<_> = sent.iter().map(|frame| opened(frame)).collect();
        assert!(opened.iter().map(|(.., frame)| frame).eq(frames.iter().chain([&arp])));
        assert!(opened.iter().all(|(to, port, _)| *to == remote && *port >= 49_152));
        let ports: std::collections::BTreeSet<u16> = opened[..8].iter().map(|(_, port, _)| *port).collect();
        assert!((2..=4).contains(&ports.len()), "{ports:?}: one for each flow, as a rule");
        assert!((0..8).step_by(2).all(|n| opened[n].1 == opened[n + 1].1), "and always the same");
        // The other way.
        frames.iter().for_each(|frame| rig.receive(WAN, &outer(remote, local, frame)));
        rig.turn();
        assert_eq!(rig.sent(INSIDE), frames);
        let counters = &rig.counters().ports;
        let tunnel = &counters[TUNNEL];
        assert_eq!((tunnel.rx_packets.get(), tunnel.tx_packets.get()), (8, 9));
        let interface = &counters[3].interface;
        assert_eq!((interface.rx_packets.get(), interface.tx_packets.get()), (8, 9));
        assert_eq!(rig.counters().routers[0].forwarded.get(), 9);
        rig.assert_nothing_leaked();
    }
}

/// The frame as its kernel leaves it to a device: with the sum of the pseudo header in place of the checksum.
fn unfinished(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let found = transport(&frame).unwrap();
    let at = usize::from(found.partial().at);
    frame[at..at + 2].copy_from_slice(&found.pseudo_sum.to_be_bytes());
    frame
}

#[test]
fn segments_pass_whole_and_are_cut_where_they_leave() {
    const SIZE: u16 = 200;
    let payload: Vec<u8> = (0..3001u32).map(|n| (n % 251) as u8).collect();
    for (v6, length) in [(false, 3001), (true, 3001), (false, 90), (true, 90), (true, 0)] {
        let [local, remote, ..] = servers(v6);
        let mut rig = rig(config(v6, 1));
        rig.wires[INSIDE].lock().unwrap().segment_size = Some(SIZE);
        let tcp =
            |payload: &[u8]| inner(1, 2).tcp(1000, 80, TcpFlags::ACK).payload(payload).to_vec().unwrap();
        let whole = unfinished(&tcp(&payload[..length]));
        rig.receive(INSIDE, &whole);
        rig.turn();
        assert_eq!(rig.counters().ports[TUNNEL].tx_packets.get(), 1, "one segment");
        let sent = rig.sent(WAN);
        assert_eq!(sent.len(), length.div_ceil(SIZE.into()).max(1), "{v6} {length}");
        let (mut all, mut ids) = (Vec::new(), std::collections::BTreeSet::new());
        for frame in &sent {
            let (.., within) = opened(frame);
            checksum::verify(&within, &parse(&within).unwrap()).unwrap();
            all.extend_from_slice(&within[54..]);
            ids.insert(frame[18..20].to_vec());
        }
        assert_eq!(all, payload[..length]);
        assert!(v6 || ids.len() == sent.len(), "each has an identification of its own");
        // What the other server's kernel has left to a device is done for it.
        let finished = tcp(&payload[..50]);
        rig.receive(WAN, &outer(remote, local, &unfinished(&finished)));
        rig.turn();
        assert_eq!(rig.sent(INSIDE), [finished]);
        rig.assert_nothing_leaked();
    }
}

#[test]
fn floods_go_to_all_vteps_and_answers_to_the_one_that_has_the_address() {
    let [local, two, three, _] = servers(false);
    let mut rig = rig(config(false, 2));
    let to_vteps = |rig: &Rig| rig.sent(WAN).iter().map(|frame| opened(frame).0).collect::<Vec<_>>();
    let frame = |from, to| inner(from, to).udp(1, 2).to_vec().unwrap();
    rig.receive(INSIDE, &frame(1, 2));
    rig.turn();
    assert_eq!(to_vteps(&rig), [two, three], "unknown");
    rig.receive(WAN, &outer(three, local, &frame(2, 1)));
    rig.turn();
    rig.receive(INSIDE, &frame(1, 2));
    rig.turn();
    assert_eq!(to_vteps(&rig), [three], "learned");
    // It moves.
    rig.receive(WAN, &outer(two, local, &frame(2, 1)));
    rig.turn();
    rig.receive(INSIDE, &frame(1, 2));
    rig.receive(INSIDE, &FrameBuilder::new(mac(1), MacAddr::BROADCAST).payload(&[0; 50]).to_vec().unwrap());
    rig.turn();
    assert_eq!(to_vteps(&rig), [two, two, three]);
    assert_eq!(rig.sent(INSIDE).len(), 2);
    rig.assert_nothing_leaked();
}

#[test]
fn hostile_datagrams_are_dropped_for_a_reason() {
    let [local, remote, three, unknown] = servers(false);
    let frame = inner(2, 1).udp(1, 2).to_vec().unwrap();
    let good = outer(remote, local, &frame);
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame[24..26].fill(0);
        let sum = checksum::internet_checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    for (bad, reason) in [
        (changed(42, &[0]), DropReason::BadTunnelHeader),
        (changed(42, &[0x0c]), DropReason::BadTunnelHeader),
        (changed(20, &[0x20]), DropReason::BadTunnelHeader),
        (changed(38, &[0xff]), DropReason::BadTunnelHeader),
        (changed(38, &[0, 29]), DropReason::BadTunnelHeader),
        (changed(46, &[9]), DropReason::UnknownVni),
        (outer(unknown, local, &frame), DropReason::UnknownVtep),
        (outer(three, local, &frame), DropReason::UnknownVtep),
        (outer(local, local, &frame), DropReason::UnknownVtep),
    ] {
        let mut rig = rig(config(false, 1));
        rig.receive(WAN, &bad);
        rig.turn();
        assert_eq!(rig.dropped_at(WAN, reason), 1, "{}: {bad:02x?}", reason.name());
        assert!(rig.sent(INSIDE).is_empty());
        rig.assert_nothing_leaked();
    }
    // What a tunnel carries may be anything; the port's own checks apply.
    let mut rig = rig(config(false, 1));
    rig.receive(WAN, &outer(remote, local, &[0xff; 14]));
    rig.receive(WAN, &outer(remote, local, &good));
    // Congestion on the way, and a sender that does not understand it.
    rig.receive(WAN, &changed(15, &[3]));
    // To another port, and to another host: the router's.
    rig.receive(WAN, &changed(36, &[0x12, 0xb6]));
    rig.receive(WAN, &outer(remote, three, &frame));
    rig.turn();
    let sent = rig.sent(INSIDE);
    assert_eq!(sent, [vec![0xff; 14], good.clone()]);
    assert_eq!(rig.dropped_at(TUNNEL, DropReason::BadTunnelHeader), 1);
    assert_eq!(rig.counters().routers[0].punted.get(), 2, "to a port of the router, and a TTL that ends");
    rig.assert_nothing_leaked();
}

#[test]
fn congestion_marks_of_the_way_get_into_the_packet() {
    let [local, remote, ..] = servers(false);
    let mut rig = rig(config(false, 1));
    let mut frame = inner(2, 1).udp(1, 2).payload(&[5; 20]).to_vec().unwrap();
    frame[15] |= 2;
    let parsed = parse(&frame).unwrap();
    checksum::fill(&mut frame, &parsed).unwrap();
    let mut marked = outer(remote, local, &frame);
    marked[15] |= 3;
    marked[24..26].fill(0);
    let sum = checksum::internet_checksum(&marked[14..34]);
    marked[24..26].copy_from_slice(&sum.to_be_bytes());
    rig.receive(WAN, &marked);
    rig.turn();
    let [received] = &rig.sent(INSIDE)[..] else { panic!("one packet") };
    assert_eq!(received[15] & 3, 3);
    checksum::verify(received, &parse(received).unwrap()).unwrap();
    rig.assert_nothing_leaked();
}

#[test]
fn the_sender_of_a_packet_that_is_too_long_is_told_the_mtu() {
    for v6 in [false, true] {
        let mut rig = rig(config(v6, 1));
        let [a, b] = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] }.map(address);
        let headers = if v6 { 48 } else { 28 };
        let frame = |length: usize, is_whole: bool| {
            let frame =
                FrameBuilder::new(mac(1), mac(2)).ip(a, b).udp(1, 2).payload(&[0; 300][..length - headers]);
            let mut frame = frame.to_vec().unwrap();
            if !v6 {
                frame[20] = if is_whole { 0x40 } else { 0 };
            }
            let parsed = parse(&frame).unwrap();
            checksum::fill(&mut frame, &parsed).unwrap();
            frame
        };
        rig.receive(INSIDE, &frame(300, true));
        rig.receive(INSIDE, &frame(301, true));
        // Routers may cut it, but this is none for what is within.
        rig.receive(INSIDE, &frame(301, false));
        rig.turn();
        assert_eq!((rig.sent(WAN).len(), rig.dropped_at(TUNNEL, DropReason::ExceedsMtu)), (1, 2));
        let told = rig.sent(INSIDE);
        assert_eq!(told.len(), if v6 { 2 } else { 1 });
        let parsed = parse(&told[0]).unwrap();
        checksum::verify(&told[0], &parsed).unwrap();
        let key = parsed.key();
        assert_eq!((key.source_mac, key.destination_mac), (mac(2), mac(1)));
        assert_eq!((key.source.to_ip(), key.destination.to_ip()), (b, a));
        assert_eq!((key.icmp_type, key.icmp_code), if v6 { (2, 0) } else { (3, 4) });
        let at = parsed.l4_offset().unwrap() + 6;
        assert_eq!(told[0][at..at + 2], 300u16.to_be_bytes());
        rig.assert_nothing_leaked();
    }
}

#[test]
fn what_has_no_way_is_dropped_for_a_reason() {
    for remotes in [vec![], vec![address("198.51.100.1")], vec![address("192.0.2.1")]] {
        let mut rig = self::rig(VxlanConfig { remotes, ..config(false, 1) });
        rig.receive(INSIDE, &inner(1, 2).udp(1, 2).to_vec().unwrap());
        rig.turn();
        assert_eq!(rig.dropped_at(TUNNEL, DropReason::NoVtepRoute), 1);
        rig.assert_nothing_leaked();
    }
}

#[test]
fn a_mirror_may_be_on_another_server() {
    let mut host = host(config(false, 1));
    host.ports[INSIDE].policy.forward = to(3);
    host.ports[TUNNEL].policy.forward = Forward::None;
    let actions = Actions { mirror: Some(PortId(2)), ..Actions::default() };
    let matches = Match { from: vec![PortId(0)], ..Match::default() };
    host.rules = vec![Rule::from(RuleParts { id: RuleId(0), name: String::new(), matches, actions })];
    let mut rig = rig_of(&host);
    let frames: Vec<Vec<u8>> = (0..5).map(|n| inner(1, 2).udp(n, 53).to_vec().unwrap()).collect();
    frames.iter().for_each(|frame| rig.receive(INSIDE, frame));
    rig.turn();
    assert_eq!(rig.sent(3), frames);
    assert!(rig.sent(WAN).iter().map(|frame| opened(frame).2).eq(frames));
    rig.assert_nothing_leaked();
}
