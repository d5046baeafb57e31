// SPDX-License-Identifier: Apache-2.0
//! What a tunnel carries: frames of other protocols, and fragments.

use std::collections::BTreeSet;

use netvm_wire::{EtherType, TcpFlags};

use super::tunnels::{INSIDE, WAN, config, inner, opened, outer, rig, servers};

#[test]
fn frames_of_mpls_are_carried_whole_both_ways() {
    const MPLS: EtherType = EtherType(0x8847);
    for v6 in [false, true] {
        let [local, remote, ..] = servers(v6);
        let mut rig = rig(config(v6, 1));
        let labelled = |n: u16| {
            let packet = inner(1, 2).udp(20_000, 10_000 + n).payload(&[0xa5; 100]).to_vec().unwrap();
            // Label 44, bottom of the stack, TTL 64.
            [&packet[..12], &MPLS.0.to_be_bytes(), &[0, 2, 0xc1, 64], &packet[14..]].concat()
        };
        let frames: Vec<Vec<u8>> = (0..10).map(labelled).collect();
        frames.iter().for_each(|frame| rig.receive(INSIDE, frame));
        rig.turn();
        let opened: Vec<_> = rig.sent(WAN).iter().map(|frame| opened(frame)).collect();
        assert!(opened.iter().map(|(.., frame)| frame).eq(&frames));
        // Flows are those of addresses behind the Ethernet header alone.
        let ports: BTreeSet<u16> = opened.iter().map(|(_, port, _)| *port).collect();
        assert_eq!(ports.len(), 1);
        frames.iter().for_each(|frame| rig.receive(WAN, &outer(remote, local, frame)));
        rig.turn();
        assert_eq!(rig.sent(INSIDE), frames);
        rig.assert_nothing_leaked();
    }
}

#[test]
fn fragments_of_a_datagram_share_a_source_port() {
    for v6 in [false, true] {
        let mut rig = rig(config(v6, 1));
        for hosts in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let [source, destination] = hosts.map(|host| host.parse().unwrap());
            let datagram = inner(1, 2).ip(source, destination).udp(20_000, 10_000).payload(&[7; 96]);
            let parts = [datagram.fragment(9, 0, true), datagram.fragment(9, 13, false)];
            let frames = parts.map(|part| part.to_vec().unwrap());
            frames.iter().for_each(|frame| rig.receive(INSIDE, frame));
            rig.turn();
            let opened: Vec<_> = rig.sent(WAN).iter().map(|frame| opened(frame)).collect();
            assert!(opened.iter().map(|(.., frame)| frame).eq(&frames));
            assert_eq!(opened[0].1, opened[1].1);
        }
        rig.assert_nothing_leaked();
    }
}

/// A whole packet, one whose checksum is unfinished, and a segment get their headers by different code.
#[test]
fn all_packets_of_a_flow_have_its_source_port() {
    let mut rig = rig(config(false, 1));
    let mut ports = BTreeSet::new();
    for flow in 0..20 {
        let packet = inner(1, 2).tcp(1000 + flow, 80, TcpFlags::ACK).payload(&[7; 150]).to_vec().unwrap();
        let mut of_flow = BTreeSet::new();
        for segment_size in [None, Some(500), Some(100)] {
            rig.wires[INSIDE].lock().unwrap().segment_size = segment_size;
            rig.receive(INSIDE, &packet);
            rig.turn();
            let sent = rig.sent(WAN);
            assert_eq!(sent.len(), if segment_size == Some(100) { 2 } else { 1 });
            of_flow.extend(sent.iter().map(|frame| opened(frame).1));
        }
        assert_eq!(of_flow.len(), 1, "{of_flow:?}");
        ports.extend(of_flow);
    }
    assert!(ports.len() > 15, "{ports:?}");
    rig.assert_nothing_leaked();
}
