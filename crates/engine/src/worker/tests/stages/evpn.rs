// SPDX-License-Identifier: Apache-2.0
//! Tunnels whose VTEPs a control plane says.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use netvm_model::{Host, VxlanConfig, VxlanControl};
use netvm_wire::neighbour::Message;
use netvm_wire::{FrameBuilder, MacAddr};

use super::tunnels::{INSIDE, TUNNEL, VNI, WAN, config, host, inner, opened, outer, router, servers};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::router::{EvpnUpdate, Vteps};
use crate::snapshot::Snapshot;
use crate::worker::tests::rig::{Rig, mac};

pub(super) struct Net {
    host: Host,
    vteps: Vteps,
    pub(super) rig: Rig,
}

impl Net {
    pub(super) fn new() -> Self {
        let host = host(VxlanConfig { control: VxlanControl::Evpn, ..config(false, 0) });
        let (mut vteps, rig) = (Vteps::default(), Rig::of(&host));
        vteps.follow(&host);
        let mut net = Self { host, vteps, rig };
        net.publish();
        net
    }

    fn publish(&mut self) {
        let routers = vec![Some(Arc::new(router(&self.host, &self.vteps)))].into();
        let before = Snapshot::clone(&self.rig.worker.snapshot);
        self.rig.worker.snapshot = Arc::new(Snapshot { routers, ..before });
    }

    pub(super) fn update(&mut self, floods: &[IpAddr], macs: &[(MacAddr, Option<IpAddr>)]) {
        let floods: Option<BTreeSet<IpAddr>> = Some(floods.iter().copied().collect());
        let update = EvpnUpdate { port: PortId(2), vni: VNI, floods, macs: macs.to_vec(), hosts: Vec::new() };
        if self.vteps.update(&update, &self.host).unwrap() {
            self.publish();
        }
    }

    /// Says that hosts have these addresses.
    pub(super) fn tell_hosts(&mut self, hosts: &[(&str, MacAddr)]) {
        let hosts = hosts.iter().map(|(address, mac)| (address.parse().unwrap(), Some(*mac))).collect();
        let update = EvpnUpdate { port: PortId(2), vni: VNI, hosts, ..EvpnUpdate::default() };
        assert!(!self.vteps.update(&update, &self.host).unwrap(), "without a snapshot");
    }

    /// What the inside receives and how many datagrams leave, when a host there sends a frame.
    fn asks(&mut self, frame: &[u8]) -> (Vec<Vec<u8>>, usize) {
        self.rig.receive(INSIDE, frame);
        self.rig.turn();
        self.rig.turn();
        (self.rig.sent(INSIDE), self.rig.sent(WAN).len())
    }

    fn claims(&self) -> Vec<(IpAddr, MacAddr)> {
        let all = self.vteps.hosts().flat_map(|(_, hosts)| hosts.take_claims());
        all.map(|(address, mac)| (address.to_ip(), mac)).collect()
    }

    /// Where frames to these addresses go.
    fn sends(&mut self, to: &[MacAddr]) -> Vec<IpAddr> {
        for to in to {
            let frame = FrameBuilder::new(mac(1), *to).payload(&[0; 50]).to_vec().unwrap();
            self.rig.receive(INSIDE, &frame);
        }
        self.rig.turn();
        self.rig.sent(WAN).iter().map(|frame| opened(frame).0).collect()
    }
}

#[test]
fn floods_go_to_vteps_that_ask_for_them_and_nothing_is_learned_from_packets() {
    let [local, two, three, unknown] = servers(false);
    let mut net = Net::new();
    assert!(net.sends(&[MacAddr::BROADCAST, mac(2)]).is_empty());
    assert_eq!(net.rig.dropped_at(TUNNEL, DropReason::NoVtepRoute), 2, "nobody is there yet");
    net.update(&[two], &[(mac(2), Some(three))]);
    assert_eq!(net.sends(&[mac(2), MacAddr::BROADCAST, mac(5)]), [three, two, two]);
    // Packets of known VTEPs are received, and say nothing of where their sender is.
    for from in [three, unknown] {
        net.rig.receive(WAN, &outer(from, local, &inner(5, 1).udp(1, 2).to_vec().unwrap()));
    }
    net.rig.turn();
    assert_eq!(net.rig.sent(INSIDE).len(), 1);
    assert_eq!(net.rig.dropped_at(WAN, DropReason::UnknownVtep), 1);
    assert_eq!(net.sends(&[mac(5)]), [two]);
    // An address moves, and goes; a server leaves.
    net.update(&[two, three], &[(mac(2), Some(two)), (mac(5), Some(three))]);
    assert_eq!(net.sends(&[mac(2), mac(5), mac(9)]), [two, three, two, three]);
    net.update(&[three], &[(mac(2), None)]);
    assert_eq!(net.sends(&[mac(2), mac(5)]), [three, three]);
    net.rig.receive(WAN, &outer(two, local, &inner(2, 1).udp(1, 2).to_vec().unwrap()));
    net.rig.turn();
    assert_eq!(net.rig.dropped_at(WAN, DropReason::UnknownVtep), 2);
    net.rig.assert_nothing_leaked();
}

pub(super) fn arp(source: &str, target: &str, to: MacAddr) -> Vec<u8> {
    let frame = FrameBuilder::new(mac(1), to);
    frame.arp_request(source.parse().unwrap(), target.parse().unwrap()).frame_len(60).to_vec().unwrap()
}

#[test]
fn requests_for_hosts_behind_other_servers_are_answered_here() {
    let [_, two, ..] = servers(false);
    let mut net = Net::new();
    net.asks(&arp("10.0.0.1", "10.0.0.1", MacAddr::BROADCAST));
    let own: IpAddr = "10.0.0.1".parse().unwrap();
    assert_eq!(net.claims(), [(own, mac(1))], "a host announces itself before there are servers");
    net.update(&[two], &[(mac(2), Some(two))]);
    net.tell_hosts(&[("10.0.0.2", mac(2)), ("10.0.0.3", mac(1))]);
    let target: IpAddr = "10.0.0.2".parse().unwrap();
    let (answers, sent) = net.asks(&arp("10.0.0.1", "10.0.0.2", MacAddr::BROADCAST));
    assert_eq!(sent, 0);
    assert_eq!(answers.len(), 1);
    assert_eq!(Message::read(&answers[0]), Some(Message::Claim(target.into(), mac(2))));
    assert_eq!((&answers[0][..6], net.claims()), (&mac(1).0[..], vec![(own, mac(1))]));
    // One that nobody has, a probe, one that its own host has, and one that asks a known host again: all go on.
    for frame in [
        arp("10.0.0.1", "10.0.0.9", MacAddr::BROADCAST),
        arp("0.0.0.0", "10.0.0.2", MacAddr::BROADCAST),
        arp("10.0.0.1", "10.0.0.3", MacAddr::BROADCAST),
        arp("10.0.0.1", "10.0.0.2", mac(2)),
    ] {
        assert_eq!(net.asks(&frame), (Vec::new(), 1), "{frame:02x?}");
    }
    assert_eq!(net.rig.counters().ports[TUNNEL].neigh_answered.get(), 1);
    net.rig.assert_nothing_leaked();
}
