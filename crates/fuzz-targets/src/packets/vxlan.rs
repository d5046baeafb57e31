//! Datagrams for a tunnel end point.

use netvm_wire::vxlan::{Outer, TosPlace, datagram, decapsulated_tos, vni};

const UDP_AND_VXLAN: usize = 16;

/// Takes the outer headers off a packet that begins with its IP header, and puts the same ones before it again.
pub fn vxlan(data: &[u8]) {
    let Some(found) = datagram(data) else { return };
    let udp = &data[found.ip_header..];
    let Some(network) = vni(udp, udp.len()) else { return };
    let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    assert!(length >= UDP_AND_VXLAN + 14 && length <= udp.len());
    let inner = &udp[UDP_AND_VXLAN..length];
    let ports = [u16::from_be_bytes([udp[0], udp[1]]), found.port];
    let (source, destination) = (found.source, found.destination);
    let outer = Outer { source, destination, ports, vni: network, tos: 0, ttl: 64, may_fragment: true };
    let mut again = vec![0; outer.length()];
    if outer.write(inner.len(), &mut again).is_none() {
        assert!(inner.len() > 65_000, "every other one fits");
        return;
    }
    again.extend(inner);
    let read = datagram(&again).expect("what is written is read");
    assert_eq!((read.source, read.destination, read.port), (source, destination, found.port));
    let udp = &again[read.ip_header..];
    assert_eq!(vni(udp, udp.len()), Some(network));
    let Some(place) = TosPlace::of(inner) else { return };
    for tos in (0..4).filter_map(|outer| decapsulated_tos(outer, place.get(inner))) {
        let mut marked = inner.to_vec();
        place.set(&mut marked, tos);
        assert_eq!((place.get(&marked), marked.len()), (tos, inner.len()));
    }
}
