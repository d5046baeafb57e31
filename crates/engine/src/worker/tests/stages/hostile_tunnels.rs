// SPDX-License-Identifier: Apache-2.0
//! Hostile packets for tunnels, through the whole worker: datagrams within each other, routes that lead back into the
//! tunnel, fragments, and anything a few changed bytes make of them. All end, and no buffer is lost.

use std::net::IpAddr;
use std::sync::Arc;

use netvm_model::{Forward, Host, RouterId, RouterInterface, VxlanConfig};
use netvm_wire::{FrameBuilder, IpProto, MacAddr};

use super::evpn::{Net, arp};
use super::tunnels::{INSIDE, TUNNEL, WAN, config, host, inner, outer, rig, router_by, servers};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::router::Vteps;
use crate::snapshot::{MAX_PASSED, Snapshot};
use crate::worker::tests::rig::{Rig, mac};

/// A router that also receives what comes out of its tunnel, and whose routes to other servers lead out of this
/// interface.
fn loop_of(config: VxlanConfig, by: u16) -> Rig {
    let mut host = host(config);
    host.ports[TUNNEL].policy.forward = Forward::Router(RouterId(0));
    let back = RouterInterface {
        name: "back".to_owned(),
        port: PortId(2),
        punt: PortId(4),
        host_end: "back".to_owned(),
        ..host.routers[0].interfaces[0].clone()
    };
    host.ports.push(crate::worker::tests::rig::port(4, Forward::None));
    host.routers[0].interfaces.push(back);
    rig_of(&host, by)
}

fn rig_of(host: &Host, by: u16) -> Rig {
    let mut rig = Rig::of(host);
    let mut vteps = Vteps::default();
    vteps.follow(host);
    let routers = vec![Some(Arc::new(router_by(host, &vteps, by)))].into();
    rig.worker.snapshot = Arc::new(Snapshot { routers, ..Snapshot::clone(&rig.worker.snapshot) });
    rig
}

/// So many datagrams for a VTEP within each other.
fn nested(from: IpAddr, to: IpAddr, depth: usize) -> Vec<u8> {
    let innermost = inner(2, 1).udp(1, 2).to_vec().unwrap();
    (0..depth).fold(innermost, |frame, _| outer(from, to, &frame))
}

#[test]
fn datagrams_within_each_other_end() {
    for v6 in [false, true] {
        let [local, remote, ..] = servers(v6);
        for depth in 1..=usize::from(MAX_PASSED) + 4 {
            let mut rig = loop_of(config(v6, 1), 0);
            rig.receive(WAN, &nested(remote, local, depth));
            rig.turn();
            let passed = rig.counters().ports[TUNNEL].rx_packets.get();
            let is_too_deep = depth > usize::from(MAX_PASSED);
            assert_eq!(passed, depth.min(usize::from(MAX_PASSED)) as u64);
            assert_eq!(rig.dropped_at(TUNNEL, DropReason::ForwardingLoop), u64::from(is_too_deep), "{depth}");
            rig.assert_nothing_leaked();
        }
    }
}

#[test]
fn a_route_to_a_vtep_that_leads_into_its_own_tunnel_ends() {
    for v6 in [false, true] {
        let mut rig = loop_of(config(v6, 1), 1);
        (0..10).for_each(|n| rig.receive(INSIDE, &inner(1, 2).udp(1, n).to_vec().unwrap()));
        rig.turn();
        assert!(rig.sent(WAN).is_empty());
        // There is no room before a packet for so many headers.
        assert_eq!(rig.dropped_at(TUNNEL, DropReason::TooLong), 10);
        rig.assert_nothing_leaked();
    }
}

/// The two parts of a packet that was cut on the way, without its Ethernet header's change.
fn fragments(frame: &[u8]) -> [Vec<u8>; 2] {
    const CUT: usize = 24;
    let (link, packet) = frame.split_at(14);
    let is_v4 = packet[0] >> 4 == 4;
    let header = if is_v4 { 20 } else { 40 };
    let (ip, payload) = packet.split_at(header);
    [(0, &payload[..CUT]), (CUT, &payload[CUT..])].map(|(at, part)| {
        let mut ip = ip.to_vec();
        if is_v4 {
            let place = (at / 8) as u16 | if at == 0 { 0x2000 } else { 0 };
            ip[2..4].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
            ip[6..8].copy_from_slice(&place.to_be_bytes());
            ip[10..12].fill(0);
            let sum = netvm_wire::checksum::internet_checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[6] = 44;
            ip[4..6].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            ip.extend([IpProto::UDP.0, 0]);
            ip.extend((at as u16 | u16::from(at == 0)).to_be_bytes());
            ip.extend([0, 0, 0, 7]);
        }
        [link, &ip, part].concat()
    })
}

#[test]
fn no_fragment_gets_into_a_network() {
    for v6 in [false, true] {
        let [local, remote, ..] = servers(v6);
        let mut rig = rig(config(v6, 1));
        let whole = outer(remote, local, &inner(2, 1).udp(1, 2).payload(&[7; 90]).to_vec().unwrap());
        let [first, second] = fragments(&whole);
        [&second, &first, &second].into_iter().for_each(|part| rig.receive(WAN, part));
        rig.turn();
        assert!(rig.sent(INSIDE).is_empty());
        // What is no datagram is the router's own: its kernel may put the parts together, and has no such port.
        let refused = rig.dropped_at(WAN, DropReason::BadTunnelHeader);
        let punted = rig.counters().routers[0].punted.get();
        assert_eq!((refused, punted), if v6 { (0, 3) } else { (1, 2) });
        rig.receive(WAN, &whole);
        rig.turn();
        assert_eq!(rig.sent(INSIDE).len(), 1);
        rig.assert_nothing_leaked();
    }
}

/// xorshift64 with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound.max(1)
    }

    fn changed(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        for _ in 0..self.below(4) {
            let at = self.below(frame.len());
            match self.below(4) {
                0 => frame.truncate(at.max(14)),
                1 => frame[at] ^= 1 << self.below(8),
                2 => frame[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                _ => {
                    let other = self.below(frame.len());
                    frame[at] = frame[other];
                }
            }
        }
        frame
    }
}

#[test]
fn whatever_comes_ends_somewhere() {
    const ROUNDS: usize = 3000;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for v6 in [false, true] {
        let [local, remote, three, unknown] = servers(v6);
        let good = outer(remote, local, &inner(2, 1).udp(1, 2).payload(&[3; 60]).to_vec().unwrap());
        let mut from_servers = vec![
            good.clone(),
            outer(unknown, local, &inner(2, 1).udp(1, 2).to_vec().unwrap()),
            outer(remote, three, &good),
            outer(local, local, &good),
            outer(remote, local, &arp("10.0.0.2", "10.0.0.1", MacAddr::BROADCAST)),
            nested(remote, local, 3),
            nested(remote, local, 11),
        ];
        from_servers.extend(fragments(&good));
        let within = FrameBuilder::new(mac(1), mac(2));
        let from_inside = [
            inner(1, 2).udp(1, 2).payload(&[5; 50]).to_vec().unwrap(),
            within
                .ip("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
                .echo(false, 1, 2)
                .to_vec()
                .unwrap(),
            arp("10.0.0.1", "10.0.0.2", MacAddr::BROADCAST),
            good,
        ];
        for (mut rig, has_loop) in [(rig(config(v6, 2)), false), (loop_of(config(v6, 2), 0), true)] {
            for round in 0..ROUNDS {
                let from = &from_servers[random.below(from_servers.len())];
                rig.receive(WAN, &random.changed(from));
                let from = &from_inside[random.below(from_inside.len())];
                rig.receive(INSIDE, &random.changed(from));
                // There are few large buffers.
                if round % 4 == 3 {
                    rig.turn();
                }
            }
            while rig.turn() > 0 {}
            assert!(!rig.sent(WAN).is_empty() && (has_loop || !rig.sent(INSIDE).is_empty()));
            rig.assert_nothing_leaked();
        }
    }
}

#[test]
fn requests_that_are_answered_here_may_be_anything() {
    let [_, two, ..] = servers(false);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut net = Net::new();
    net.update(&[two], &[(mac(2), Some(two))]);
    net.tell_hosts(&[("10.0.0.2", mac(2)), ("fd00::2", mac(2))]);
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    message.extend([1, 1, 2, 0, 0, 0, 0, 1]);
    let group: IpAddr = "ff02::1:ff00:2".parse().unwrap();
    let solicitation = FrameBuilder::new(mac(1), MacAddr([0x33, 0x33, 0xff, 0, 0, 2]));
    let solicitation = solicitation.ip("fd00::1".parse().unwrap(), group).ttl(255).protocol(IpProto::ICMPV6);
    let requests =
        [arp("10.0.0.1", "10.0.0.2", MacAddr::BROADCAST), solicitation.payload(&message).to_vec().unwrap()];
    for round in 0..4000 {
        net.rig.receive(INSIDE, &random.changed(&requests[round % 2]));
        if round % 16 == 15 {
            net.rig.turn();
        }
    }
    while net.rig.turn() > 0 {}
    // Each is answered, goes on, or is dropped for a reason.
    let answered = net.rig.counters().ports[TUNNEL].neigh_answered.get();
    assert!(answered > 500, "{answered}");
    net.rig.assert_nothing_leaked();
}
