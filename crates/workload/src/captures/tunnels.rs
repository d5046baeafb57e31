// SPDX-License-Identifier: Apache-2.0
//! Packets in packets, tags before packets, and frames without an EtherType.

use netvm_wire::{EtherType, FrameBuilder, MacAddr, VlanId};

use super::frames::{CLIENT, Flow, SERVER, built};
use super::ordinary::inner;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// IP in IP, GRE, GTP, VXLAN, Geneve, CAPWAP, L2TP, ESP, AH, MPLS and PPPoE, over both families.
pub(super) fn tunnels() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let [v4, v6] = [inner(false), inner(true)];
    for (a, b) in [("192.0.2.1", "192.0.2.2"), ("[2001:db8::1]", "[2001:db8::2]")] {
        let to = |port: u16| Flow::new(&format!("{a}:49000"), &format!("{b}:{port}"));
        for _ in 0..5 {
            frames.push(to(0).other(4, &v4[ETHERNET..]));
            frames.push(to(0).other(41, &v6[ETHERNET..]));
        }
        // GRE (RFC 2784) with IPv4, with Ethernet (0x6558), and with a key (RFC 2890).
        frames.push(to(0).other(47, &[&[0, 0, 8, 0][..], &v4[ETHERNET..]].concat()));
        frames.push(to(0).other(47, &[&[0, 0, 0x65, 0x58][..], &v4].concat()));
        frames.push(to(0).other(47, &[&[0x20, 0, 0x86, 0xdd, 0, 0, 0, 9][..], &v6[ETHERNET..]].concat()));
        // GTP-U and GTP-C (3GPP TS 29.281, TS 29.274), VXLAN (RFC 7348), Geneve (RFC 8926), CAPWAP (RFC 5415), L2TP
        // (RFC 2661).
        let gtp = [0x30, 0xff, 0, (v4.len() - ETHERNET) as u8, 0, 0, 0, 5];
        frames.push(to(2152).udp(true, &[&gtp[..], &v4[ETHERNET..]].concat()));
        frames.push(to(2123).udp(true, &[0x48, 32, 0, 12, 0, 0, 0, 0, 0, 0, 1, 0, 3, 0, 1, 0, 7]));
        frames.push(to(4789).udp(true, &[&[8, 0, 0, 0, 0, 0, 42, 0][..], &v6].concat()));
        frames.push(to(6081).udp(true, &[&[0, 0, 0x65, 0x58, 0, 0, 42, 0][..], &v4].concat()));
        for n in 0..40 {
            frames.push(to(5246 + n % 2).udp(
                n % 3 != 0,
                &[&[0, 0x10, 2, n as u8][..], &v4, &vec![n as u8; 30 * usize::from(n)]].concat(),
            ));
        }
        frames
            .push(to(1701).udp(true, &[&[0, 2, 0, 1, 0, 1, 0xff, 3, 0, 0x21][..], &v4[ETHERNET..]].concat()));
        // ESP, and an authentication header before UDP.
        frames.push(to(0).other(50, &[0x11; 72]));
        let header = [17, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        frames.push(to(0).other(51, &[&header[..], &v4[34..]].concat()));
    }
    let raw = |kind: u16, bytes: &[u8]| {
        built(&FrameBuilder::new(CLIENT, SERVER).ether_type(EtherType(kind)).payload(bytes))
    };
    // MPLS with two labels; a PPPoE session.
    frames.push(raw(0x8847, &[&[0, 1, 0, 64, 0, 2, 1, 64][..], &v4[ETHERNET..]].concat()));
    let pppoe = [0x11, 0, 0, 7, 0, (v4.len() - ETHERNET + 2) as u8, 0, 0x21];
    frames.push(raw(0x8864, &[&pppoe[..], &v4[ETHERNET..]].concat()));
    frames
}

/// One tag, two, three and more of several types, priority tags (VLAN 0), 802.3 with LLC and with SNAP.
pub(super) fn tagged() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let flow = Flow::new("192.0.2.10:1000", "192.0.2.11:2000");
    for id in [1, 2, 7, 100, 4094] {
        let Ok(vlan) = VlanId::new(id) else { continue };
        let (base, from, to) = flow.base(id % 2 == 0);
        frames.push(built(&base.vlan(vlan).udp(from, to).payload(b"tagged")));
        frames.push(built(&base.service_vlan(vlan).vlan(vlan).udp(from, to).payload(b"tagged twice")));
        frames.push(built(
            &FrameBuilder::new(CLIENT, MacAddr::BROADCAST)
                .vlan(vlan)
                .arp_request([192, 0, 2, 10].into(), [192, 0, 2, 1].into()),
        ));
    }
    let plain = flow.udp(true, b"tags");
    // Control fields: priority and VLAN.
    let stacks: [&[(u16, u16)]; 7] = [
        &[(0x8100, 0xe000)],
        &[(0x8100, 0), (0x8100, 5)],
        &[(0x8100, 0), (0x8100, 0), (0x8100, 0)],
        &[(0x88a8, 5), (0x8100, 6), (0x8100, 7)],
        &[(0x9100, 5)],
        &[(0x9100, 5), (0x8100, 6)],
        &[(0x8100, 1), (0x8100, 2), (0x8100, 3), (0x8100, 4), (0x8100, 5)],
    ];
    for stack in stacks {
        let tags: Vec<u8> = stack
            .iter()
            .flat_map(|(kind, control)| [kind.to_be_bytes(), control.to_be_bytes()].concat())
            .collect();
        frames.push([&plain[..12], &tags, &plain[12..]].concat());
    }
    // Spanning tree in LLC, and CDP-like and IPv4 in SNAP; the EtherType is the length.
    for llc in [
        &[
            0x42, 0x42, 3, 0, 0, 0, 0, 0, 0x80, 0, 2, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0x80, 0, 2, 0, 0, 0, 0,
            0x0a, 0x80, 1, 0, 0, 20, 0, 2, 0, 15, 0,
        ][..],
        &[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0, 2, 180, 0, 0],
        &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &inner(false)[ETHERNET..]].concat(),
    ] {
        let mut frame =
            [&[1, 0x80, 0xc2, 0, 0, 0][..], &CLIENT.0, &(llc.len() as u16).to_be_bytes(), llc].concat();
        frame.resize(frame.len().max(60), 0);
        frames.push(frame);
    }
    frames
}
