// SPDX-License-Identifier: Apache-2.0
//! Frames that are wrong in one way each, garbage, and well-formed frames with bytes changed.

use netvm_wire::{FrameBuilder, IpProto};

use super::frames::{CLIENT, Flow, SERVER, built};
use super::messages::dns_answer;
use crate::random::Random;

/// Where headers are in an untagged frame: IPv4, IPv6, and what follows them.
const IP: usize = 14;
const AFTER_V4: usize = 34;
const AFTER_V6: usize = 54;

/// Both families, with UDP and TCP, each wrong in one field; and each cut after every few bytes.
pub(super) fn malformed() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (client, server, after) in
        [("192.0.2.10:1000", "192.0.2.11:53", AFTER_V4), ("[2001:db8::1]:1000", "[2001:db8::2]:53", AFTER_V6)]
    {
        let flow = Flow::new(client, server);
        let udp = flow.udp(true, &[0x61; 40]);
        let tcp = flow.tcp(&[vec![0x62; 40]], 100).swap_remove(3);
        let echo = built(&flow.base(true).0.echo(false, 1, 1).payload(&[0; 20]));
        let with = |frame: &[u8], changes: &[(usize, u8)]| {
            let mut frame = frame.to_vec();
            changes.iter().for_each(|(at, to)| frame[*at] = *to);
            frame
        };
        // Version, header length or payload length, and total length.
        for changes in [
            &[(IP, 0x00)][..],
            &[(IP, 0x44)],
            &[(IP, 0xf5)],
            &[(IP + 4, 0xff), (IP + 2, 0xff)],
            &[(IP + 3, 5), (IP + 5, 5)],
        ] {
            frames.push(with(&udp, changes));
        }
        // UDP lengths: nothing, less than a header, beyond the packet. TCP offsets: too small, beyond the packet.
        for length in [0, 7, 0xff] {
            frames.push(with(&udp, &[(after + 5, length)]));
        }
        for offset in [0x00, 0x40, 0xf0] {
            frames.push(with(&tcp, &[(after + 12, offset)]));
        }
        // Flags that no connection has: none, all, SYN with FIN.
        for flags in [0, 0xff, 3] {
            frames.push(with(&tcp, &[(after + 13, flags)]));
        }
        // A wrong checksum; source and destination the same; a source that is a group.
        frames.push(with(&udp, &[(after + 6, 0xde), (after + 7, 0xad)]));
        let addresses = if after == AFTER_V4 { IP + 12 } else { IP + 8 };
        let size = if after == AFTER_V4 { 4 } else { 16 };
        let mut land = udp.clone();
        land.copy_within(addresses..addresses + size, addresses + size);
        frames.push(land);
        frames.push(with(&udp, &[(addresses, if size == 4 { 224 } else { 0xff })]));
        for whole in [&udp, &tcp, &echo] {
            frames.extend((0..whole.len()).step_by(5).map(|length| whole[..length].to_vec()));
        }
    }
    // IPv6 extension headers: in the wrong order, too long, too many, and a later fragment of nothing.
    let flow = Flow::new("[2001:db8::1]:1", "[2001:db8::2]:2");
    for chain in [
        &[60u8, 0, 1, 4, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0][..],
        &[59, 0xff, 1, 4, 0, 0, 0, 0],
        &[60, 0, 1, 4, 0, 0, 0, 0].repeat(20),
        &[44, 0, 0, 9, 0, 0, 0, 1],
    ] {
        frames.push(flow.other(if chain.len() > 20 { 60 } else { 0 }, chain));
    }
    // Packets that end within the header after IP's, and an IPv4 address in an IPv6 header.
    for (client, server) in [("192.0.2.10:1", "192.0.2.11:2"), ("[2001:db8::1]:1", "[2001:db8::2]:2")] {
        let flow = Flow::new(client, server);
        let protocols = [(6u8, 19), (17, 7), (1, 3), (58, 3), (132, 11)];
        frames.extend(protocols.map(|(protocol, length)| flow.other(protocol, &vec![0; length])));
    }
    frames.push(Flow::new("[::ffff:192.0.2.10]:7", "[2001:db8::2]:9").udp(true, b"mapped"));
    // ARP of other address lengths and cut; a tag that is cut, and one of the reserved VLAN.
    let arp =
        built(&FrameBuilder::new(CLIENT, SERVER).arp_request([192, 0, 2, 10].into(), [192, 0, 2, 11].into()));
    frames.push(arp[..30].to_vec());
    frames.extend([18, 19].map(|at| [&arp[..at], &[9], &arp[at + 1..]].concat()));
    frames.push([&arp[..12], &[0x81, 0, 0]].concat());
    frames.push([&arp[..12], &[0x81, 0, 0x0f, 0xff], &arp[12..]].concat());
    // Answers of DNS that end early, point at themselves, or count more records than there are.
    let flow = Flow::new("192.0.2.10:5300", "203.0.113.53:53");
    let answer = dns_answer(9, "bad.example.com", 4);
    for length in [1, 11, 13, 20, 30] {
        frames.push(flow.udp(false, &answer[..length]));
    }
    frames.push(flow.udp(false, &[&answer[..12], &[0xc0, 12, 0, 1, 0, 1]].concat()));
    frames.push(
        flow.udp(
            false,
            &[&[0, 9, 0x81, 0x80, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..], &answer[12..]].concat(),
        ),
    );
    frames
}

/// Fragments that overlap, repeat, are tiny, or belong to nothing: what a scanner or an attacker sends.
pub(super) fn fragments(random: &mut Random) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for n in 0..1200u32 {
        let is_v6 = n % 5 == 0;
        let flow = if is_v6 {
            Flow::new("[2001:db8::66]:7", "[2001:db8::67]:9")
        } else {
            Flow::new(&format!("192.0.2.{}:7", 1 + n % 250), "198.51.100.9:9")
        };
        let (base, ..) = flow.base(true);
        let offset = match n % 7 {
            0 => 0,
            1 => 1,
            6 => 8189,
            _ => random.below(600) as u16,
        };
        let length = if n % 7 == 6 { 24 } else { 8 + 8 * random.below(4) as usize };
        let bytes = random.bytes(length);
        let protocol = IpProto(*random.pick(&[6, 17, 1, 58, 255]));
        frames.push(built(&base.protocol(protocol).payload(&bytes).fragment(
            (n / 9) as u16,
            offset,
            n % 3 != 0,
        )));
    }
    frames
}

/// Frames of other files with a few bytes changed, cut, or continued with noise; and some that are nothing but noise.
pub(super) fn fuzzed(frames: &[Vec<u8>], random: &mut Random) -> Vec<Vec<u8>> {
    let mutated = |random: &mut Random| {
        if random.per_mille(80) {
            let length = random.below(200) as usize;
            return random.bytes(length);
        }
        let mut frame = random.pick(frames).clone();
        frame.truncate(1500);
        for _ in 0..random.below(4) {
            // Mostly headers, which decide.
            let headers = frame.len().min(80);
            let at = random.below(headers as u64) as usize;
            if let Some(byte) = frame.get_mut(at) {
                *byte = random.bits() as u8;
            }
        }
        if random.per_mille(150) {
            frame.truncate(random.below(frame.len() as u64 + 1) as usize);
        }
        frame
    };
    (0..700).map(|_| mutated(random)).collect()
}
