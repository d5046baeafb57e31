// SPDX-License-Identifier: Apache-2.0
//! Datagrams for a tunnel end point: as they come, in fragments, and within each other.

use netvm_wire::vxlan::{Outer, TosPlace, V4_HEADERS, datagram, decapsulated_tos, vni};

const UDP_AND_VXLAN: usize = 16;
const ETHERNET: usize = 14;
const V4: usize = 20;
const V6: usize = 40;
/// The extension header of a fragment.
const V6_FRAGMENT: u8 = 44;
/// Most datagrams within each other.
const MAX_DEPTH: usize = 8;

/// Takes the outer headers off a packet that begins with its IP header, and puts the same ones before it again.
pub fn vxlan(data: &[u8]) {
    let Some(found) = datagram(data) else { return };
    let udp = &data[found.ip_header..];
    let Some(network) = vni(udp, udp.len()) else { return };
    let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    assert!(length >= UDP_AND_VXLAN + ETHERNET && length <= udp.len());
    let inner = &udp[UDP_AND_VXLAN..length];
    let ports = [u16::from_be_bytes([udp[0], udp[1]]), found.port];
    let (source, destination) = (found.source, found.destination);
    let outer = Outer { source, destination, ports, vni: network, tos: 0, ttl: 64, may_fragment: true };
    let Some(again) = before(&outer, inner) else {
        assert!(inner.len() > 65_000, "every other one fits");
        return;
    };
    assert_eq!(within(&again, &outer), inner);
    let Some(place) = TosPlace::of(inner) else { return };
    for tos in (0..4).filter_map(|outer| decapsulated_tos(outer, place.get(inner))) {
        let mut marked = inner.to_vec();
        place.set(&mut marked, tos);
        assert_eq!((place.get(&marked), marked.len()), (tos, inner.len()));
    }
    // The bytes of the packet choose where it is cut, and how deep it is nested.
    let choice = usize::from(u16::from_be_bytes([udp[6], udp[7]]));
    fragments_are_refused(&again, choice);
    loops_end(&outer, inner, choice % MAX_DEPTH);
}

fn before(outer: &Outer, inner: &[u8]) -> Option<Vec<u8>> {
    let mut packet = vec![0; outer.length()];
    outer.write(inner.len(), &mut packet)?;
    packet.extend(inner);
    Some(packet)
}

/// The inner frame of a packet that has these headers.
fn within<'a>(packet: &'a [u8], outer: &Outer) -> &'a [u8] {
    let read = datagram(packet).expect("what is written is read");
    let Outer { source, destination, ports, .. } = *outer;
    assert_eq!((read.source, read.destination, read.port), (source, destination, ports[1]));
    assert!(!read.is_fragment);
    let udp = &packet[read.ip_header..];
    assert_eq!(vni(udp, udp.len()), Some(outer.vni));
    &udp[UDP_AND_VXLAN..]
}

/// No part of a packet that was cut on the way is taken for the whole: the first says that it is a part, and the others
/// are no datagrams, whatever they begin with.
fn fragments_are_refused(packet: &[u8], choice: usize) {
    let header = if packet[0] >> 4 == 4 { V4 } else { V6 };
    let payload = &packet[header..];
    // Lengths of all parts but the last one are multiples of eight.
    let cut = (8 + choice % payload.len().max(9)) & !7;
    for (at, part) in [(0, &payload[..cut.min(payload.len())]), (cut, payload.get(cut..).unwrap_or_default())]
    {
        let is_last = at > 0;
        if header == V6 {
            let mut fragment = packet[..V6].to_vec();
            fragment[6] = V6_FRAGMENT;
            fragment[4..6].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            fragment.extend([packet[6], 0]);
            fragment.extend((at as u16 | u16::from(!is_last)).to_be_bytes());
            fragment.extend([0, 0, 0, 1]);
            fragment.extend(part);
            assert_eq!(datagram(&fragment), None);
            continue;
        }
        let mut fragment = [&packet[..V4], part].concat();
        fragment[2..4].copy_from_slice(&((V4 + part.len()) as u16).to_be_bytes());
        let place = (at / 8) as u16 | if is_last { 0 } else { 0x2000 };
        fragment[6..8].copy_from_slice(&place.to_be_bytes());
        match datagram(&fragment) {
            Some(read) => assert!(read.is_fragment && !is_last),
            None => assert!(is_last || part.len() < 8),
        }
    }
}

/// A datagram within datagrams to the same end point gets shorter each time that headers are taken off, and is at last
/// what it was.
fn loops_end(outer: &Outer, innermost: &[u8], depth: usize) {
    let ether_type: [u8; 2] = if outer.destination.is_v4() { [8, 0] } else { [0x86, 0xdd] };
    let mut packet = before(outer, innermost);
    for _ in 0..depth {
        let frame = packet.map(|packet| [&[2; 12][..], &ether_type, &packet].concat());
        packet = frame.and_then(|frame| before(outer, &frame));
    }
    // It may have become too long.
    let Some(packet) = packet else { return };
    let mut rest = &packet[..];
    for _ in 0..depth {
        let frame = within(rest, outer);
        assert!(frame.len() + V4_HEADERS <= rest.len());
        rest = &frame[ETHERNET..];
    }
    assert_eq!(within(rest, outer), innermost);
}
