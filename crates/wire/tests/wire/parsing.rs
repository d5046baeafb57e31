// SPDX-License-Identifier: Apache-2.0
//! Parses hand-written frames: offsets, keys, and every reason to refuse a frame.

use netvm_wire::{
    Address, EtherType, FlowKey, Fragment, FrameBuilder, IpProto, MAX_IPV6_EXTENSIONS, MacAddr, Malformed,
    Network, TcpFlags, Transport, VlanId, parse, parse_prefix,
};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

fn v4() -> FrameBuilder<'static> {
    FrameBuilder::new(A, B).ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
}

fn v6() -> FrameBuilder<'static> {
    FrameBuilder::new(A, B).ip("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
}

fn vlan(id: u16) -> VlanId {
    VlanId::new(id).unwrap()
}

/// An IPv6 frame with `headers` between the fixed header and 8 bytes of UDP. The first byte of each header is its next
/// header field.
fn extended(first: IpProto, headers: &[&[u8]]) -> Vec<u8> {
    let mut body: Vec<u8> = headers.concat();
    body.extend([0x30, 0x39, 0, 53, 0, 8, 0, 0]);
    v6().protocol(first).payload(&body).to_vec().unwrap()
}

/// `frame` with the bytes at `at` replaced.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[track_caller]
fn refused(frame: &[u8], reason: Malformed) {
    assert_eq!(parse(frame), Err(reason));
}

#[test]
fn tcp_over_ipv4() {
    let frame = v4().dscp(46).tcp(80, 1234, TcpFlags::SYN | TcpFlags::ACK).payload(b"data").to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    let key = headers.key();
    assert_eq!((key.source_mac, key.destination_mac, key.ether_type), (A, B, EtherType::IPV4));
    assert_eq!((key.dscp, key.tcp_flags, key.fragment), (46, TcpFlags::SYN | TcpFlags::ACK, Fragment::Whole));
    assert_eq!(headers.five_tuple().unwrap().to_string(), "10.0.0.1:80 > 10.0.0.2:1234 tcp");
    assert_eq!((headers.network(), headers.transport()), (Network::Ipv4, Transport::Tcp));
    assert_eq!((headers.l3_offset(), headers.l4_offset(), headers.payload_offset()), (14, Some(34), 54));
    assert_eq!(headers.payload(&frame), b"data");
    assert_eq!((headers.vlan(), headers.vlan_tags()), (None, 0));
}

#[test]
fn udp_over_ipv6_in_two_vlans() {
    let frame =
        v6().dscp(63).service_vlan(vlan(4094)).vlan(vlan(7)).udp(1, 2).payload(b"x").to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!(
        (headers.vlan(), headers.key().inner_vlan, headers.vlan_tags()),
        (Some(vlan(4094)), Some(vlan(7)), 2)
    );
    assert_eq!((headers.l3_offset(), headers.l4_offset(), headers.payload_offset()), (22, Some(62), 70));
    assert_eq!(headers.five_tuple().unwrap().to_string(), "[2001:db8::1]:1 > [2001:db8::2]:2 udp");
    assert_eq!(headers.key().dscp, 63);
    assert_eq!(headers.payload(&frame), b"x");
}

#[test]
fn priority_tags_count_as_tags() {
    let frame = v4().vlan(vlan(1)).udp(1, 2).to_vec().unwrap();
    let priority = parse(&with(frame, 14, &[0xe0, 0])).unwrap();
    assert_eq!((priority.vlan(), priority.vlan_tags(), priority.network()), (None, 1, Network::Ipv4));
}

/// A frame with tags of these types before its EtherType, all of VLAN 0.
fn tagged(frame: &[u8], types: &[u16]) -> Vec<u8> {
    let tags: Vec<u8> = types.iter().flat_map(|kind| [(kind >> 8) as u8, *kind as u8, 0, 0]).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

#[test]
fn more_tags_than_two_are_refused_and_switched() {
    let frame = v4().udp(1, 2).to_vec().unwrap();
    assert_eq!(parse(&tagged(&frame, &[0x88a8, 0x8100])).unwrap().vlan_tags(), 2);
    let types: [&[u16]; 6] = [
        &[0x8100; 3],
        &[0x88a8, 0x8100, 0x8100],
        &[0x88a8; 4],
        // Receivers older than 802.1ad read these as tags.
        &[0x9100],
        &[0x8100, 0x9200],
        &[0x9300, 0x8100, 0x8100],
    ];
    for types in types {
        let frame = tagged(&frame, types);
        refused(&frame, Malformed::TooManyTags);
        assert_eq!(FlowKey::of_frame(&frame, frame.len()), Err(Malformed::TooManyTags));
        let switched = FlowKey::of_ethernet(&frame, frame.len()).unwrap();
        assert_eq!((switched.source_mac, switched.ether_type.may_be_tag()), (A, true));
    }
    assert!(Malformed::TooManyTags.is_too_many_headers());
}

#[test]
fn snap_is_read_through() {
    let snap = |frame: &[u8], kind: u16| {
        let rest = &frame[14..];
        let length = (rest.len() + 8) as u16;
        let [high, low] = length.to_be_bytes();
        [&frame[..12], &[high, low, 0xaa, 0xaa, 3, 0, 0, 0], &kind.to_be_bytes(), rest].concat()
    };
    let frame = snap(&v4().tcp(9, 23, TcpFlags::SYN).to_vec().unwrap(), 0x0800);
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.five_tuple().unwrap().to_string(), "10.0.0.1:9 > 10.0.0.2:23 tcp");
    assert_eq!(
        (headers.key().ether_type, headers.l3_offset(), headers.l4_offset()),
        (EtherType::IPV4, 22, Some(42))
    );
    assert_eq!(FlowKey::of_frame(&frame, frame.len()).unwrap(), *headers.key());
    // The length of the frame bounds what it contains.
    let mut cut = frame.clone();
    cut[13] -= 1;
    refused(&cut, Malformed::Ipv4BeyondFrame);
    refused(&snap(&frame, 0x8100), Malformed::TooManyTags);
    // Another organisation, another SAP, and a length in place of a type.
    for (at, byte) in [(17, 1), (14, 0x42), (20, 5)] {
        assert_eq!(parse(&with(frame.clone(), at, &[byte])).unwrap().key().ether_type, EtherType::LLC);
    }
    assert_eq!("llc".parse(), Ok(EtherType::LLC));
    assert_eq!("0x05ff".parse(), Ok(EtherType::LLC));
}

#[test]
fn arp_of_ieee_802_is_arp_of_ethernet() {
    let arp = FrameBuilder::new(A, B).arp_reply([10, 0, 0, 3].into(), [10, 0, 0, 1].into()).to_vec().unwrap();
    let other = parse(&with(arp.clone(), 14, &[0, 6])).unwrap();
    assert_eq!(other.key(), parse(&arp).unwrap().key());
    let odd = parse(&with(arp, 14, &[0, 7])).unwrap();
    assert!(!odd.key().source.is_v4(), "only Ethernet's addresses are read");
}

#[test]
fn padding_is_not_payload() {
    let mut frame = v4().udp(1, 2).payload(b"abc").to_vec().unwrap();
    let length = frame.len();
    frame.resize(60, 0xee);
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.payload_end(), length);
    assert_eq!(headers.payload(&frame), b"abc");
    assert_eq!(headers.payload(&frame[..length - 1]), b"ab");
    assert_eq!(headers.payload(&frame[..20]), b"");
}

#[test]
fn ipv4_options_move_the_transport_header() {
    let frame = v4().protocol(IpProto::UDP).payload(&[1, 1, 1, 1, 0, 5, 0, 6, 0, 8, 0, 0]).to_vec().unwrap();
    let headers = parse(&with(frame, 14, &[0x46])).unwrap();
    assert_eq!(
        (headers.l4_offset(), headers.key().source_port, headers.key().destination_port),
        (Some(38), 5, 6)
    );
}

#[test]
fn icmp_has_a_type_and_no_ports() {
    let request = parse(&v4().echo(false, 7, 1).to_vec().unwrap()).unwrap();
    assert_eq!(
        (request.transport(), request.key().icmp_type, request.key().icmp_code),
        (Transport::Icmp, 8, 0)
    );
    assert_eq!(request.five_tuple().unwrap().to_string(), "10.0.0.1 > 10.0.0.2 icmp");
    let reply = parse(&v6().echo(true, 7, 1).to_vec().unwrap()).unwrap();
    assert_eq!((reply.transport(), reply.key().icmp_type), (Transport::Icmpv6, 129));
    // Each is only defined over its own family.
    let crossed = parse(&v6().protocol(IpProto::ICMP).payload(&[8; 8]).to_vec().unwrap()).unwrap();
    assert_eq!((crossed.transport(), crossed.key().icmp_type), (Transport::Other, 0));
}

#[test]
fn sctp_and_unparsed_protocols() {
    let sctp =
        v4().protocol(IpProto::SCTP).payload(&[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9]).to_vec().unwrap();
    let headers = parse(&sctp).unwrap();
    assert_eq!(headers.five_tuple().unwrap().to_string(), "10.0.0.1:1 > 10.0.0.2:2 sctp");
    assert_eq!(headers.payload(&sctp), [9]);
    let gre = parse(&v4().protocol(IpProto::GRE).payload(&[0; 4]).to_vec().unwrap()).unwrap();
    assert_eq!((gre.transport(), gre.l4_offset(), gre.payload_offset()), (Transport::Other, Some(34), 34));
}

#[test]
fn arp_addresses_are_in_the_key() {
    let builder =
        FrameBuilder::new(A, MacAddr::BROADCAST).arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let frame = builder.frame_len(60).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    let key = headers.key();
    assert_eq!((headers.network(), key.arp_operation, headers.five_tuple()), (Network::Arp, 1, None));
    assert_eq!(
        (key.source, key.destination),
        (Address::from_v4_octets([10, 0, 0, 1]), Address::from_v4_octets([10, 0, 0, 2]))
    );
    assert_eq!((headers.l4_offset(), headers.payload_offset(), headers.payload_end()), (None, 42, 42));
    let reply =
        FrameBuilder::new(A, B).arp_reply([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).to_vec().unwrap();
    assert_eq!(parse(&reply).unwrap().key().arp_operation, 2);
    assert_eq!(reply[32..38], B.0);
    // InfiniBand: addresses of 20 bytes, which do not fit in the key.
    let other = with(with(frame.clone(), 14, &[0, 32]), 18, &[20, 4]);
    refused(&other, Malformed::ArpTruncated);
    let other = parse(&[other, vec![0; 20]].concat()).unwrap();
    assert_eq!((other.network(), other.key().source), (Network::Arp, Address::UNSPECIFIED));
    refused(&with(frame.clone(), 18, &[7]), Malformed::ArpLengths);
    refused(&with(frame.clone(), 19, &[16]), Malformed::ArpLengths);
    refused(&frame[..21], Malformed::ArpTruncated);
    refused(&frame[..41], Malformed::ArpTruncated);
}

#[test]
fn a_length_field_means_llc() {
    // A BPDU: DSAP, SSAP, control, and 35 bytes.
    let mut frame = FrameBuilder::new(A, MacAddr([1, 0x80, 0xc2, 0, 0, 0]))
        .ether_type(EtherType(38))
        .frame_len(60)
        .to_vec()
        .unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!((headers.network(), headers.key().ether_type), (Network::Llc, EtherType::LLC));
    assert_eq!((headers.l3_offset(), headers.payload_end()), (14, 52));
    for length in [0u16, 2, 47, 1501, 1535] {
        frame[12..14].copy_from_slice(&length.to_be_bytes());
        refused(&frame, Malformed::LlcLength);
    }
    frame.resize(14 + 1535, 0);
    refused(&with(frame.clone(), 12, &1501u16.to_be_bytes()), Malformed::LlcLength);
    assert!(parse(&with(frame, 12, &1500u16.to_be_bytes())).is_ok());
}

#[test]
fn fragments_of_ipv4() {
    let first = parse(&v4().udp(1, 2).fragment(9, 0, true).payload(&[0; 16]).to_vec().unwrap()).unwrap();
    assert_eq!((first.key().fragment, first.key().source_port), (Fragment::First, 1));
    let middle = parse(&v4().udp(1, 2).fragment(9, 3, true).payload(&[0; 16]).to_vec().unwrap()).unwrap();
    assert_eq!(
        (middle.key().fragment, middle.key().source_port, middle.transport()),
        (Fragment::Later, 0, Transport::None)
    );
    assert_eq!((middle.l4_offset(), middle.payload_offset()), (None, 34));
    assert_eq!(middle.five_tuple().unwrap().protocol, IpProto::UDP);
    let last = v4().udp(1, 2).fragment(9, 3, false).payload(&[0; 16]).to_vec().unwrap();
    assert_eq!(parse(&last).unwrap().key().fragment, Fragment::Later);
    // The UDP length is that of the whole datagram, beyond the first fragment.
    let frame = v4().udp(1, 2).fragment(9, 0, true).payload(&[0; 16]).to_vec().unwrap();
    let first = parse(&with(frame, 38, &4000u16.to_be_bytes())).unwrap();
    assert_eq!(first.key().fragment, Fragment::First);

    let end = |bytes| v4().fragment(9, 8189, false).payload(&[0; 16][..bytes]).to_vec().unwrap();
    assert!(parse(&end(3)).is_ok());
    refused(&end(4), Malformed::FragmentTooLong);
    let over = v4().protocol(IpProto::TCP).fragment(9, 1, false).payload(&[0; 16]).to_vec().unwrap();
    refused(&over, Malformed::FragmentOverTcpFlags);
    // RFC 1858: a first fragment that ends before the TCP flags.
    let tiny = v4().protocol(IpProto::TCP).fragment(9, 0, true).payload(&[0; 8]).to_vec().unwrap();
    refused(&tiny, Malformed::TcpTruncated);
}

#[test]
fn fragments_of_ipv6() {
    let first = v6().udp(1, 2).fragment(9, 0, true).payload(&[0; 16]).to_vec().unwrap();
    let headers = parse(&first).unwrap();
    assert_eq!(
        (headers.key().fragment, headers.key().source_port, headers.l4_offset()),
        (Fragment::First, 1, Some(62))
    );
    let later = parse(&v6().udp(1, 2).fragment(9, 2, false).payload(&[0; 16]).to_vec().unwrap()).unwrap();
    assert_eq!(
        (later.key().fragment, later.key().source_port, later.l4_offset()),
        (Fragment::Later, 0, None)
    );
    assert_eq!((later.key().protocol, later.payload_offset()), (IpProto::UDP, 62));
    // RFC 6946: an atomic fragment.
    let atomic = parse(&v6().udp(1, 2).fragment(9, 0, false).to_vec().unwrap()).unwrap();
    assert_eq!((atomic.key().fragment, atomic.transport()), (Fragment::Whole, Transport::Udp));
    let end = |bytes| v6().fragment(9, 8191, false).payload(&[0; 16][..bytes]).to_vec().unwrap();
    assert!(parse(&end(7)).is_ok());
    refused(&end(8), Malformed::FragmentTooLong);
    let over = v6().protocol(IpProto::TCP).fragment(9, 1, false).payload(&[0; 16]).to_vec().unwrap();
    refused(&over, Malformed::FragmentOverTcpFlags);
}

#[test]
fn extension_headers_are_walked() {
    let options = [60, 0, 1, 4, 0, 0, 0, 0];
    let routing = [51, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let destination = [43, 0, 1, 4, 0, 0, 0, 0];
    let authentication = [17, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0xaa, 0xaa, 0xaa, 0xaa];
    let frame = extended(IpProto::HOP_BY_HOP, &[&options, &destination, &routing, &authentication]);
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.five_tuple().unwrap().to_string(), "[2001:db8::1]:12345 > [2001:db8::2]:53 udp");
    assert_eq!(headers.l4_offset(), Some(54 + 8 + 8 + 16 + 16));
}

#[test]
fn extension_headers_are_bounded() {
    let option = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let (more, last) = (option(60), option(17));
    let chain = |count: usize| {
        let mut headers: Vec<&[u8]> = vec![&more; count - 1];
        headers.push(&last);
        extended(IpProto::DESTINATION_OPTIONS, &headers)
    };
    assert_eq!(parse(&chain(MAX_IPV6_EXTENSIONS)).unwrap().key().destination_port, 53);
    refused(&chain(MAX_IPV6_EXTENSIONS + 1), Malformed::Ipv6TooManyExtensions);
    refused(&extended(IpProto::DESTINATION_OPTIONS, &[&option(0), &last]), Malformed::Ipv6HopByHopOrder);
    refused(
        &extended(IpProto::DESTINATION_OPTIONS, &[&[17, 9, 0, 0, 0, 0, 0, 0]]),
        Malformed::Ipv6ExtensionLength,
    );
    refused(&extended(IpProto::AH, &[&[17, 0, 0, 0, 0, 0, 0, 0]]), Malformed::Ipv6ExtensionLength);
    refused(
        &v6().protocol(IpProto::ROUTING).payload(&[17, 0, 0, 0, 0, 0, 0]).to_vec().unwrap(),
        Malformed::Ipv6ExtensionLength,
    );
    // A jumbogram: payload length 0.
    let jumbo = with(extended(IpProto::HOP_BY_HOP, &[&last]), 18, &[0, 0]);
    refused(&jumbo, Malformed::Ipv6ExtensionLength);
}

#[test]
fn malformed_link_layers_are_refused() {
    refused(&[], Malformed::EthernetTruncated);
    refused(&[0; 13], Malformed::EthernetTruncated);
    let frame = v4().vlan(vlan(1)).vlan(vlan(2)).udp(1, 2).to_vec().unwrap();
    for length in [14, 17, 18, 21] {
        refused(&frame[..length], Malformed::VlanTruncated);
    }
    refused(&with(frame.clone(), 14, &[0x0f, 0xff]), Malformed::VlanReserved);
    refused(&with(frame, 18, &[0xff, 0xff]), Malformed::VlanReserved);
}

#[test]
fn malformed_ip_headers_are_refused() {
    let frame = v4().udp(1, 2).to_vec().unwrap();
    refused(&frame[..33], Malformed::Ipv4Truncated);
    refused(&with(frame.clone(), 14, &[0x65]), Malformed::Ipv4Version);
    refused(&with(frame.clone(), 14, &[0x44]), Malformed::Ipv4HeaderLength);
    refused(&with(frame.clone(), 14, &[0x48]), Malformed::Ipv4HeaderLength);
    refused(&with(frame.clone(), 16, &[0, 19]), Malformed::Ipv4HeaderLength);
    refused(&with(frame.clone(), 16, &[0, 29]), Malformed::Ipv4BeyondFrame);
    refused(&frame[..41], Malformed::Ipv4BeyondFrame);
    let frame = v6().udp(1, 2).to_vec().unwrap();
    refused(&frame[..53], Malformed::Ipv6Truncated);
    refused(&with(frame.clone(), 14, &[0x40]), Malformed::Ipv6Version);
    refused(&with(frame.clone(), 18, &[0, 9]), Malformed::Ipv6BeyondFrame);
    refused(&frame[..61], Malformed::Ipv6BeyondFrame);
    for place in [22, 38] {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        refused(&with(frame.clone(), place, &mapped), Malformed::Ipv6MappedAddress);
    }
}

#[test]
fn malformed_transport_headers_are_refused() {
    let of = |protocol, payload: &[u8]| v4().protocol(protocol).payload(payload).to_vec().unwrap();
    refused(&of(IpProto::TCP, &[0; 19]), Malformed::TcpTruncated);
    refused(&of(IpProto::TCP, &with(vec![0; 20], 12, &[0x40])), Malformed::TcpDataOffset);
    refused(&of(IpProto::TCP, &with(vec![0; 20], 12, &[0x60])), Malformed::TcpDataOffset);
    refused(&of(IpProto::UDP, &[0; 7]), Malformed::UdpTruncated);
    refused(&of(IpProto::UDP, &[0, 1, 0, 2, 0, 7, 0, 0]), Malformed::UdpLength);
    refused(&of(IpProto::UDP, &[0, 1, 0, 2, 0, 9, 0, 0]), Malformed::UdpLength);
    refused(&of(IpProto::SCTP, &[0; 11]), Malformed::SctpTruncated);
    refused(&of(IpProto::ICMP, &[0; 7]), Malformed::IcmpTruncated);
    refused(&v6().protocol(IpProto::ICMPV6).payload(&[0; 7]).to_vec().unwrap(), Malformed::Icmpv6Truncated);
}

#[test]
fn a_prefix_is_checked_against_the_length_of_the_frame() {
    let frame = v4().tcp(80, 1234, TcpFlags::ACK).frame_len(1514).to_vec().unwrap();
    assert_eq!(parse_prefix(&frame[..64], frame.len()), parse(&frame));
    assert_eq!(parse_prefix(&frame[..64], 64), Err(Malformed::Ipv4BeyondFrame));
    assert_eq!(parse_prefix(&frame[..53], frame.len()), Err(Malformed::BeyondPrefix));
    // Bytes after the end of the frame do not count.
    assert_eq!(parse_prefix(&frame, 100), Err(Malformed::Ipv4BeyondFrame));
}
