// SPDX-License-Identifier: Apache-2.0
//! Arbitrary frames.

use std::net::IpAddr;

use netvm_flowmon::{Name, names};
use netvm_wire::{
    EtherType, FlowKey, FrameBuilder, Headers, IpProto, MacAddr, Malformed, TcpFlags, Transport, VlanId,
    checksum, parse, parse_prefix, rewrite,
};

use crate::input::Input;

/// Parses, verifies, rewrites and builds frames.
pub fn wire_parse(data: &[u8]) {
    let mut input = Input::new(data);
    let (prefix, build) = (usize::from(input.u16()), input.u8());
    if build % 4 == 0 {
        check_builder(&mut input);
        return;
    }
    let frame = input.rest();
    let prefix = prefix % (frame.len() + 1);
    let full = parse(frame);
    assert_prefix_agrees(frame, prefix, &full);
    check_vlan_rewrites(frame, prefix);
    let Ok(headers) = full else { return };
    assert_offsets(frame, &headers);
    for bytes in [frame, &frame[..prefix]] {
        check_rewrites(bytes, &headers);
    }
}

fn assert_prefix_agrees(frame: &[u8], prefix: usize, full: &Result<Headers, Malformed>) {
    let seen = parse_prefix(&frame[..prefix], frame.len());
    if seen != Err(Malformed::BeyondPrefix) {
        assert_eq!(&seen, full, "of {prefix} bytes");
    }
    assert_ne!(*full, Err(Malformed::BeyondPrefix), "a whole frame has no `BeyondPrefix`");
    if let Ok(headers) = full
        && prefix >= headers.payload_offset()
    {
        assert_eq!(&seen, full, "all headers are in {prefix} bytes");
    }
    let _ = parse_prefix(frame, prefix);
    for (bytes, frame_len) in [(frame, frame.len()), (&frame[..prefix], frame.len()), (frame, prefix)] {
        let key = FlowKey::of_frame(bytes, frame_len);
        assert_eq!(key, parse_prefix(bytes, frame_len).map(|headers| *headers.key()), "the key differs");
        assert!(
            key.is_err() || key.map(|key| FlowKey::from(key.words())) == key,
            "the key changed on its way through words"
        );
    }
}

fn assert_offsets(frame: &[u8], headers: &Headers) {
    let l4 = headers.l4_offset().unwrap_or(headers.payload_offset());
    assert!(14 <= headers.l3_offset() && headers.l3_offset() <= l4 && l4 <= headers.payload_offset());
    assert!(headers.payload_offset() <= headers.payload_end() && headers.payload_end() <= frame.len());
    assert_eq!(headers.payload(frame), &frame[headers.payload_offset()..headers.payload_end()]);
    let ip = matches!(headers.network(), netvm_wire::Network::Ipv4 | netvm_wire::Network::Ipv6);
    assert_eq!(headers.five_tuple().is_some(), ip);
    if let Some(tuple) = headers.five_tuple() {
        assert_eq!(tuple.canonical(), tuple.reversed().canonical());
        assert_eq!(tuple.symmetric_hash(), tuple.reversed().symmetric_hash());
        assert!(!tuple.to_string().is_empty());
    }
}

/// Rewrites bytes that may be fewer than those that were parsed.
fn check_rewrites(bytes: &[u8], headers: &Headers) {
    let _ = headers.payload(bytes);
    let sound = checksum::verify(bytes, headers);
    let mut copy = bytes.to_vec();
    match checksum::fill(&mut copy, headers) {
        Ok(()) => assert_eq!(checksum::verify(&copy, headers), Ok(())),
        Err(_) => assert_eq!(copy, bytes, "an error changes nothing"),
    }
    let mut copy = bytes.to_vec();
    match rewrite::decrement_ttl(&mut copy, headers) {
        Ok(_) => assert_eq!(checksum::verify(&copy, headers), sound),
        Err(_) => assert_eq!(copy, bytes, "an error changes nothing"),
    }
    let mut copy = bytes.to_vec();
    if rewrite::swap_macs(&mut copy).is_ok() {
        assert_eq!(rewrite::swap_macs(&mut copy), Ok(()));
    }
    assert_eq!(copy, bytes);
    let broadcast = MacAddr::BROADCAST;
    assert_eq!(rewrite::set_macs(&mut copy, broadcast, broadcast).is_ok(), bytes.len() >= 12);
}

/// Rewrites VLAN tags in a buffer with `offset` bytes before the frame.
fn check_vlan_rewrites(bytes: &[u8], offset: usize) {
    let vlan = VlanId::new(1 + (offset % 4094) as u16).expect("1 to 4094");
    let mut buffer = bytes.to_vec();
    if let Ok(start) = rewrite::push_vlan(&mut buffer, offset, EtherType::VLAN, vlan) {
        assert_eq!(parse(&buffer[start..]).map(|headers| headers.vlan()).unwrap_or(Some(vlan)), Some(vlan));
        assert_eq!(rewrite::strip_vlan(&mut buffer, start), Ok(offset));
        assert_eq!(buffer[offset..], bytes[offset..]);
    } else {
        assert_eq!(buffer, bytes, "an error changes nothing");
    }
    let mut buffer = bytes.to_vec();
    match rewrite::set_vlan(&mut buffer, offset, vlan) {
        Ok(start) => {
            let again = rewrite::set_vlan(&mut buffer, start, vlan);
            assert_eq!(again, Ok(start), "retagging moved the frame");
        }
        Err(_) => assert_eq!(buffer, bytes, "an error changes nothing"),
    }
    let mut buffer = bytes.to_vec();
    match rewrite::strip_vlan(&mut buffer, offset) {
        Ok(start) => assert!(start == offset || start == offset + 4),
        Err(_) => assert_eq!(buffer, bytes, "an error changes nothing"),
    }
}

/// Builds a frame. A complete frame must parse and have valid checksums.
fn check_builder(input: &mut Input<'_>) {
    let (kind, form) = (input.u8(), input.u8());
    let mut builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).ttl(input.u8()).dscp(input.u8());
    for _ in 0..form % 4 {
        builder = match VlanId::new(input.u16() & 0x0fff) {
            Ok(vlan) if form & 4 == 0 => builder.vlan(vlan),
            Ok(vlan) => builder.service_vlan(vlan),
            Err(_) => builder,
        };
    }
    let mut address = || -> IpAddr {
        if input.u8() & 1 == 0 {
            IpAddr::from(input.u32().to_be_bytes())
        } else {
            IpAddr::from((u128::from(input.u64()) << 64 | u128::from(input.u64())).to_be_bytes())
        }
    };
    builder = builder.ip(address(), address());
    if form & 8 != 0 {
        builder = builder.fragment(input.u16(), input.u16(), form & 16 != 0);
    }
    let (a, b) = (input.u16(), input.u16());
    let transport = match kind % 5 {
        0 => Transport::Udp,
        1 => Transport::Tcp,
        2 | 3 => Transport::Icmp,
        _ => Transport::Other,
    };
    builder = match transport {
        Transport::Udp => builder.udp(a, b),
        Transport::Tcp => builder.tcp(a, b, TcpFlags::from_bits_truncate(kind)).numbers(a.into(), b.into()),
        Transport::Icmp => builder.echo(kind & 8 == 0, a, b),
        _ => builder.protocol(IpProto(kind)),
    };
    if form & 32 != 0 {
        builder = builder.frame_len(usize::from(input.u16()));
    }
    let payload = input.rest();
    let builder = builder.payload(payload);
    let Ok(frame) = builder.to_vec() else { return };
    assert_eq!(frame.len(), builder.size());
    let mut buffer = vec![0xff; frame.len() + 1];
    assert_eq!((builder.write(&mut buffer), &buffer[..frame.len()]), (Ok(frame.len()), &frame[..]));
    assert!(builder.write(&mut buffer[..frame.len() - 1]).is_err());
    let parsed = parse(&frame);
    // The payload of a fragment or of another protocol is arbitrary and may be malformed.
    if form & 8 == 0 && transport != Transport::Other {
        let headers = parsed.unwrap_or_else(|error| unreachable!("{builder:?}: {error}"));
        assert_eq!(checksum::verify(&frame, &headers), Ok(()));
        assert!(headers.five_tuple().is_some());
    }
}

/// Reads host names from DNS messages, TLS records and frames.
pub fn flow_names(data: &[u8]) {
    let found = [names::question(data), names::server_name(data)];
    let in_frame = parse(data).ok().and_then(|headers| names::name_in(data, &headers));
    for name in found.into_iter().chain([in_frame]).flatten() {
        let text = name.as_str();
        assert!(!text.is_empty() && text.len() <= Name::MAX);
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'));
    }
}
