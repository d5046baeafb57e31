// SPDX-License-Identifier: Apache-2.0
//! Packets.

use std::net::IpAddr;

use netvm_wire::vxlan::{Outer, Vni};
use netvm_wire::{EtherType, FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId, checksum, parse};

use crate::mutate::Random;

pub fn whole_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let vlan = |id| VlanId::new(id).unwrap();
    for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
        let base =
            FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip(source, destination).payload(b"payload");
        let tcp = base.tcp(1000, 80, TcpFlags::SYN);
        for builder in [
            tcp,
            tcp.vlan(vlan(7)),
            tcp.service_vlan(vlan(9)).vlan(vlan(7)),
            base.udp(1000, 53),
            base.udp(1000, 53).frame_len(60),
            base.udp(1000, 53).fragment(1, 0, true),
            base.udp(1000, 53).fragment(1, 3, false),
            base.echo(false, 1, 2),
        ] {
            frames.push(builder.to_vec().unwrap());
        }
    }
    let base = FrameBuilder::new(MacAddr([2; 6]), MacAddr::BROADCAST);
    let arp = base.arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    frames.push(arp.frame_len(60).to_vec().unwrap());
    frames.push(base.ether_type(EtherType(0x88cc)).payload(&[1, 2, 3]).to_vec().unwrap());
    frames
}

pub fn frames() -> Vec<Vec<u8>> {
    let mut examples: Vec<_> =
        whole_frames().into_iter().map(|frame| [vec![40, 0, 1], frame].concat()).collect();
    let mut random = Random::new();
    for kind in 0..40 {
        examples.push([vec![0, 0, 0, kind, (random.next() >> 8) as u8], random.bytes(80)].concat());
    }
    examples
}

/// Frames of both directions, ICMP errors about them, and fragments, with and without translation.
pub fn connection_steps() -> Vec<Vec<u8>> {
    // INIT from port 9 to port 80, and INIT ACK.
    const SCTP_INIT: [u8; 32] =
        [0, 9, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const SCTP_ANSWER: [u8; 32] =
        [0, 80, 0, 9, 0, 0, 0, 5, 0, 0, 0, 0, 2, 0, 0, 20, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut frames = Vec::new();
    for [a, b] in
        [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]].map(|hosts| hosts.map(|it| it.parse().unwrap()))
    {
        let between = |a, b| FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip(a, b);
        let ack = TcpFlags::SYN | TcpFlags::ACK;
        let first = [
            between(a, b).tcp(1000, 80, TcpFlags::SYN).numbers(1, 0),
            between(b, a).tcp(80, 1000, ack).numbers(7, 2),
            between(a, b).udp(1000, 53).fragment(1, 0, true).payload(b"fragment"),
            between(a, b).udp(1000, 53).fragment(1, 2, false).payload(b"fragment"),
            between(a, b).echo(false, 9, 1),
            between(b, a).echo(true, 9, 1),
            between(a, b).protocol(IpProto::SCTP).payload(&SCTP_INIT),
            between(b, a).protocol(IpProto::SCTP).payload(&SCTP_ANSWER),
        ];
        frames.extend(first.map(|builder| builder.to_vec().unwrap()));
        let about = &frames[frames.len() - 4][14..];
        let (kind, protocol) = if a.is_ipv4() { (3, IpProto::ICMP) } else { (1, IpProto::ICMPV6) };
        let message = [&[kind, 1, 0, 0, 0, 0, 0, 0], about].concat();
        frames.push(between(b, a).protocol(protocol).payload(&message).to_vec().unwrap());
    }
    let step = |kind: u8, frame: &Vec<u8>| [vec![kind, 1, frame.len() as u8], frame.clone()].concat();
    let steps = |kind: u8| frames.iter().flat_map(|frame| step(kind, frame)).collect::<Vec<u8>>();
    let restarts = frames.iter().flat_map(|frame| [step(0x4f, frame), vec![130, 1]].concat());
    let mut all = [0, 0x20, 0x40].map(|kind| [vec![0], steps(kind)].concat()).to_vec();
    all.push([vec![0], restarts.collect()].concat());
    all
}

/// Packets of both families, ICMP errors about them, IPv4 options, and extension headers of IPv6.
pub fn packets_to_translate() -> Vec<Vec<u8>> {
    const L3: usize = 14;
    let mut frames = whole_frames();
    let between = |v4: bool| {
        let [a, b] = if v4 { ["10.0.0.1", "10.0.0.2"] } else { ["fd00::1", "fd00::2"] };
        FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ip(a.parse().unwrap(), b.parse().unwrap())
    };
    for v4 in [false, true] {
        let about = between(v4).udp(1000, 53).payload(&[7; 120]).to_vec().unwrap()[L3..][..128].to_vec();
        let kinds: &[[u8; 6]] = if v4 {
            &[[3, 1, 0, 0, 0, 0], [3, 4, 0, 0, 5, 0], [12, 0, 8, 0, 0, 0], [11, 0, 0, 32, 0, 0]]
        } else {
            &[[1, 0, 0, 0, 0, 0], [2, 0, 0, 0, 5, 0], [4, 0, 0, 0, 0, 7], [3, 0, 16, 0, 0, 0]]
        };
        for [kind, code, rest @ ..] in kinds {
            let message = [&[*kind, *code, 0, 0][..], rest, &about, &[0x20, 0, 0, 0, 0, 4, 1, 1]].concat();
            let protocol = if v4 { IpProto::ICMP } else { IpProto::ICMPV6 };
            let mut frame = between(v4).protocol(protocol).payload(&message).to_vec().unwrap();
            let headers = parse(&frame).unwrap();
            checksum::fill(&mut frame, &headers).unwrap();
            frames.push(frame);
        }
    }
    let mut with_options = between(true).udp(1000, 53).payload(b"payload").to_vec().unwrap();
    with_options.splice(34..34, [131, 7, 8, 10, 0, 0, 1, 0]);
    (with_options[L3], with_options[L3 + 3]) = (0x47, with_options[L3 + 3] + 8);
    frames.push(with_options);
    for next in [0, 43, 44, 60] {
        let mut extended = between(false).udp(1000, 53).payload(b"payload").to_vec().unwrap();
        extended.splice(54..54, [17, 0, 0, 0, 0, 0, 0, 9]);
        (extended[20], extended[19]) = (next, extended[19] + 8);
        frames.push(extended);
    }
    let with_flags = |flags: u8| move |frame: &Vec<u8>| [&[flags, 60, 0, 1, 2, 3, 4][..], frame].concat();
    let examples = [0, 1, 2, 4, 6].map(|flags| frames.iter().map(with_flags(flags)).collect::<Vec<_>>());
    examples.concat()
}

/// Frames behind the outer headers of a tunnel, from the IP header on.
pub fn datagrams_of_tunnels() -> Vec<Vec<u8>> {
    let datagram = |frame: &Vec<u8>| {
        let of = |[a, b]: [&str; 2]| {
            let [source, destination] = [a, b].map(|text| text.parse::<std::net::IpAddr>().unwrap().into());
            let vni = Vni::new(frame.len() as u32).unwrap();
            let outer = Outer {
                source,
                destination,
                ports: [50_000, 4789],
                vni,
                tos: 3,
                ttl: 9,
                may_fragment: false,
            };
            let mut packet = vec![0; outer.length()];
            let length = outer.write(frame.len(), &mut packet).unwrap();
            // The checksum, which nobody reads: where the body cuts the packet, and how often it nests it.
            packet[length - 10..length - 8].copy_from_slice(&(frame.len() as u16 * 7).to_be_bytes());
            packet.extend(frame);
            packet
        };
        [of(["192.0.2.1", "192.0.2.2"]), of(["2001:db8::1", "2001:db8::2"])]
    };
    whole_frames().iter().flat_map(datagram).collect()
}

/// ARP and neighbour discovery; the body makes their checksums right.
pub fn requests_of_neighbours() -> Vec<Vec<u8>> {
    let host = MacAddr([2; 6]);
    let arp = |source: [u8; 4], target: [u8; 4]| {
        FrameBuilder::new(host, MacAddr::BROADCAST)
            .arp_request(source.into(), target.into())
            .to_vec()
            .unwrap()
    };
    let discovery = |kind: u8, source: &str, option: u8| {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0, 0xfd];
        message.extend([0; 14]);
        message.extend([2, option, 1]);
        message.extend(host.0);
        let (source, group): (IpAddr, IpAddr) = (source.parse().unwrap(), "ff02::1:ff00:2".parse().unwrap());
        let frame = FrameBuilder::new(host, MacAddr([0x33, 0x33, 0xff, 0, 0, 2])).ip(source, group).ttl(255);
        frame.protocol(IpProto::ICMPV6).payload(&message).to_vec().unwrap()
    };
    vec![
        arp([10, 0, 0, 1], [10, 0, 0, 2]),
        arp([0; 4], [10, 0, 0, 2]),
        arp([10, 0, 0, 1], [10, 0, 0, 1]),
        FrameBuilder::new(host, MacAddr([4; 6]))
            .arp_reply([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
            .to_vec()
            .unwrap(),
        discovery(135, "fd00::1", 1),
        discovery(135, "::", 1),
        discovery(136, "fd00::2", 2),
    ]
}

/// Messages of IGMP and MLD; the body makes their checksums right.
pub fn multicast_messages() -> Vec<Vec<u8>> {
    let group = [0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let record = |kind: u8, sources: u8, group: &[u8]| {
        let addresses = vec![9; usize::from(sources) * group.len()];
        [&[kind, 0, 0, sources][..], group, &addresses].concat()
    };
    let (v4, v6) = ([239, 1, 2, 3], group);
    let records = |group: &[u8]| -> Vec<u8> {
        (1..=6).flat_map(|kind| [record(kind, 0, group), record(kind, 2, group)]).flatten().collect()
    };
    let igmp = [
        vec![0x11, 100, 0, 0, 0, 0, 0, 0],
        [&[0x11, 10, 0, 0][..], &v4, &[2, 125, 0, 0]].concat(),
        [&[0x12, 0, 0, 0][..], &v4].concat(),
        [&[0x16, 0, 0, 0][..], &v4].concat(),
        [&[0x17, 0, 0, 0][..], &v4].concat(),
        [vec![0x22, 0, 0, 0, 0, 0, 0, 12], records(&v4)].concat(),
    ];
    let mld = [
        [&[130, 0, 0, 0, 39, 16, 0, 0][..], &v6, &[2, 125, 0, 0]].concat(),
        [&[131, 0, 0, 0, 0, 0, 0, 0][..], &v6].concat(),
        [&[132, 0, 0, 0, 0, 0, 0, 0][..], &v6].concat(),
        [vec![143, 0, 0, 0, 0, 0, 0, 12], records(&v6)].concat(),
    ];
    let frame = |[source, destination]: [&str; 2], protocol, message: &[u8]| {
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([1, 0, 0x5e, 0, 0, 1])).ttl(1);
        let builder = builder.ip(source.parse().unwrap(), destination.parse().unwrap());
        builder.protocol(protocol).payload(message).to_vec().unwrap()
    };
    let of_v4 = igmp.iter().map(|message| frame(["10.0.0.1", "224.0.0.22"], IpProto(2), message));
    let of_v6 = mld.iter().map(|message| frame(["fe80::1", "ff02::16"], IpProto::ICMPV6, message));
    of_v4.chain(of_v6).collect()
}
