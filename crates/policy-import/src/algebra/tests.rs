// SPDX-License-Identifier: Apache-2.0
use netvm_wire::{EtherType, FlowKey, TcpFlags};
use proptest::prelude::*;

use super::*;
use netvm_policy::arbitrary::{Generator, matches, port};

pub(crate) const PORTS: [PortId; 4] = [PortId(0), PortId(1), PortId(2), PortId(3)];

/// Matches as imports make them: with an EtherType, addresses of its version, and no repeated values.
pub(crate) fn imported() -> impl Strategy<Value = Match> {
    let kinds = [
        vec![EtherType::IPV4],
        vec![EtherType::IPV6],
        vec![EtherType::IPV4, EtherType::IPV6],
        vec![EtherType::IPV4, EtherType::ARP, EtherType::IPV6],
    ];
    (matches(), prop::sample::select(kinds.to_vec())).prop_filter_map(
        "fits nothing",
        |(mut matches, kinds)| {
            let v4 = kinds[0] == EtherType::IPV4;
            matches.source.retain(|net| net.is_v4() == v4);
            matches.destination.retain(|net| net.is_v4() == v4);
            let addresses = !matches.source.is_empty() || !matches.destination.is_empty();
            matches.ether_type = if addresses { kinds[..1].to_vec() } else { kinds };
            intersect(&Match::default(), &matches)
        },
    )
}

/// A packet with ingress and egress port; half of them are in one of the matches.
pub(crate) type Packet = (PortId, PortId, FlowKey);

pub(crate) fn packets(near: &[Match]) -> impl Strategy<Value = Vec<Packet>> + use<> {
    let cubes: Vec<_> = near.iter().flat_map(|matches| matches.cubes().unwrap_or_default()).collect();
    let key = any::<u64>().prop_map(move |seed| Generator::new(seed).key(&cubes));
    prop::collection::vec((port(), port(), key), 1..64)
}

/// Whether a packet fits; an empty port set means any.
pub(crate) fn fits(matches: &Match, (from, to, key): &Packet) -> bool {
    (matches.from.is_empty() || matches.from.contains(from))
        && (matches.to.is_empty() || matches.to.contains(to))
        && matches.fits_key(key)
}

fn two() -> impl Strategy<Value = (Match, Match, Vec<Packet>)> {
    (imported(), imported()).prop_flat_map(|(a, b)| {
        let packets = packets(&[a.clone(), b.clone()]);
        (Just(a), Just(b), packets)
    })
}

proptest! {
    #[test]
    fn both_means_both((a, b, packets) in two()) {
        let both = intersect(&a, &b);
        for packet in &packets {
            let fit = both.as_ref().is_some_and(|both| fits(both, packet));
            prop_assert_eq!(fit, fits(&a, packet) && fits(&b, packet), "{:?}", packet);
        }
    }

    #[test]
    fn the_difference_is_in_the_first_and_not_the_second((a, b, packets) in two()) {
        let rest = subtract(&a, &b, &PORTS).unwrap();
        for packet in &packets {
            let count = rest.iter().filter(|part| fits(part, packet)).count();
            prop_assert_eq!(count, usize::from(fits(&a, packet) && !fits(&b, packet)), "{:?}", packet);
        }
        prop_assert!(subtract(&a, &a, &PORTS).unwrap().is_empty());
    }

    #[test]
    fn covering_means_that_all_fit((a, b, packets) in two()) {
        prop_assert!(covers(&a, &a));
        prop_assert!(covers(&Match::default(), &a));
        for (a, b) in [(&a, &b), (&a, &intersect(&a, &b).unwrap_or_default())] {
            for packet in packets.iter().filter(|packet| covers(a, b) && fits(b, packet)) {
                prop_assert!(fits(a, packet));
            }
        }
    }

    /// Later fragments have no transport header, and zeros in their keys.
    #[test]
    fn later_fragments_have_no_transport_header((a, _, packets) in two()) {
        let restricted = with_transport_header(a.clone());
        for (from, to, mut key) in packets {
            if key.fragment == Fragment::Later {
                (key.source_port, key.destination_port) = (0, 0);
                (key.icmp_type, key.icmp_code) = (0, 0);
                key.tcp_flags = TcpFlags::empty();
            }
            let packet = (from, to, key);
            let fit = restricted.as_ref().is_some_and(|restricted| fits(restricted, &packet));
            prop_assert_eq!(fit, fits(&a, &packet) && key.fragment != Fragment::Later);
        }
    }

    #[test]
    fn other_masks_are_the_complement(
        masks in prop::collection::vec((any::<u64>(), 0u32..48, any::<bool>()), 1..4),
        mac: u64, flags: (u8, u8), byte: u8,
    ) {
        let masks: Vec<_> = masks.into_iter().map(|(value, bits, prefix)| {
            let mask = if prefix { MAC_BITS << bits } else { value.rotate_left(bits) & 0x0100_8000_0007 } & MAC_BITS;
            Masked::<u64>::new(value, mask)
        }).collect();
        let mac = mac & MAC_BITS;
        let others = other_macs(&masks).unwrap();
        for mac in masks.iter().map(|mask| mask.value ^ (mac & 7)).chain([mac]) {
            let fits = masks.iter().any(|mask| mask.contains(mac));
            prop_assert_eq!(others.iter().any(|other| other.contains(mac)), !fits);
        }
        let flags = Masked::<u8>::new(flags.0, flags.1);
        let others = other_flags(flags).filter(|other| other.contains(byte)).count();
        prop_assert_eq!(others, usize::from(!flags.contains(byte)));
    }
}

#[test]
fn ether_types_have_no_complement_without_a_list_of_all() {
    let arp = Match { ether_type: vec![EtherType::ARP], ..Match::default() };
    assert_eq!(subtract(&Match::default(), &arp, &PORTS), None);
    assert_eq!(subtract(&arp, &arp, &PORTS), Some(vec![]));
}
