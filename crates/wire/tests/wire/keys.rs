// SPDX-License-Identifier: Apache-2.0
//! Compares the fast path of [`FlowKey::of_frame`] with the general parser: same key or same error for any bytes.

use std::net::IpAddr;

use netvm_wire::{
    ConnState, EtherType, FlowKey, Fragment, FrameBuilder, IpProto, MacAddr, Malformed, TcpFlags, VlanId,
    parse_prefix,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn general(headers: &[u8], frame_len: usize) -> Result<FlowKey, Malformed> {
    parse_prefix(headers, frame_len).map(|headers| *headers.key())
}

/// Checks both entry points of the fast path on a frame and on prefixes around the end of its headers.
fn check(frame: &[u8]) -> Result<(), TestCaseError> {
    let lengths = [frame.len(), frame.len() + 1, frame.len().saturating_sub(1), 60, 64, 1500];
    for cut in (0..frame.len().min(130)).chain([frame.len()]) {
        for frame_len in lengths {
            let expected = general(&frame[..cut], frame_len);
            prop_assert_eq!(
                FlowKey::of_frame(&frame[..cut], frame_len),
                expected,
                "{} of {}",
                cut,
                frame_len
            );
            let mut key = FlowKey { dscp: 9, icmp_code: 9, vlan: VlanId::new(9).ok(), ..FlowKey::EMPTY };
            let verdict = key.read_frame(&frame[..cut], frame_len);
            prop_assert_eq!(verdict.map(|()| key), expected);
            prop_assert_eq!(key, expected.unwrap_or_default());
        }
    }
    Ok(())
}

/// The Ethernet key agrees with the parser's, where the parser accepts the frame.
fn check_ethernet(frame: &[u8]) -> Result<(), TestCaseError> {
    for cut in 0..frame.len().min(40) {
        let (part, whole) = (&frame[..cut], frame.len());
        let seen = FlowKey::of_ethernet(part, whole);
        match (general(part, whole), seen) {
            (Ok(key), _) => {
                let FlowKey { source_mac, destination_mac, ether_type, vlan, inner_vlan, .. } = key;
                let ethernet =
                    FlowKey { source_mac, destination_mac, ether_type, vlan, inner_vlan, ..FlowKey::EMPTY };
                prop_assert_eq!(seen, Ok(ethernet));
            }
            (Err(why), Err(seen)) => prop_assert_eq!(why, seen),
            // The error is in an inner layer.
            (Err(_), Ok(_)) => prop_assert!(cut >= 14),
        }
    }
    Ok(())
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        4 => any::<[u8; 4]>().prop_map(IpAddr::from),
        3 => any::<[u8; 16]>().prop_map(IpAddr::from),
        1 => any::<[u8; 4]>().prop_map(|v4| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().into()),
    ]
}

/// Frames from the builder, some of which the fast path leaves to the parser.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = vec((any::<bool>(), 0u16..=4095), 0..3);
    let ends = (address(), address(), any::<u16>(), any::<u16>());
    let shape = (0u8..8, any::<u8>(), 0u8..64, prop::option::weighted(0.1, (0u16..100, any::<bool>())));
    (any::<[[u8; 6]; 2]>(), tags, ends, shape, vec(any::<u8>(), 0..60), prop::option::of(60usize..200))
        .prop_map(|([from, to], tags, (source, destination, a, b), shape, payload, pad)| {
            let (kind, byte, dscp, fragment) = shape;
            let mut builder = FrameBuilder::new(MacAddr(from), MacAddr(to)).dscp(dscp);
            for (service, id) in tags {
                builder = match VlanId::new(id) {
                    Ok(vlan) if service => builder.service_vlan(vlan),
                    Ok(vlan) => builder.vlan(vlan),
                    Err(_) => builder,
                };
            }
            builder = builder.ip(source, destination);
            if let Some((offset, more)) = fragment {
                builder = builder.fragment(7, offset, more);
            }
            builder = match kind {
                0..3 => builder.tcp(a, b, TcpFlags::from_bits_retain(byte)),
                3..6 => builder.udp(a, b),
                6 => builder.echo(byte & 1 != 0, a, b),
                _ => builder.protocol(IpProto(byte)),
            };
            let padded = pad.map_or(builder, |length| builder.frame_len(length));
            // Fails if the length is too short for the headers or the address families differ.
            let frame = padded.payload(&payload).to_vec();
            frame.or_else(|_| builder.payload(&payload).to_vec()).unwrap_or(payload)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn built_frames_have_the_same_key(frame in frame()) {
        check(&frame)?;
        check_ethernet(&frame)?;
    }

    #[test]
    fn damaged_frames_have_the_same_key_or_error(
        mut frame in frame(),
        changes in vec((0usize..100, prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x45), Just(0x60)]), 1..4),
    ) {
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        check(&frame)?;
        check_ethernet(&frame)?;
    }

    #[test]
    fn noise_has_the_same_key_or_error(
        mut noise in vec(any::<u8>(), 0..150),
        ether_type in prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x0026]),
    ) {
        if let Some(place) = noise.get_mut(12..14) {
            place.copy_from_slice(&ether_type.to_be_bytes());
        }
        check(&noise)?;
        check_ethernet(&noise)?;
    }

    #[test]
    fn keys_survive_the_round_trip_through_words(frame in frame(), other in frame()) {
        let (Ok(key), Ok(other)) = (general(&frame, frame.len()), general(&other, other.len())) else {
            return Ok(());
        };
        prop_assert_eq!(FlowKey::from(key.words()), key);
        prop_assert_eq!(format!("{:?}", FlowKey::from(key.words())), format!("{key:?}"));
        prop_assert_eq!(key.words() == other.words(), format!("{key:?}") == format!("{other:?}"));
        prop_assert_eq!(key.words()[7] >> 48, 0);
    }
}

#[test]
fn common_frames_take_the_fast_path() {
    let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6])).dscp(46);
    let tagged = builder.vlan(VlanId::new(4094).unwrap());
    for (builder, vlan) in [(builder, None), (tagged, VlanId::new(4094).ok())] {
        for (source, destination, kind) in
            [("10.0.0.1", "10.0.0.2", EtherType::IPV4), ("2001:db8::1", "2001:db8::2", EtherType::IPV6)]
        {
            let builder = builder.ip(source.parse().unwrap(), destination.parse().unwrap());
            let tcp = builder.tcp(80, 1234, TcpFlags::SYN).to_vec().unwrap();
            let key = FlowKey::of_frame(&tcp, tcp.len()).unwrap();
            let expected = FlowKey {
                source: source.parse::<IpAddr>().unwrap().into(),
                destination: destination.parse::<IpAddr>().unwrap().into(),
                source_mac: MacAddr([2; 6]),
                destination_mac: MacAddr([4; 6]),
                ether_type: kind,
                vlan,
                source_port: 80,
                destination_port: 1234,
                protocol: IpProto::TCP,
                tcp_flags: TcpFlags::SYN,
                dscp: 46,
                fragment: Fragment::Whole,
                ..FlowKey::EMPTY
            };
            assert_eq!(key, expected);
            let udp = builder.udp(80, 1234).to_vec().unwrap();
            let expected = FlowKey { protocol: IpProto::UDP, tcp_flags: TcpFlags::empty(), ..expected };
            assert_eq!(FlowKey::of_frame(&udp, udp.len()), Ok(expected));
        }
    }
}

/// Tries every value of every header byte, one at a time.
#[test]
fn no_single_byte_makes_the_paths_differ() {
    let vlan = VlanId::new(4094).unwrap();
    let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
    // One byte away from an IPv4-mapped address.
    let nearly_mapped = |place: usize| {
        let mut octets = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        octets[place] ^= 0x10;
        IpAddr::from(octets)
    };
    let pairs = [
        ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        (nearly_mapped(0), nearly_mapped(10)),
        (nearly_mapped(9), nearly_mapped(11)),
    ];
    let mut refused = 0u32;
    for (source, destination) in pairs {
        for builder in [builder, builder.vlan(vlan), builder.service_vlan(vlan)] {
            let builder = builder.ip(source, destination);
            let tcp = builder.tcp(80, 1234, TcpFlags::SYN).payload(&[0; 5]).to_vec().unwrap();
            let udp = builder.udp(80, 1234).payload(&[0; 5]).to_vec().unwrap();
            for mut frame in [tcp, udp] {
                for at in 0..frame.len() {
                    let kept = frame[at];
                    for byte in 0..=255 {
                        frame[at] = byte;
                        let expected = general(&frame, frame.len());
                        assert_eq!(FlowKey::of_frame(&frame, frame.len()), expected, "{frame:02x?}");
                        refused += u32::from(expected.is_err());
                    }
                    frame[at] = kept;
                }
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}

/// The words of a key tell all states apart, and leave the upper 16 bits of the last to tables.
#[test]
fn words_hold_the_state() {
    let mut seen = Vec::new();
    for state in ConnState::ALL {
        for fragment in [Fragment::Whole, Fragment::First, Fragment::Later] {
            let key = FlowKey { state, fragment, ..FlowKey::EMPTY };
            assert_eq!(FlowKey::from(key.words()), key);
            assert_eq!(key.words()[7] >> 48, 0);
            assert!(!seen.contains(&key.words()[7]));
            seen.push(key.words()[7]);
        }
    }
}
