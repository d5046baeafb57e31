// SPDX-License-Identifier: Apache-2.0
//! Ordinary traffic: web, names, video, QUIC, link-local protocols.

use netvm_wire::{EtherType, FrameBuilder, MacAddr};

use super::frames::{CLIENT, Flow, SEGMENT, SERVER, built, ip};
use super::messages::{dns_answer, dns_query, tls_hello, tls_record};
use crate::random::Random;

/// The server that the TLS session names.
pub const TLS_NAME: &str = "www.example.org";
/// The name that the DNS session asks for.
pub const DNS_NAME: &str = "mail.example.net";

/// One TLS session, with a page of 60 kB.
pub(super) fn tls(random: &mut Random) -> Vec<Vec<u8>> {
    let flow = Flow::new("192.0.2.10:49152", "198.51.100.7:443");
    let record = |random: &mut Random, length| tls_record(23, &random.bytes(length));
    let certificates = tls_record(22, &random.bytes(3100));
    let page: Vec<u8> = (0..4).flat_map(|_| record(random, 15_000)).collect();
    let says = [tls_hello(TLS_NAME), certificates, record(random, 400), page];
    flow.tcp(&says, SEGMENT)
}

/// A name, asked for once, and the answer.
pub(super) fn dns() -> Vec<Vec<u8>> {
    let flow = Flow::new("192.0.2.10:53124", "203.0.113.53:53");
    vec![flow.udp(true, &dns_query(7, DNS_NAME)), flow.udp(false, &dns_answer(7, DNS_NAME, 3))]
}

/// Large answers in fragments of both families, some in the wrong order, one incomplete.
pub(super) fn fragmented_dns() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (n, (client, server)) in
        [("192.0.2.10:5300", "203.0.113.53:53"), ("[2001:db8::10]:5301", "[2001:db8:53::1]:53")]
            .into_iter()
            .enumerate()
    {
        let flow = Flow::new(client, server);
        for count in (40..200).step_by(16) {
            frames.push(flow.udp(true, &dns_query(count, "many.example.com")));
            let mut pieces = flow.fragments(false, &dns_answer(count, "many.example.com", count), 1232);
            match count % 3 {
                0 => pieces.reverse(),
                1 => drop(pieces.pop().filter(|_| n == 0)),
                _ => {}
            }
            frames.extend(pieces);
        }
    }
    frames
}

/// HTTP over IPv6; segments as long as a receiver that merges them sees them.
pub(super) fn http_over_v6(random: &mut Random) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for port in 40_000..40_012u16 {
        let flow = Flow::new(&format!("[2001:db8::10]:{port}"), "[2001:db8:80::7]:80");
        let request = format!("GET /{port} HTTP/1.1\r\nHost: www.example.com\r\n\r\n").into_bytes();
        let page = [&b"HTTP/1.1 200 OK\r\nContent-Length: 12000\r\n\r\n"[..], &random.bytes(12_000)].concat();
        let segment = if port % 2 == 0 { SEGMENT } else { 3600 };
        frames.extend(flow.tcp(&[request, page], segment));
    }
    frames
}

/// A download in full segments: as many packets as other files together.
pub(super) fn video(random: &mut Random) -> Vec<Vec<u8>> {
    let flow = Flow::new("192.0.2.10:50123", "198.51.100.99:443");
    flow.tcp(&[tls_hello("video.example.com"), random.bytes(SEGMENT * 1100)], SEGMENT)
}

/// UDP in both directions with 1,200 bytes.
pub(super) fn quic(random: &mut Random) -> Vec<Vec<u8>> {
    let flow = Flow::new("192.0.2.10:51234", "198.51.100.7:443");
    (0..250).map(|n| flow.udp(n % 3 == 0, &random.bytes(if n < 4 { 1200 } else { 40 + n * 4 }))).collect()
}

/// Many flows of one or two packets, as of scans and of a file-sharing program.
pub(super) fn many_flows(random: &mut Random) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for n in 0..400u16 {
        let [high, low] = n.to_be_bytes();
        let flow = Flow::new(
            &format!("192.0.2.10:{}", 6881 + n % 5),
            &format!("198.18.{high}.{low}:{}", 1024 + n * 7),
        );
        frames.push(flow.udp(true, &random.bytes(20 + usize::from(n) % 300)));
        if n % 3 == 0 {
            frames.push(flow.udp(false, &random.bytes(30)));
        }
    }
    frames
}

/// What hosts and routers send on a link: ARP, neighbour discovery, ping, BFD, routing protocols, LLDP.
pub(super) fn link_protocols() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let arp = FrameBuilder::new(CLIENT, MacAddr::BROADCAST);
    let (a, b) = ([192, 0, 2, 10].into(), [192, 0, 2, 1].into());
    frames.push(built(&arp.arp_request(a, b)));
    frames.push(built(&FrameBuilder::new(SERVER, CLIENT).arp_reply(b, a)));
    for (client, server) in [("192.0.2.10:0", "192.0.2.1:0"), ("[fe80::a]:0", "[fe80::b]:0")] {
        let flow = Flow::new(client, server);
        for sequence in 0..5 {
            for from_client in [true, false] {
                let (base, ..) = flow.base(from_client);
                frames.push(built(&base.echo(!from_client, 77, sequence).payload(&[0x5a; 56])));
            }
        }
        // OSPF, VRRP, PIM, EIGRP, SCTP, DCCP: hello-like contents.
        for protocol in [89, 112, 103, 88, 132, 33] {
            frames.push(
                flow.other(protocol, &[2, 1, 0, 44, 0, 0, 0, 7, 0, 0, 0, 0, 0x1f, 0x2e, 0, 0, 3, 0, 0, 16]),
            );
        }
    }
    // Bidirectional forwarding detection (RFC 5880), HSRP version 2 over IPv6, and DHCP.
    let bfd = Flow::new("192.0.2.10:49153", "192.0.2.1:3784");
    frames.extend(
        (0..11)
            .map(|n| bfd.udp(n % 2 == 0, &[0x20, 0xc0, 3, 24, 0, 0, 0, n, 0, 0, 0, 1, 0, 0x0f, 0x42, 0x40])),
    );
    let hsrp = Flow::new("[fe80::a]:2029", "[ff02::66]:2029");
    frames
        .extend((0..20).map(|n| hsrp.udp(true, &[1, 40, 2, 0, 6, 4, 0, n, 0, 0, 0, 110, 0, 0, 0x0b, 0xb8])));
    frames.push(Flow::new("0.0.0.0:68", "255.255.255.255:67").udp(true, &[1; 300]));
    // LLDP, a slow protocol (LACP), PTP, and an experiment.
    for (kind, length) in [(0x88cc, 50), (0x8809, 110), (0x88f7, 44), (0x88b5, 46)] {
        frames.push(built(
            &FrameBuilder::new(CLIENT, MacAddr([1, 0x80, 0xc2, 0, 0, 0x0e]))
                .ether_type(EtherType(kind))
                .payload(&vec![4; length]),
        ));
    }
    frames
}

/// A jumbo frame, and the longest that a datagram makes.
pub(super) fn jumbo(random: &mut Random) -> Vec<Vec<u8>> {
    let flow = Flow::new("192.0.2.10:9000", "192.0.2.11:9000");
    vec![flow.udp(true, &random.bytes(8972)), flow.udp(false, &random.bytes(1)), flow.udp(true, &[])]
}

/// A frame between hosts that no other file names, for the tunnels.
pub(super) fn inner(is_v6: bool) -> Vec<u8> {
    let (from, to) = if is_v6 { ("fd00::1", "fd00::2") } else { ("10.1.0.1", "10.2.0.2") };
    built(&FrameBuilder::new(CLIENT, SERVER).ip(ip(from), ip(to)).udp(4000, 5000).payload(b"inner"))
}
