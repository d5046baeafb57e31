// SPDX-License-Identifier: Apache-2.0
//! L2 switching end to end between captures.

use std::net::IpAddr;

use crate::support::pcap::{Scratch, finish, play, start};
use crate::support::{Rig, behind_nf};
use netvm_engine::{ChainId, DropReason, PortId};
use netvm_model::{EngineConfig, Forward, Guard, Host, Output, Span, VlanMode};
use netvm_wire::{FrameBuilder, MacAddr, VlanId};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// A frame that ends with `number`, from the source with this last byte.
fn frame(from: u8, to: MacAddr, number: u8) -> Vec<u8> {
    let builder = FrameBuilder::new(mac(from), to).ip(ip("10.0.0.1"), ip("10.0.0.2"));
    builder.udp(1, 2).payload(&[number]).to_vec().unwrap()
}

/// Three ports of the switch, of which `from` gets frames; what goes out is in `scratch`.
fn switch(scratch: &Scratch, from: u16, frames: &[Vec<u8>]) -> Host {
    let mut ports: Vec<_> =
        (0..3).map(|id| scratch.port(id, if id == from { frames } else { &[] })).collect();
    ports.iter_mut().for_each(|port| port.policy.forward = Forward::Normal);
    Host { ports, ..Host::default() }
}

#[test]
fn normal_learns_floods_and_filters() {
    let control = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0]);
    // Each stage: the port, its frames, and how many frames leave each port, and how many are filtered.
    let stages = [
        // Not known yet: flooded, and 10 is learnt at port 0.
        (0, vec![frame(10, mac(11), 0)], [0, 1, 1], 0),
        // The answer goes to port 0 alone.
        (1, vec![frame(11, mac(10), 1), frame(11, mac(10), 2)], [2, 0, 0], 0),
        // So does the next packet to port 1; broadcasts are flooded, what is for its own port and for bridges filtered.
        (
            0,
            vec![
                frame(10, mac(11), 3),
                frame(10, MacAddr::BROADCAST, 4),
                frame(12, mac(10), 5),
                frame(10, control, 6),
            ],
            [0, 2, 1],
            2,
        ),
        // 10 has moved to port 2, ...
        (2, vec![frame(10, mac(11), 7)], [0, 1, 0], 0),
        // ... and the flow that went to port 0 goes there.
        (1, vec![frame(11, mac(10), 8)], [0, 0, 1], 0),
    ];
    let mut rig = Rig::new(&EngineConfig::default());
    let mut filtered_before = 0;
    for (n, (from, frames, expected, filtered)) in stages.iter().enumerate() {
        let scratch = Scratch::new();
        start(&mut rig, &switch(&scratch, *from, frames), &[]);
        finish(&mut rig);
        let drops: Vec<_> = rig.engine.ports().into_iter().flat_map(|port| port.drops).collect();
        let filtered_now = drops.iter().map(|(_, count)| *count).sum::<u64>();
        assert!(drops.iter().all(|(reason, _)| *reason == DropReason::Filtered), "stage {n}: {drops:?}");
        // The next host's ports are others: these are closed, and what they wrote is whole.
        let next = Scratch::new();
        rig.engine.apply(&switch(&next, 9, &[])).unwrap();
        let sent = [0, 1, 2].map(|port| scratch.sent(port).len());
        assert_eq!(sent, *expected, "stage {n}");
        assert_eq!(filtered_now - filtered_before, *filtered, "stage {n}");
        filtered_before = filtered_now;
    }
}

/// Three ports of the switch whose packets pass the chain first; `from` gets frames.
fn switch_behind_nf(scratch: &Scratch, from: u16, frames: &[Vec<u8>]) -> Host {
    let mut host = switch(scratch, from, frames);
    host.ports.iter_mut().for_each(|port| port.policy.forward = Forward::Chain(ChainId(0)));
    behind_nf(host, Output::Normal)
}

#[test]
fn packets_are_switched_behind_a_chain() {
    // Each stage: the port, its frames, and how many frames leave each port.
    let stages = [
        (0, vec![frame(10, mac(11), 0), frame(10, mac(11), 1)], [0, 2, 2]),
        // Address 10 was learnt behind port 0; what is for the port's own side is filtered.
        (1, vec![frame(11, mac(10), 2), frame(12, mac(11), 3), frame(11, mac(10), 4)], [2, 0, 0]),
        (0, vec![frame(10, mac(11), 5), frame(10, MacAddr::BROADCAST, 6), frame(10, mac(12), 7)], [0, 3, 1]),
    ];
    let mut rig = Rig::new(&EngineConfig::default());
    for (n, (from, frames, expected)) in stages.iter().enumerate() {
        let scratch = Scratch::new();
        let nfs: &[&str] = if n == 0 { &["fw"] } else { &[] };
        start(&mut rig, &switch_behind_nf(&scratch, *from, frames), nfs);
        finish(&mut rig);
        let next = Scratch::new();
        rig.engine.apply(&switch_behind_nf(&next, 9, &[])).unwrap();
        let sent = [0, 1, 2].map(|port| scratch.sent(port).len());
        assert_eq!(sent, *expected, "stage {n}: {}", rig.describe());
    }
    let drops: Vec<_> = rig.engine.ports().into_iter().flat_map(|port| port.drops).collect();
    assert!(drops.iter().all(|(reason, _)| *reason == DropReason::Filtered), "{drops:?}");
}

#[test]
fn a_chain_that_ends_in_switching_from_now_on_has_its_ports_switched() {
    let scratch = Scratch::new();
    let before = behind_nf(switch_behind_nf(&scratch, 9, &[]), Output::Port(PortId(2)));
    let mut rig = Rig::new(&EngineConfig::default());
    start(&mut rig, &before, &["fw"]);
    let scratch = Scratch::new();
    rig.engine.apply(&switch_behind_nf(&scratch, 0, &[frame(10, mac(11), 0)])).unwrap();
    finish(&mut rig);
    rig.engine.apply(&switch_behind_nf(&Scratch::new(), 9, &[])).unwrap();
    assert_eq!([0, 1, 2].map(|port| scratch.sent(port).len()), [0, 1, 1], "{}", rig.describe());
}

#[test]
fn nothing_passes_within_a_split_horizon_group() {
    let scratch = Scratch::new();
    let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr::BROADCAST);
    let frame = frame.ip(ip("10.0.0.1"), ip("10.255.255.255")).udp(1, 2).to_vec().unwrap();
    let mut host = switch(&scratch, 0, std::slice::from_ref(&frame));
    for port in [0, 1] {
        host.ports[port].policy.split_horizon = Some("guests".to_owned());
    }
    play(&host, &[]);
    assert_eq!([0, 1, 2].map(|port| scratch.sent(port)), [vec![], vec![], vec![frame]]);
}

#[test]
fn frames_stay_in_their_vlan_and_have_the_tag_that_the_port_has() {
    let vlan = |id: u16| VlanId::new(id).unwrap();
    let frame = |tag: Option<u16>| {
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr::BROADCAST);
        let builder = tag.into_iter().fold(builder, |builder, tag| builder.vlan(vlan(tag)));
        builder.ip(ip("10.0.0.1"), ip("10.255.255.255")).udp(1, 2).to_vec().unwrap()
    };
    let trunk = VlanMode::Trunk { vlans: vec![Span::single(5), Span::single(6)], native: Some(vlan(7)) };
    let modes = [trunk, VlanMode::Access(vlan(5)), VlanMode::Access(vlan(7))];
    let with_modes = |mut host: Host| {
        for (port, mode) in host.ports.iter_mut().zip(&modes) {
            port.policy.vlan = mode.clone();
        }
        host
    };
    // In by the trunk: VLAN 5 to port 1, the native VLAN to port 2, VLAN 6 to nobody, VLAN 8 not at all.
    let scratch = Scratch::new();
    let frames = [Some(5), None, Some(6), Some(8)].map(frame);
    let seen = play(&with_modes(switch(&scratch, 0, &frames)), &[]);
    assert_eq!([0, 1, 2].map(|port| scratch.sent(port)), [vec![], vec![frame(None)], vec![frame(None)]]);
    let dropped: u64 = seen.drops.values().flatten().map(|(_, count)| count).sum();
    assert_eq!(dropped, 2, "{:?}", seen.drops);
    // In by an access port: out by the trunk with its tag; what has a tag already does not come in.
    for (port, tag) in [(1, Some(5)), (2, None)] {
        let scratch = Scratch::new();
        play(&with_modes(switch(&scratch, port, &[frame(None), frame(Some(5))])), &[]);
        let sent = [0, 1, 2].map(|port| scratch.sent(port));
        assert_eq!(sent, [vec![frame(tag)], vec![], vec![]], "in by port {port}");
    }
    // A tag that gives a priority only is none, and is not given a second one: it gets the VLAN, or goes.
    let with_priority = |id: u8| {
        let plain = frame(None);
        [&plain[..12], &[0x81, 0x00, 0xa0, id], &plain[12..]].concat()
    };
    for (port, expected) in [(1, with_priority(5)), (2, frame(None))] {
        let scratch = Scratch::new();
        play(&with_modes(switch(&scratch, port, &[with_priority(0)])), &[]);
        let sent = [0, 1, 2].map(|port| scratch.sent(port));
        assert_eq!(sent, [vec![expected], vec![], vec![]], "in by port {port}");
    }
}

#[test]
fn a_guarded_port_lets_in_what_its_guest_may_send() {
    let (own, other) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let datagram = |mac: MacAddr, from: &str| {
        FrameBuilder::new(mac, MacAddr::BROADCAST).ip(ip(from), ip("10.0.0.9")).udp(1, 2).to_vec().unwrap()
    };
    let request = |mac: MacAddr, from: &str| {
        FrameBuilder::new(mac, MacAddr::BROADCAST)
            .arp_request(from.parse().unwrap(), "10.0.0.9".parse().unwrap())
            .to_vec()
            .unwrap()
    };
    // Ethernet's source is the guest's, that within ARP is not.
    let mut lying = request(own, "10.0.0.1");
    lying[22..28].copy_from_slice(&other.0);
    let frames = [
        datagram(own, "10.0.0.1"),
        datagram(other, "10.0.0.1"),
        datagram(own, "10.0.0.2"),
        request(own, "10.0.0.1"),
        request(own, "10.0.0.2"),
        lying,
        // Again, now that the flow is known.
        datagram(own, "10.0.0.2"),
        datagram(own, "10.0.0.1"),
    ];
    let scratch = Scratch::new();
    let mut host = switch(&scratch, 0, &frames);
    host.ports[0].policy.guard =
        Some(Guard { macs: vec![own], addresses: vec!["10.0.0.1/32".parse().unwrap()] });
    let seen = play(&host, &[]);
    let mut sent = scratch.sent(1);
    let mut expected = [0, 3, 7].map(|n: usize| frames[n].clone()).to_vec();
    // Packets that are treated differently may overtake each other.
    sent.sort();
    expected.sort();
    assert_eq!(sent, expected);
    assert_eq!(seen.drops[&0], [(DropReason::Spoofed, 5)]);
}

#[test]
fn another_size_of_the_address_table_acts_at_once() {
    let mut rig = Rig::new(&EngineConfig::default());
    let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr::BROADCAST);
    let frame = frame.ip(ip("10.0.0.1"), ip("10.255.255.255")).udp(1, 2).to_vec().unwrap();
    let scratch = Scratch::new();
    let mut host = switch(&scratch, 0, &[frame]);
    start(&mut rig, &host, &[]);
    finish(&mut rig);
    assert_eq!(rig.engine.addresses().len(), 1);
    host.switch.macs *= 2;
    host.ports[0] = scratch.port(0, &[]);
    host.ports[0].policy.forward = Forward::Normal;
    rig.engine.apply(&host).unwrap();
    assert_eq!(rig.engine.addresses().len(), 0, "the new table has learnt nothing yet");
}

/// Without rules, neither the content of packets nor their order changes where they go.
#[test]
fn frames_in_a_row_go_each_its_own_way() {
    let mac = |last: u8| MacAddr([2, 0, 0, 0, 0, last]);
    let frame = |to: u8, number: u8| {
        let builder = FrameBuilder::new(mac(1), mac(to)).ip(ip("10.0.0.1"), ip("10.0.0.2"));
        builder.udp(number.into(), 2).payload(&[number]).to_vec().unwrap()
    };
    let bad_inside = |to: u8, number: u8| {
        let mut frame = frame(to, number);
        // An IPv4 header that is longer than the packet.
        frame[14] = 0x4f;
        frame
    };
    let mut rig = Rig::new(&EngineConfig::default());
    // 11 is learnt at port 1, 12 at port 2.
    for (port, station) in [(1, 11), (2, 12)] {
        let scratch = Scratch::new();
        let hello = FrameBuilder::new(mac(station), MacAddr::BROADCAST);
        let hello = hello.ip(ip("10.0.0.3"), ip("10.255.255.255")).udp(1, 2).to_vec().unwrap();
        start(&mut rig, &switch(&scratch, port, &[hello]), &[]);
        finish(&mut rig);
        rig.engine.apply(&switch(&Scratch::new(), 9, &[])).unwrap();
    }
    let runt = vec![2u8; 13];
    let cut_tag = [&frame(11, 0)[..12], &[0x81, 0x00, 0x00]].concat();
    let mut frames = vec![runt.clone(), frame(11, 1), bad_inside(11, 2), frame(11, 3)];
    frames.extend([frame(12, 4), bad_inside(12, 5), cut_tag, frame(12, 6)]);
    frames.extend([frame(11, 7), frame(11, 8), runt]);
    let scratch = Scratch::new();
    start(&mut rig, &switch(&scratch, 0, &frames), &[]);
    finish(&mut rig);
    let drops: Vec<_> = rig.engine.ports().into_iter().flat_map(|port| port.drops).collect();
    rig.engine.apply(&switch(&Scratch::new(), 9, &[])).unwrap();
    assert_eq!(drops, [(DropReason::Malformed, 3)]);
    let numbers = |port: u16| -> Vec<u8> { scratch.sent(port).iter().map(|frame| frame[35]).collect() };
    assert_eq!((numbers(0), numbers(1), numbers(2)), (vec![], vec![1, 2, 3, 7, 8], vec![4, 5, 6]));
}

#[test]
fn ports_beyond_the_first_256_switch_like_others() {
    // Three of 1024 ports, of which two are in the highest word of each set of ports.
    let numbers = [300, 700, 1023];
    let of = |scratch: &Scratch, from: u16, frames: &[Vec<u8>]| {
        let mut ports: Vec<_> =
            numbers.iter().map(|id| scratch.port(*id, if *id == from { frames } else { &[] })).collect();
        ports.iter_mut().for_each(|port| port.policy.forward = Forward::Normal);
        Host { ports, ..Host::default() }
    };
    let mut rig = Rig::new(&EngineConfig::default());
    for (from, frames, expected) in [
        (300, vec![frame(10, mac(11), 0)], [0, 1, 1]),
        (700, vec![frame(11, mac(10), 1), frame(11, MacAddr::BROADCAST, 2)], [2, 0, 1]),
        // Ports 300 and 44, and 700 and 188, have the same low byte: no address is taken for that of another port.
        (300, vec![frame(10, mac(11), 3), frame(10, mac(11), 4)], [0, 2, 0]),
        (1023, vec![frame(10, mac(11), 5)], [0, 1, 0]),
        (700, vec![frame(11, mac(10), 6)], [0, 0, 1]),
    ] {
        let scratch = Scratch::new();
        start(&mut rig, &of(&scratch, from, &frames), &[]);
        finish(&mut rig);
        let next = Scratch::new();
        rig.engine.apply(&of(&next, 0, &[])).unwrap();
        assert_eq!(numbers.map(|port| scratch.sent(port).len()), expected, "from port {from}");
    }
}
