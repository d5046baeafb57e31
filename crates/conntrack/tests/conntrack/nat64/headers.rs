// SPDX-License-Identifier: Apache-2.0
//! Headers and checksums, compared with packets that are built in the other family.

use netvm_conntrack::nat64::{Front, Original, Untranslatable, translate};
use netvm_wire::{FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId, checksum, parse, partial};
use proptest::prelude::*;

use super::{AT_HAND, HOST, HOST_OUTSIDE, SERVER, SERVER_INSIDE, apply, counterpart};
use crate::rig::between;

/// A builder of packets from the host, or to it, in either family.
pub fn builder(is_v4: bool, from_host: bool) -> FrameBuilder<'static> {
    let [host, server] = if is_v4 { [HOST_OUTSIDE, SERVER] } else { [HOST, SERVER_INSIDE] };
    if from_host { between(host, server) } else { between(server, host) }
}

/// As RFC 7915 section 5.1 wants it: only a long IPv4 packet may not be fragmented.
pub fn with_fragment_flags(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = parse(&frame).unwrap();
    let l3 = headers.l3_offset();
    if headers.key().source.is_v4() && frame.len() - l3 <= 1260 {
        frame[l3 + 6] &= !0x40;
        checksum::fill(&mut frame, &headers).unwrap();
    }
    frame
}

/// Inserts bytes after the fixed header of an IPv6 packet without tags, with this next header.
fn with_extension(frame: &[u8], next: IpProto, extension: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.splice(54..54, extension.iter().copied());
    frame[54] = frame[20];
    frame[20] = next.0;
    let length = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Inserts options into an IPv4 packet without tags.
fn with_options(frame: &[u8], options: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.splice(34..34, options.iter().copied());
    frame[14] += options.len() as u8 / 4;
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    let headers = parse(&frame).unwrap();
    checksum::fill(&mut frame, &headers).unwrap();
    frame
}

proptest! {
    #[test]
    fn any_packet_is_as_if_it_was_built_in_the_other_family(
        kind in 0..4, to_v4: bool, from: [u16; 2], to: [u16; 2], class in 0u8..64, hops in 1u8..255, vlan in 0u16..3,
        payload in prop::collection::vec(any::<u8>(), 0..1300), padding in 0usize..80,
    ) {
        let frame = |is_v4: bool, ports: [u16; 2]| {
            let mut built = builder(is_v4, to_v4).payload(&payload).dscp(class).ttl(hops);
            for tag in 0..vlan {
                built = built.vlan(VlanId::new(tag + 1).unwrap());
            }
            let built = match kind {
                0 => built.udp(ports[0], ports[1]),
                1 => built.tcp(ports[0], ports[1], TcpFlags::ACK),
                2 => built.echo(to_v4, ports[0], 7),
                _ => built.protocol(IpProto::GRE),
            };
            with_fragment_flags(built.to_vec().unwrap())
        };
        let mut padded = frame(!to_v4, from);
        padded.extend(vec![0xaa; padding]);
        let new = apply(&padded, &counterpart(to_v4, Some(to)));
        prop_assert_eq!(new, Ok(frame(to_v4, to)));
        // And back again.
        let back = apply(&frame(to_v4, to), &counterpart(!to_v4, Some(from)));
        let again = back.map(|mut back| {
            // The addresses of `counterpart` are those of the other direction.
            let headers = parse(&back).unwrap();
            prop_assert_eq!(checksum::verify(&back, &headers), Ok(()));
            let at = headers.payload_offset();
            Ok(back.split_off(at))
        });
        let at = parse(&frame(!to_v4, from)).unwrap().payload_offset();
        prop_assert_eq!(again.unwrap()?, frame(!to_v4, from).split_off(at));
    }

    #[test]
    fn fragments_keep_what_they_are(
        to_v4: bool, identification: u16, offset in 0u16..8000, more: bool, payload in prop::collection::vec(any::<u8>(), 24..100),
    ) {
        prop_assume!(more || offset > 0);
        let frame = |is_v4| builder(is_v4, to_v4).fragment(identification, offset, more).protocol(IpProto::GRE);
        let frame = |is_v4| frame(is_v4).payload(&payload).to_vec().unwrap();
        prop_assert_eq!(apply(&frame(!to_v4), &counterpart(to_v4, None)), Ok(frame(to_v4)));
    }
}

/// The whole datagram's length and checksum are in the first fragment.
#[test]
fn the_checksum_of_a_fragmented_datagram_is_adjusted() {
    for to_v4 in [false, true] {
        let fragments = |is_v4: bool, ports: [u16; 2]| {
            let whole = builder(is_v4, to_v4).udp(ports[0], ports[1]).payload(&[9; 64]).to_vec().unwrap();
            let header = parse(&whole).unwrap().l4_offset().unwrap();
            let [a, b] = [0, 4].map(|offset| builder(is_v4, to_v4).fragment(5, offset, offset == 0));
            let first = a.protocol(IpProto::UDP).payload(&whole[header..header + 32]).to_vec().unwrap();
            let last = b.protocol(IpProto::UDP).payload(&whole[header + 32..]).to_vec().unwrap();
            [first, last]
        };
        let (old, new) = (fragments(!to_v4, [1000, 53]), fragments(to_v4, [40_000, 53]));
        for (old, new) in old.iter().zip(new) {
            assert_eq!(apply(old, &counterpart(to_v4, Some([40_000, 53]))), Ok(new));
        }
    }
}

#[test]
fn extension_headers_are_left_out() {
    let plain = builder(false, true).udp(1000, 53).payload(b"payload").to_vec().unwrap();
    let expected = apply(&plain, &counterpart(true, None)).unwrap();
    for next in [IpProto::HOP_BY_HOP, IpProto::DESTINATION_OPTIONS, IpProto::ROUTING] {
        for units in [0, 2] {
            let mut extension = vec![0; 8 + 8 * units];
            (extension[1], extension[2]) = (units as u8, 1);
            let frame = with_extension(&plain, next, &extension);
            assert_eq!(apply(&frame, &counterpart(true, None)).as_ref(), Ok(&expected), "{next}");
        }
    }
    let left = with_extension(&plain, IpProto::ROUTING, &[0, 0, 4, 1, 0, 0, 0, 0]);
    let left = with_extension(&left, IpProto::HOP_BY_HOP, &[0, 0, 1, 4, 0, 0, 0, 0]);
    let error = Err(Untranslatable::RoutingHeader { pointer: 40 + 8 + 3 });
    assert_eq!(apply(&left, &counterpart(true, None)), error);
}

/// RFC 7915 section 5.1.1: a packet that is its only fragment may be fragmented, with its identification.
#[test]
fn an_atomic_fragment_becomes_a_packet_that_may_be_fragmented() {
    let plain = builder(false, true).udp(1000, 53).payload(&[7; 1300]).to_vec().unwrap();
    let frame = with_extension(&plain, IpProto::FRAGMENT, &[0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78]);
    let new = apply(&frame, &counterpart(true, None)).unwrap();
    assert_eq!(new[18..22], [0x56, 0x78, 0, 0]);
    let without = apply(&plain, &counterpart(true, None)).unwrap();
    assert_eq!(without[18..22], [0, 0, 0x40, 0]);
    assert_eq!(new[34..], without[34..]);
}

#[test]
fn options_are_left_out_and_source_routes_refused() {
    let plain = builder(true, false).udp(53, 1000).payload(b"payload").to_vec().unwrap();
    let expected = apply(&plain, &counterpart(false, None));
    for options in [&[1, 1, 1, 0][..], &[7, 7, 4, 0, 0, 0, 0, 0], &[131, 7, 8, 10, 0, 0, 1, 0]] {
        assert_eq!(apply(&with_options(&plain, options), &counterpart(false, None)), expected);
    }
    for kind in [131, 137] {
        let routed = with_options(&plain, &[1, kind, 7, 4, 10, 0, 0, 1]);
        assert_eq!(apply(&routed, &counterpart(false, None)), Err(Untranslatable::SourceRoute));
    }
}

#[test]
fn udp_without_a_checksum_gets_one_in_ipv6() {
    let whole = builder(true, false).udp(53, 1000).payload(b"payload").to_vec().unwrap();
    let mut without = whole.clone();
    without[40..42].fill(0);
    let to_v6 = counterpart(false, Some([53, 40_000]));
    assert_eq!(apply(&without, &to_v6), apply(&whole, &to_v6));
    let first = builder(true, false).fragment(5, 0, true).udp(53, 1000).payload(&[9; 24]).to_vec().unwrap();
    assert_eq!(apply(&first, &to_v6), Err(Untranslatable::NoChecksum));
    // A tunnel may leave it out in IPv6, too (RFC 6936).
    let mut without = builder(false, true).udp(1000, 53).payload(b"payload").to_vec().unwrap();
    without[60..62].fill(0);
    let new = apply(&without, &counterpart(true, None)).unwrap();
    assert_eq!(new[40..42], [0, 0]);
    assert_eq!(checksum::verify(&new, &parse(&new).unwrap()), Ok(()));
}

#[test]
fn partial_checksums_stay_partial() {
    for (to_v4, is_udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let partial = |is_v4: bool, ports: [u16; 2]| {
            let built = builder(is_v4, to_v4).payload(b"payload");
            let built = if is_udp {
                built.udp(ports[0], ports[1])
            } else {
                built.tcp(ports[0], ports[1], TcpFlags::ACK)
            };
            let mut frame = with_fragment_flags(built.to_vec().unwrap());
            let transport = partial::transport(&frame).unwrap();
            let at = usize::from(transport.l2 + transport.l3) + if is_udp { 6 } else { 16 };
            frame[at..at + 2].copy_from_slice(&transport.pseudo_sum.to_be_bytes());
            frame
        };
        let (old, mut front) = (partial(!to_v4, [1, 2]), Front::new());
        let original =
            Original { front: &old[..old.len().min(AT_HAND)], length: old.len(), is_partial: true };
        let translated = translate(&original, &counterpart(to_v4, Some([3, 4])), &mut front).unwrap();
        assert!(translated.is_partial);
        let new = [front.bytes(), &old[translated.replaced..]].concat();
        assert_eq!(new, partial(to_v4, [3, 4]));
    }
}

#[test]
fn what_the_other_family_does_not_have_is_refused() {
    let refuses = |is_v4: bool, protocol: u8, payload: &[u8], why| {
        let frame = builder(is_v4, !is_v4).protocol(IpProto(protocol)).payload(payload).to_vec().unwrap();
        assert_eq!(apply(&frame, &counterpart(!is_v4, None)), Err(why), "{protocol} {payload:?}");
    };
    for protocol in [0, 2, 33, 43, 44, 51, 58, 59, 60, 136] {
        refuses(true, protocol, &[0; 16], Untranslatable::Protocol);
    }
    for protocol in [1, 2, 33, 59, 136] {
        refuses(false, protocol, &[0; 16], Untranslatable::Protocol);
    }
    for kind in [4, 5, 9, 10, 13, 14, 15, 16, 17, 18, 19, 40] {
        let mut about = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        about.extend(&builder(true, true).udp(1, 2).to_vec().unwrap()[14..]);
        refuses(true, 1, &about, Untranslatable::IcmpType);
    }
    for kind in (130..=137).chain([100, 143, 200]) {
        let mut about = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        about.extend(&builder(false, false).udp(1, 2).to_vec().unwrap()[14..]);
        refuses(false, 58, &about, Untranslatable::IcmpType);
    }
    let fragment = builder(true, false).fragment(5, 3, true).protocol(IpProto::ICMP).payload(&[0; 8]);
    let refused = apply(&fragment.to_vec().unwrap(), &counterpart(false, None));
    assert_eq!(refused, Err(Untranslatable::FragmentedIcmp));
    let mut long = builder(false, true).udp(1, 2).payload(&vec![0; 65_487]).to_vec().unwrap();
    long.extend([0; 21]);
    long[18..20].copy_from_slice(&65_516u16.to_be_bytes());
    assert_eq!(apply(&long, &counterpart(true, None)), Err(Untranslatable::TooLong));
    let mac = MacAddr([2; 6]);
    let arp = FrameBuilder::new(mac, mac).arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(apply(&arp.to_vec().unwrap(), &counterpart(true, None)), Err(Untranslatable::Malformed));
    let v4 = builder(true, false).udp(1, 2).to_vec().unwrap();
    assert_eq!(apply(&v4, &counterpart(true, None)), Err(Untranslatable::Address));
}
