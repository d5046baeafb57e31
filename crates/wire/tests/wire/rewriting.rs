// SPDX-License-Identifier: Apache-2.0
//! Compares rewritten and built frames, and their checksums, with etherparse.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use netvm_wire::checksum::{self, BadChecksum};
use netvm_wire::rewrite::{TtlError, VlanError, decrement_ttl, push_vlan, set_vlan, strip_vlan};
use netvm_wire::{BuildError, EtherType, FrameBuilder, IpProto, MacAddr, TcpFlags, Transport, VlanId, parse};
use proptest::collection::vec;
use proptest::prelude::*;

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

/// The checksums that etherparse computes for a frame: IPv4 header and transport.
fn computed(frame: &[u8]) -> (Option<u16>, Option<u16>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let transport = packet.transport.as_ref();
    match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            let sum = transport.and_then(|transport| match transport {
                TransportSlice::Tcp(tcp) => tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).ok(),
                TransportSlice::Udp(udp) => udp.to_header().calc_checksum_ipv4(&header, udp.payload()).ok(),
                TransportSlice::Icmpv4(icmp) => Some(icmp.icmp_type().calc_checksum(icmp.payload())),
                _ => None,
            });
            (Some(header.calc_header_checksum()), sum)
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            let sum = transport.and_then(|transport| match transport {
                TransportSlice::Tcp(tcp) => tcp.to_header().calc_checksum_ipv6(&header, tcp.payload()).ok(),
                TransportSlice::Udp(udp) => udp.to_header().calc_checksum_ipv6(&header, udp.payload()).ok(),
                TransportSlice::Icmpv6(icmp) => {
                    icmp.icmp_type().calc_checksum(header.source, header.destination, icmp.payload()).ok()
                }
                _ => None,
            });
            (None, sum)
        }
        NetSlice::Arp(_) => (None, None),
    }
}

/// The checksums stored in a frame.
fn written(frame: &[u8]) -> (Option<u16>, Option<u16>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let header = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => Some(ip.header().header_checksum()),
        _ => None,
    };
    let transport = packet.transport.as_ref().and_then(|transport| match transport {
        TransportSlice::Tcp(tcp) => Some(tcp.checksum()),
        TransportSlice::Udp(udp) => Some(udp.checksum()),
        TransportSlice::Icmpv4(icmp) => Some(icmp.checksum()),
        TransportSlice::Icmpv6(icmp) => Some(icmp.checksum()),
        TransportSlice::Igmp(_) => None,
    });
    (header, transport)
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    let builder = (any::<bool>(), 0u8..4, any::<(u16, u16)>(), 1u8..=255, 0u8..64, any::<bool>());
    (builder, vec(any::<u8>(), 0..100), vec(any::<u8>(), 16), vec(any::<u8>(), 16)).prop_map(
        |((is_v6, kind, ports, ttl, dscp, tagged), payload, source, destination)| {
            let v6 = |bytes: &[u8]| std::net::IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap());
            let v4 = |bytes: &[u8]| std::net::IpAddr::from(<[u8; 4]>::try_from(&bytes[..4]).unwrap());
            let ip = if is_v6 { (v6(&source), v6(&destination)) } else { (v4(&source), v4(&destination)) };
            let builder = FrameBuilder::new(A, B).ip(ip.0, ip.1).ttl(ttl).dscp(dscp).payload(&payload);
            let builder = if tagged { builder.vlan(vlan(5)) } else { builder };
            let builder = match kind {
                0 => builder.udp(ports.0, ports.1),
                1 => builder.tcp(ports.0, ports.1, TcpFlags::ACK).numbers(u32::from(ports.0), 9),
                2 => builder.echo(false, ports.0, ports.1),
                _ => builder.echo(true, ports.0, ports.1),
            };
            builder.to_vec().unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn built_frames_have_the_checksums_that_etherparse_computes(frame in packet()) {
        prop_assert_eq!(written(&frame), computed(&frame));
        let headers = parse(&frame).unwrap();
        prop_assert_eq!(checksum::verify(&frame, &headers), Ok(()));
        let mut filled = frame.clone();
        checksum::fill(&mut filled, &headers).unwrap();
        prop_assert_eq!(filled, frame);
    }

    #[test]
    fn every_flipped_bit_is_detected(frame in packet(), place in any::<prop::sample::Index>(), bit in 0u8..8) {
        let headers = parse(&frame).unwrap();
        let l4 = headers.l4_offset().unwrap();
        // No checksum covers the version or the IPv6 header.
        let start = if headers.key().source.is_v4() { headers.l3_offset() + 1 } else { l4 };
        let mut wrong = frame.clone();
        let place = start + place.index(frame.len() - start);
        wrong[place] ^= 1 << bit;
        let expected = if place < l4 { BadChecksum::Ipv4Header } else { BadChecksum::Transport };
        let none = headers.transport() == Transport::Udp && wrong[l4 + 6..l4 + 8] == [0, 0];
        prop_assert!(none || checksum::verify(&wrong, &headers) == Err(expected));
    }

    #[test]
    fn decrementing_the_ttl_keeps_the_checksum_valid(frame in packet()) {
        let headers = parse(&frame).unwrap();
        let mut hop = frame.clone();
        let field = headers.l3_offset() + if headers.key().source.is_v4() { 8 } else { 7 };
        match decrement_ttl(&mut hop, &headers) {
            Ok(left) => {
                prop_assert_eq!((left, hop[field]), (frame[field] - 1, frame[field] - 1));
                prop_assert_eq!(checksum::verify(&hop, &headers), Ok(()));
                prop_assert_eq!(written(&hop).0, computed(&hop).0);
            }
            Err(error) => {
                prop_assert_eq!((error, frame[field]), (TtlError::Expired, 1));
                prop_assert_eq!(hop, frame);
            }
        }
    }

    /// Uses the headers of one frame with the bytes of another: shared memory can change between parsing and rewriting.
    #[test]
    fn nothing_panics_on_other_bytes(frame in packet(), mut other in vec(any::<u8>(), 0..120)) {
        let headers = parse(&frame).unwrap();
        let _ = checksum::verify(&other, &headers);
        let _ = checksum::fill(&mut other, &headers);
        let _ = decrement_ttl(&mut other, &headers);
        let _ = headers.payload(&other);
        let _ = set_vlan(&mut other, 4, vlan(1));
        let _ = strip_vlan(&mut other, 0);
    }

    #[test]
    fn push_and_strip_restore_the_frame(frame in packet(), room in 4usize..40, id in 1u16..4095) {
        let mut buffer = vec![0xcc; room];
        buffer.extend(&frame);
        let start = push_vlan(&mut buffer, room, EtherType::SERVICE_VLAN, vlan(id)).unwrap();
        prop_assert_eq!(start, room - 4);
        let tagged = parse(&buffer[start..]).unwrap();
        let before = parse(&frame).unwrap();
        prop_assert_eq!(tagged.vlan(), Some(vlan(id)));
        prop_assert_eq!((tagged.key().inner_vlan, tagged.five_tuple()), (before.vlan(), before.five_tuple()));
        let start = strip_vlan(&mut buffer, start).unwrap();
        prop_assert_eq!(&buffer[start..], &frame[..]);
    }
}

#[test]
fn wrong_and_missing_checksums_are_reported() {
    let check = |frame: &[u8]| checksum::verify(frame, &parse(frame).unwrap());
    let mut frame = v4().udp(1, 2).payload(b"data").to_vec().unwrap();
    frame[24] ^= 1;
    assert_eq!(check(&frame), Err(BadChecksum::Ipv4Header));
    frame[24] ^= 1;
    frame[43] ^= 1;
    assert_eq!(check(&frame), Err(BadChecksum::Transport));
    frame[40..42].fill(0);
    assert_eq!(check(&frame), Ok(()));
    let mut frame = v6().udp(1, 2).payload(b"data").to_vec().unwrap();
    frame[60..62].fill(0);
    assert_eq!(check(&frame), Err(BadChecksum::Missing));
    let headers = parse(&frame).unwrap();
    assert_eq!(checksum::verify(&frame[..65], &headers), Err(BadChecksum::FrameTooShort));
    assert_eq!(checksum::fill(&mut frame[..65], &headers), Err(BadChecksum::FrameTooShort));
    // No checksum can be computed for a fragment.
    assert_eq!(check(&v4().udp(1, 2).fragment(1, 0, true).payload(&[1; 8]).to_vec().unwrap()), Ok(()));
}

#[test]
fn a_computed_udp_checksum_is_never_zero() {
    let sum_of = |identifier: u16| {
        let frame = v4().udp(identifier, 0).to_vec().unwrap();
        u16::from_be_bytes([frame[40], frame[41]])
    };
    let sums: Vec<u16> = (0..=u16::MAX).map(sum_of).collect();
    assert!(sums.contains(&0xffff) && !sums.contains(&0));
}

#[test]
fn expired_and_non_ip_packets_are_refused() {
    let mut frame = v4().ttl(1).udp(1, 2).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!(decrement_ttl(&mut frame, &headers), Err(TtlError::Expired));
    assert_eq!(decrement_ttl(&mut frame[..20], &headers), Err(TtlError::FrameTooShort));
    let mut frame =
        FrameBuilder::new(A, B).arp_request([1, 2, 3, 4].into(), [1, 2, 3, 5].into()).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    assert_eq!(decrement_ttl(&mut frame, &headers), Err(TtlError::NotIp));
}

#[test]
fn set_vlan_tags_and_retags_frames() {
    let frame = v4().udp(1, 2).to_vec().unwrap();
    let mut buffer = [vec![0; 4], frame.clone()].concat();
    let start = set_vlan(&mut buffer, 4, vlan(9)).unwrap();
    assert_eq!((start, parse(&buffer).unwrap().vlan()), (0, Some(vlan(9))));
    // An existing tag keeps its priority.
    buffer[14] |= 0xf0;
    assert_eq!(set_vlan(&mut buffer, 0, vlan(0xabc)), Ok(0));
    assert_eq!(buffer[12..18], [0x81, 0, 0xfa, 0xbc, 8, 0]);

    let mut buffer = [vec![0; 3], frame.clone()].concat();
    assert_eq!(set_vlan(&mut buffer, 3, vlan(9)), Err(VlanError::NoHeadroom(3)));
    assert_eq!(buffer[3..], frame);
    assert_eq!(strip_vlan(&mut buffer, 3), Ok(3));
    assert_eq!(set_vlan(&mut [0; 20], 7, vlan(9)), Err(VlanError::FrameTooShort));
    assert_eq!(set_vlan(&mut [0; 20], usize::MAX, vlan(9)), Err(VlanError::FrameTooShort));
}

#[test]
fn unbuildable_frames_are_refused() {
    let builder = v4().udp(1, 2).payload(b"data");
    let mut buffer = [0xff; 45];
    assert_eq!(builder.write(&mut buffer), Err(BuildError::BufferTooSmall { need: 46, have: 45 }));
    let mut buffer = [0xff; 47];
    assert_eq!(builder.write(&mut buffer), Ok(46));
    assert_eq!((buffer[..46].to_vec(), buffer[46]), (builder.to_vec().unwrap(), 0xff));
    assert_eq!(v4().udp(1, 2).frame_len(14 + 65_535).to_vec().map(|frame| frame.len()), Ok(65_549));
    assert_eq!(v4().udp(1, 2).frame_len(14 + 65_536).to_vec(), Err(BuildError::TooLong(65_536)));
    let (one, other) = ([10, 0, 0, 1].into(), "::1".parse().unwrap());
    assert_eq!(FrameBuilder::new(A, B).ip(one, other).to_vec(), Err(BuildError::Families(one, other)));
    assert_eq!(FrameBuilder::new(A, B).udp(1, 2).to_vec(), Err(BuildError::NoAddresses));
    assert_eq!(v4().vlan(vlan(1)).vlan(vlan(2)).vlan(vlan(3)).to_vec(), Err(BuildError::VlanTags));
    assert_eq!(v4().protocol(IpProto::GRE).frame_len(60).size(), 60);
}
