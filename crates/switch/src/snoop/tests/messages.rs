// SPDX-License-Identifier: Apache-2.0
//! Messages as hosts and routers send them.

use netvm_wire::checksum::{internet_checksum, transport_checksum};
use netvm_wire::{FrameBuilder, IpProto};

use super::*;

fn igmp(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame("10.0.0.3", "224.0.0.22", IpProto(2), &message)
}

fn mld(source: &str, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let sum = transport_checksum(address(source), address("ff02::16"), IpProto::ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame(source, "ff02::16", IpProto::ICMPV6, &message)
}

fn frame(source: &str, destination: &str, protocol: IpProto, message: &[u8]) -> Vec<u8> {
    let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([1, 0, 0x5e, 0, 0, 22]));
    let builder = builder.ip(source.parse().unwrap(), destination.parse().unwrap()).ttl(1);
    builder.protocol(protocol).payload(message).to_vec().unwrap()
}

fn reports(frame: &[u8]) -> Vec<(Address, Change)> {
    match Message::read(frame, &parse(frame).unwrap()) {
        Ok(Message::Reports(reports)) => reports.collect(),
        other => panic!("{other:?}"),
    }
}

fn is_invalid(frame: &[u8]) -> bool {
    Message::read(frame, &parse(frame).unwrap()).is_err()
}

#[test]
fn reports_of_all_versions_are_read() {
    let group = address("239.1.2.3");
    for (kind, change) in [(0x12, Change::JoinV1), (0x16, Change::Join), (0x17, Change::Leave)] {
        assert_eq!(reports(&igmp(&[kind, 0, 0, 0, 239, 1, 2, 3])), [(group, change)]);
    }
    assert!(reports(&igmp(&[0x16, 0, 0, 0, 224, 0, 0, 251])).is_empty(), "stays on the link");
    let mut message = vec![0x22, 0, 0, 0, 0, 0, 0, 9];
    // Type, words of further data, sources.
    let records =
        [(1, 0, 0), (1, 0, 1), (2, 1, 3), (3, 0, 0), (3, 2, 1), (4, 0, 0), (5, 0, 1), (6, 0, 1), (7, 0, 0)];
    for (n, (kind, words, sources)) in records.into_iter().enumerate() {
        message.extend([kind, words, 0, sources, 239, 0, 0, n as u8]);
        message.extend(vec![0xaa; 4 * usize::from(words + sources)]);
    }
    let expected = [1, 2, 4, 5, 6].map(|n| (n, Change::Join)).into_iter();
    let mut expected: Vec<(u8, Change)> = expected.chain([(3, Change::Leave), (7, Change::Block)]).collect();
    expected.sort_unstable_by_key(|(n, _)| *n);
    let group = |n| Address::from_v4_octets([239, 0, 0, n]);
    let expected: Vec<(Address, Change)> =
        expected.into_iter().map(|(n, change)| (group(n), change)).collect();
    assert_eq!(reports(&igmp(&message)), expected);
    message.truncate(message.len() - 9);
    assert_eq!(reports(&igmp(&message)), expected[..expected.len() - 1], "without the last two records");
}

#[test]
fn reports_of_mld_are_read() {
    let group = address("ff15::7");
    let octets = group.v6_bits().to_be_bytes();
    for (kind, change) in [(131, Change::Join), (132, Change::Leave)] {
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &octets].concat();
        assert_eq!(reports(&mld("fe80::1", &message)), [(group, change)]);
        assert_eq!(reports(&mld("::", &message)), [(group, change)]);
        assert!(is_invalid(&mld("2001:db8::1", &message)), "from another link");
    }
    let solicited = address("ff02::1:ff00:1").v6_bits().to_be_bytes();
    let mut message = vec![143, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0];
    message.extend(solicited);
    message.extend([4, 0, 0, 0]);
    message.extend(octets);
    message.extend([3, 0, 0, 0]);
    message.extend(octets);
    assert_eq!(reports(&mld("fe80::1", &message)), [(group, Change::Join), (group, Change::Leave)]);
}

#[test]
fn damaged_messages_are_invalid() {
    let good = igmp(&[0x16, 0, 0, 0, 239, 1, 2, 3]);
    assert!(!is_invalid(&good));
    for at in [16, 34, 37, 41] {
        let mut damaged = good.clone();
        damaged[at] ^= 4;
        assert!(netvm_wire::parse(&damaged).is_err() || is_invalid(&damaged), "byte {at}");
    }
    assert!(is_invalid(&igmp(&[0x11, 0, 0, 0, 10, 0, 0, 1])), "a query for no group");
    assert!(is_invalid(&igmp(&[0x11, 100, 0, 0, 0, 0, 0, 0, 0, 0])), "between two versions");
    assert!(is_invalid(&igmp(&[0x11, 100, 0, 0])));
    let mut far = mld("fe80::1", &[131; 24]);
    far[21] = 2;
    assert!(is_invalid(&far), "hop limit");
}

#[test]
fn queries_of_all_versions_are_read() {
    let query = |frame: &[u8]| match Message::read(frame, &parse(frame).unwrap()) {
        Ok(Message::Query(query)) => (query.response, query.interval, query.may_end, query.group),
        other => panic!("{other:?}"),
    };
    let seconds = Duration::from_secs;
    assert_eq!(query(&igmp(&[0x11, 0, 0, 0, 0, 0, 0, 0])), (seconds(10), None, true, None));
    assert_eq!(query(&igmp(&[0x11, 200, 0, 0, 0, 0, 0, 0])), (seconds(20), None, true, None));
    let v3 =
        |flags, sources| query(&igmp(&[0x11, 0x8a, 0, 0, 239, 1, 1, 1, flags, 0x8a, 0, sources, 1, 2, 3, 4]));
    let (response, interval) = (Duration::from_millis(26 * 8 * 100), Some(seconds(26 * 8)));
    assert_eq!(v3(2, 0), (response, interval, true, Some(address(GROUP))));
    assert_eq!((v3(10, 0).2, v3(2, 1).2), (false, false), "routers keep their timers; sources are asked for");
    let mut message = vec![130, 0, 0, 0, 0x90, 0, 0, 0];
    message.extend([0; 20]);
    assert_eq!(query(&mld("fe80::1", &message)), (Duration::from_millis(0x1000 << 4), None, true, None));
    assert!(is_invalid(&mld("::", &message)), "without an address");
}

#[test]
fn routers_and_others_are_told_apart() {
    fn read(frame: &[u8]) -> Message<'_> {
        let headers = parse(frame).unwrap();
        assert_eq!(GroupPacket::of(headers.key()), GroupPacket::Control);
        Message::read(frame, &headers).unwrap()
    }
    assert_eq!(read(&frame("10.0.0.1", "224.0.0.13", IpProto(103), &[0x20, 0, 0, 0])), Message::Router);
    assert_eq!(read(&frame("10.0.0.1", "224.0.0.13", IpProto(103), &[0x23, 0, 0, 0])), Message::Other);
    assert_eq!(read(&frame("fe80::1", "ff02::d", IpProto(103), &[0x20, 0, 0, 0])), Message::Router);
    assert_eq!(read(&igmp(&[0x30, 0, 0, 0, 0, 0, 0, 0])), Message::Router);
    assert_eq!(read(&igmp(&[0x99, 0, 0, 0, 0, 0, 0, 0])), Message::Other);
    let of = |destination: &str| {
        let source = if destination.contains(':') { "2001:db8::1" } else { "10.0.0.1" };
        let frame = frame(source, destination, IpProto::UDP, &[0, 1, 0, 1, 0, 8, 0, 0]);
        GroupPacket::of(parse(&frame).unwrap().key())
    };
    for link in ["224.0.0.1", "224.0.0.251", "ff02::1", "ff02::fb", "ff02::1:ff00:1", "ff01::1", "10.0.0.1"] {
        assert_eq!(of(link), GroupPacket::Flooded, "{link}");
    }
    for group in ["224.0.1.1", "239.255.255.250", "ff05::2", "ff0e::101", "ff15::1", "ff18::1"] {
        assert_eq!(of(group), GroupPacket::Data(address(group)), "{group}");
    }
}
