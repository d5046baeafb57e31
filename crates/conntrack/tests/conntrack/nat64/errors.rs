// SPDX-License-Identifier: Apache-2.0
//! ICMP errors, compared with errors that are built in the other family.

use netvm_conntrack::nat64::Untranslatable;
use netvm_wire::{IpProto, TcpFlags, checksum, parse};
use proptest::prelude::*;

use super::headers::{builder, with_fragment_flags};
use super::{apply, counterpart};

const ETHERNET: usize = 14;

/// An error to the host or to the server about a packet, which follows the header up to this length.
fn error(is_v4: bool, to_host: bool, header: [u8; 6], about: &[u8]) -> Vec<u8> {
    let [kind, code, rest @ ..] = header;
    let message = [&[kind, code, 0, 0][..], &rest, about].concat();
    let protocol = if is_v4 { IpProto::ICMP } else { IpProto::ICMPV6 };
    let mut frame = builder(is_v4, !to_host).protocol(protocol).payload(&message).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    checksum::fill(&mut frame, &headers).unwrap();
    with_fragment_flags(frame)
}

/// A packet that an error is about, without its Ethernet header.
fn about([is_v4, from_host]: [bool; 2], kind: u8, ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let built = builder(is_v4, from_host).payload(data);
    let built = match kind {
        0 => built.udp(ports[0], ports[1]),
        1 => built.tcp(ports[0], ports[1], TcpFlags::ACK),
        _ => built.echo(!from_host, ports[0], 7),
    };
    with_fragment_flags(built.to_vec().unwrap()).split_off(ETHERNET)
}

/// The tables of RFC 7915 section 4.2: what comes from IPv4, and what it becomes.
const TO_V6: [([u8; 6], Option<[u8; 6]>); 31] = [
    ([3, 0, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 1, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 2, 0, 0, 0, 0], Some([4, 1, 0, 0, 0, 6])),
    ([3, 3, 0, 0, 0, 0], Some([1, 4, 0, 0, 0, 0])),
    ([3, 4, 0, 0, 0x05, 0xdc], Some([2, 0, 0, 0, 0x05, 0xf0])),
    // Less than IPv6 can do: hosts do not go below 1280.
    ([3, 4, 0, 0, 0x02, 0x40], Some([2, 0, 0, 0, 0x05, 0x00])),
    ([3, 5, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 6, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 7, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 8, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 9, 0, 0, 0, 0], Some([1, 1, 0, 0, 0, 0])),
    ([3, 10, 0, 0, 0, 0], Some([1, 1, 0, 0, 0, 0])),
    ([3, 11, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 12, 0, 0, 0, 0], Some([1, 0, 0, 0, 0, 0])),
    ([3, 13, 0, 0, 0, 0], Some([1, 1, 0, 0, 0, 0])),
    ([3, 14, 0, 0, 0, 0], None),
    ([3, 15, 0, 0, 0, 0], Some([1, 1, 0, 0, 0, 0])),
    ([3, 16, 0, 0, 0, 0], None),
    ([4, 0, 0, 0, 0, 0], None),
    ([5, 1, 0, 0, 0, 0], None),
    ([11, 0, 0, 0, 0, 0], Some([3, 0, 0, 0, 0, 0])),
    ([11, 1, 0, 0, 0, 0], Some([3, 1, 0, 0, 0, 0])),
    ([12, 0, 0, 0, 0, 0], Some([4, 0, 0, 0, 0, 0])),
    ([12, 0, 1, 0, 0, 0], Some([4, 0, 0, 0, 0, 1])),
    ([12, 0, 3, 0, 0, 0], Some([4, 0, 0, 0, 0, 4])),
    ([12, 2, 8, 0, 0, 0], Some([4, 0, 0, 0, 0, 7])),
    ([12, 0, 9, 0, 0, 0], Some([4, 0, 0, 0, 0, 6])),
    ([12, 0, 15, 0, 0, 0], Some([4, 0, 0, 0, 0, 8])),
    ([12, 0, 16, 0, 0, 0], Some([4, 0, 0, 0, 0, 24])),
    ([12, 0, 10, 0, 0, 0], None),
    ([12, 1, 0, 0, 0, 0], None),
];

/// The tables of section 5.2.
const TO_V4: [([u8; 6], Option<[u8; 6]>); 24] = [
    ([1, 0, 0, 0, 0, 0], Some([3, 1, 0, 0, 0, 0])),
    ([1, 1, 0, 0, 0, 0], Some([3, 10, 0, 0, 0, 0])),
    ([1, 2, 0, 0, 0, 0], Some([3, 1, 0, 0, 0, 0])),
    ([1, 3, 0, 0, 0, 0], Some([3, 1, 0, 0, 0, 0])),
    ([1, 4, 0, 0, 0, 0], Some([3, 3, 0, 0, 0, 0])),
    ([1, 5, 0, 0, 0, 0], None),
    ([2, 0, 0, 0, 0x05, 0x78], Some([3, 4, 0, 0, 0x05, 0x64])),
    ([2, 0, 0, 2, 0, 0], Some([3, 4, 0, 0, 0xff, 0xff])),
    ([2, 0, 0, 0, 0, 0], Some([3, 4, 0, 0, 0, 68])),
    ([3, 0, 0, 0, 0, 0], Some([11, 0, 0, 0, 0, 0])),
    ([3, 1, 0, 0, 0, 0], Some([11, 1, 0, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 0], Some([12, 0, 0, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 1], Some([12, 0, 1, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 2], None),
    ([4, 0, 0, 0, 0, 5], Some([12, 0, 2, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 6], Some([12, 0, 9, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 7], Some([12, 0, 8, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 23], Some([12, 0, 12, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 39], Some([12, 0, 16, 0, 0, 0])),
    ([4, 0, 0, 0, 0, 40], None),
    ([4, 0, 1, 0, 0, 0], None),
    ([4, 1, 0, 0, 0, 6], Some([3, 2, 0, 0, 0, 0])),
    ([4, 2, 0, 0, 0, 6], None),
    ([100, 0, 0, 0, 0, 0], None),
];

#[test]
fn errors_become_what_the_tables_say() {
    for (to_v4, table) in [(false, &TO_V6[..]), (true, &TO_V4[..])] {
        for (old, new) in table {
            let about = |is_v4| about([is_v4, !to_v4], 0, [1000, 53], b"payload");
            let expected = new.map(|header| error(to_v4, !to_v4, header, &about(to_v4)));
            let translated = apply(&error(!to_v4, !to_v4, *old, &about(!to_v4)), &counterpart(to_v4, None));
            assert_eq!(translated, expected.ok_or(Untranslatable::IcmpType), "{old:?}");
        }
    }
}

/// RFC 7915 section 4.2: the greatest plateau below the length of the packet that was too long.
#[test]
fn a_router_without_an_mtu_gets_a_plateau() {
    for (length, mtu) in [(1500, 1512_u16), (1492, 1280), (2003, 2022), (65_535, 32_020), (40, 1280)] {
        let mut packet = about([true, true], 0, [1000, 53], b"payload");
        packet[2..4].copy_from_slice(&u16::to_be_bytes(length));
        let new = apply(&error(true, true, [3, 4, 0, 0, 0, 0], &packet), &counterpart(false, None)).unwrap();
        assert_eq!(new[58..62], u32::from(mtu).to_be_bytes(), "{length}");
    }
}

#[test]
fn the_mtu_of_fragments_leaves_room_for_their_header() {
    let fragment = builder(false, false).fragment(5, 0, true).udp(53, 1000).payload(&[7; 80]);
    let about = &fragment.to_vec().unwrap()[ETHERNET..];
    let new = apply(&error(false, false, [2, 0, 0, 0, 0x05, 0x78], about), &counterpart(true, None)).unwrap();
    assert_eq!(new[38..42], [0, 0, 0x05, 0x5c]);
    assert_eq!(checksum::verify(&new, &parse(&new).unwrap()), Ok(()));
    let about_fragment = &new[42..62];
    assert_eq!(about_fragment[4..8], [0, 5, 0x20, 0]);
}

#[test]
fn errors_about_errors_and_about_cut_headers_are_refused() {
    for to_v4 in [false, true] {
        let kind = if to_v4 { 1 } else { 3 };
        let inner = about([!to_v4, !to_v4], 0, [1000, 53], b"payload");
        let other = &error(!to_v4, to_v4, [kind, 0, 0, 0, 0, 0], &inner)[ETHERNET..];
        let refused = apply(&error(!to_v4, !to_v4, [kind, 0, 0, 0, 0, 0], other), &counterpart(to_v4, None));
        assert_eq!(refused, Err(Untranslatable::ErrorAboutError));
        for length in [0, 1, 19] {
            let cut = error(!to_v4, !to_v4, [kind, 0, 0, 0, 0, 0], &inner[..length]);
            assert_eq!(apply(&cut, &counterpart(to_v4, None)), Err(Untranslatable::Malformed), "{length}");
        }
    }
}

/// RFC 4884: the packet that an error is about ends where extensions begin.
#[test]
fn extensions_of_errors_stay() {
    const EXTENSION: [u8; 12] = [0x20, 0, 0xf4, 0x2d, 0, 8, 1, 1, 0, 0x01, 0x81, 0x01];
    for (to_v4, about_length) in [(false, 128), (false, 132), (true, 128), (true, 144)] {
        let data = vec![5; 200];
        let cut = |is_v4: bool, length: usize| {
            let about = about([is_v4, !to_v4], 0, [1000, 53], &data);
            about[..length].to_vec()
        };
        let (kind, units, place) = if to_v4 { ([1, 0], 8, 2) } else { ([3, 1], 4, 3) };
        let mut header = [kind[0], kind[1], 0, 0, 0, 0];
        header[place] = (about_length / units) as u8;
        let old = error(!to_v4, !to_v4, header, &[&cut(!to_v4, about_length)[..], &EXTENSION].concat());
        let longer = if to_v4 { about_length - 20 } else { about_length + 20 };
        let padded = longer.max(128).next_multiple_of(if to_v4 { 4 } else { 8 });
        let mut about = cut(to_v4, longer);
        about.resize(padded, 0);
        let header =
            if to_v4 { [3, 1, 0, (padded / 4) as u8, 0, 0] } else { [1, 0, (padded / 8) as u8, 0, 0, 0] };
        let expected = error(to_v4, !to_v4, header, &[&about[..], &EXTENSION].concat());
        assert_eq!(apply(&old, &counterpart(to_v4, None)), Ok(expected), "{to_v4} {about_length}");
    }
}

proptest! {
    #[test]
    fn any_error_is_as_if_it_was_built_in_the_other_family(
        kind in 0u8..3, to_v4: bool, from: [u16; 2], to: [u16; 2], data in prop::collection::vec(any::<u8>(), 0..300),
        at_hand in 8usize..300,
    ) {
        // Half of a checksum is not adjusted.
        prop_assume!(kind != 1 || at_hand != 17);
        // An echo has one number in both places.
        let swapped = |[a, b]: [u16; 2]| [b, a];
        let frame = |is_v4: bool, ports: [u16; 2]| {
            let mut packet = about([is_v4, !to_v4], kind, swapped(ports), &data);
            let header = if is_v4 { 20 } else { 40 };
            packet.truncate(header + at_hand);
            error(is_v4, !to_v4, if is_v4 { [3, 1, 0, 0, 0, 0] } else { [1, 0, 0, 0, 0, 0] }, &packet)
        };
        let to = if kind == 2 { [to[1], to[1]] } else { to };
        let from = if kind == 2 { [from[1], from[1]] } else { from };
        let new = apply(&frame(!to_v4, from), &counterpart(to_v4, Some(to)));
        prop_assert_eq!(new, Ok(frame(to_v4, to)));
    }
}
