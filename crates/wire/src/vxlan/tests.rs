// SPDX-License-Identifier: Apache-2.0
//! Property tests, with etherparse as the reference.

use proptest::prelude::*;

use super::*;
use crate::{FrameBuilder, MacAddr, TcpFlags, checksum, parse};

fn outer(v6: bool, vni: u32) -> Outer {
    let [source, destination] = match v6 {
        true => ["2001:db8::1", "2001:db8::2"].map(|it| it.parse::<std::net::IpAddr>().unwrap().into()),
        false => ["10.0.0.1", "10.0.0.2"].map(|it| it.parse::<std::net::IpAddr>().unwrap().into()),
    };
    let vni = Vni::new(vni).unwrap();
    Outer { source, destination, ports: [50_000, UDP_PORT], vni, tos: 0xb9, ttl: 63, may_fragment: false }
}

/// The reference: etherparse reads what was written.
fn read(packet: &[u8]) -> (Vec<u8>, u8, u8, u16, u16) {
    let sliced = etherparse::SlicedPacket::from_ip(packet).unwrap();
    let (tos, ttl) = match sliced.net.unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            assert!(ip.dont_fragment);
            (ip.dscp.value() << 2 | ip.ecn.value(), ip.time_to_live)
        }
        etherparse::NetSlice::Ipv6(ip) => (ip.header().traffic_class(), ip.header().hop_limit()),
        other => panic!("{other:?}"),
    };
    let Some(etherparse::TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
    (udp.payload().to_vec(), tos, ttl, udp.source_port(), udp.destination_port())
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_by_a_slow_parser(
        v6: bool, number in 0u32..=Vni::MAX, inner in prop::collection::vec(any::<u8>(), 14..1600),
    ) {
        let mut packet = vec![0; V6_HEADERS];
        let outer = outer(v6, number);
        let length = outer.write(inner.len(), &mut packet).unwrap();
        packet.truncate(length);
        packet.extend(&inner);
        let (payload, tos, ttl, source, destination) = read(&packet);
        prop_assert_eq!((tos, ttl, source, destination), (0xb9, 63, 50_000, UDP_PORT));
        prop_assert_eq!(&payload[..4], &[8, 0, 0, 0][..]);
        prop_assert_eq!(&payload[4..7], &number.to_be_bytes()[1..]);
        prop_assert_eq!(&payload[HEADER..], &inner[..]);
        let found = datagram(&packet).unwrap();
        prop_assert_eq!((found.source, found.destination), (outer.source, outer.destination));
        prop_assert_eq!((found.port, found.is_fragment), (UDP_PORT, false));
        let udp = &packet[found.ip_header..];
        prop_assert_eq!(vni(udp, udp.len()).map(Vni::get), Some(number));
        prop_assert_eq!(vni(udp, udp.len() - 1), None);
    }

    #[test]
    fn a_template_writes_what_every_packet_has(
        own: [u8; 4], number in 0u32..=Vni::MAX, tos: u8, ttl: u8, port: u16, may_fragment: bool, inner: u16,
    ) {
        let outer = Outer { ttl, may_fragment, source: crate::Address::from_v4_octets(own), ..outer(false, number) };
        let template = Template::new(&outer).unwrap();
        let mut headers = [0; V4_HEADERS];
        let outer = Outer { tos, ports: [port, UDP_PORT], ..outer };
        let length = outer.write(inner.into(), &mut headers);
        prop_assert_eq!(template.with(tos, port, inner), length.map(|_| headers));
        prop_assert!(Template::new(&self::outer(true, number)).is_none());
    }

    #[test]
    fn a_part_of_a_segment_has_the_headers_of_a_packet_of_its_own(
        v6: bool, n in 0usize..40, payload in prop::collection::vec(any::<u8>(), 1..1400),
    ) {
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let inner = FrameBuilder::new(a, b).ip("10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap());
        let inner = inner.tcp(1, 2, TcpFlags::ACK).payload(&payload).to_vec().unwrap();
        let (headers, outer) = (54, outer(v6, 7));
        let mut whole = vec![0; outer.length()];
        outer.write(60_000, &mut whole).unwrap();
        whole.extend(&inner);
        let end = outer.length() + headers;
        let sum = !checksum::internet_checksum(&whole[end..]);
        set_part(&mut whole[..end], Part { n, payload: payload.len(), sum });
        // As a frame, of which both layers are well-formed.
        let kind: &[u8] = if v6 { &[0x86, 0xdd] } else { &[8, 0] };
        let frame = [&[2; 12], kind, &whole].concat();
        let parsed = parse(&frame).unwrap();
        prop_assert_eq!(parsed.payload_end(), frame.len());
        prop_assert!(checksum::verify(&frame, &parsed).is_ok());
    }

    #[test]
    fn the_checksum_over_ipv6_is_right_before_and_after_the_inner_one_is_finished(
        payload in prop::collection::vec(any::<u8>(), 0..300), udp: bool,
    ) {
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let inner = FrameBuilder::new(a, b).ip("10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap());
        let inner = if udp { inner.udp(1, 2) } else { inner.tcp(1, 2, TcpFlags::ACK) };
        let inner = inner.payload(&payload).to_vec().unwrap();
        let outer = outer(true, 9);
        let mut front = vec![0; V6_HEADERS];
        outer.write(inner.len(), &mut front).unwrap();
        front.extend(&inner);
        let mut finished = front.clone();
        set_checksum(&mut finished, 0);
        // The inner checksum is unfinished: only the bytes before the inner header of TCP or UDP count, and the
        // complement of its pseudo header's sum.
        let transport = crate::partial::transport(&inner).unwrap();
        let end = V6_HEADERS + usize::from(transport.l2 + transport.l3);
        set_checksum(&mut front[..end], !transport.pseudo_sum);
        prop_assert_eq!(front[46..48].to_vec(), finished[46..48].to_vec());
        let frame = [&[2; 12][..], &[0x86, 0xdd], &front].concat();
        prop_assert!(checksum::verify(&frame, &parse(&frame).unwrap()).is_ok());
    }

    #[test]
    fn any_bytes_are_read_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..90), room in 0usize..200) {
        if let Some(found) = datagram(&bytes) {
            prop_assert!(found.ip_header + UDP <= bytes.len());
            let _ = vni(&bytes[found.ip_header..], room);
        }
        if let Some(place) = TosPlace::of(&bytes) {
            let mut changed = bytes.clone();
            place.set(&mut changed, 0xff);
            prop_assert_eq!(place.get(&changed), 0xff);
            place.set(&mut changed, place.get(&bytes));
        }
    }
}

#[test]
fn headers_that_are_no_vxlan_are_refused() {
    let mut good = vec![0; V4_HEADERS];
    outer(false, 5).write(14, &mut good).unwrap();
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        vni(&packet[V4..], UDP + HEADER + 14)
    };
    assert_eq!(read(&|_| {}), Vni::new(5));
    assert_eq!(read(&|it| it[28] = 0), None, "without the I flag");
    assert_eq!(read(&|it| it[28] |= 4), None, "GPE: the payload may be no frame");
    assert_eq!(read(&|it| it[31] = 1), None, "a reserved bit");
    assert_eq!(read(&|it| it[35] = 1), None, "the last byte");
    assert_eq!(read(&|it| it[25] = 0), None, "a datagram of 0 bytes");
    assert_eq!(read(&|it| it[24] = 9), None, "one that is longer than its packet");
    assert_eq!(vni(&good[V4..], UDP + HEADER + 13), None, "no Ethernet header in it");
    assert_eq!(Vni::new(1 << 24), None);
    let fragment = |flags: u8, offset: u8| {
        let mut packet = good.clone();
        (packet[26 - 20], packet[27 - 20]) = (flags, offset);
        datagram(&packet).map(|it| it.is_fragment)
    };
    assert_eq!([fragment(0x40, 0), fragment(0x20, 0), fragment(0, 3)], [Some(false), Some(true), None]);
}

#[test]
fn congestion_marks_follow_rfc_6040() {
    // Rows: inner Not-ECT, ECT(1), ECT(0), CE; columns: outer the same. Figure 4.
    let expected = [
        [Some(0), Some(0), Some(0), None],
        [Some(1), Some(1), Some(1), Some(3)],
        [Some(2), Some(1), Some(2), Some(3)],
        [Some(3), Some(3), Some(3), Some(3)],
    ];
    for (inner, row) in (0u8..).zip(expected) {
        for (outer, result) in (0u8..).zip(row) {
            let dscp = 0xb8;
            assert_eq!(
                decapsulated_tos(outer, dscp | inner),
                result.map(|ecn| dscp | ecn),
                "{inner} {outer}"
            );
        }
    }
}

#[test]
fn flows_get_the_recommended_source_ports() {
    let ports: std::collections::BTreeSet<u16> = (0..1000u64).map(|n| source_port(n << 40)).collect();
    assert_eq!((ports.first(), ports.len()), (Some(&49_152), 1000));
    assert!((0..64).all(|bit| source_port(1 << bit) >= 49_152));
}
