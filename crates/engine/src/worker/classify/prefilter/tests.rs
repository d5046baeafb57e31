// SPDX-License-Identifier: Apache-2.0
//! Valid and malformed frames of all kinds: proven packets match no rule, and scalar and vector code agree.

use std::net::{IpAddr, Ipv4Addr};

use netvm_classifier::NONE;
use netvm_policy::arbitrary::{Generator, rules_and_keys};
use netvm_policy::{Cube, Family, Fields};
use netvm_wire::{EtherType, FlowKey, FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId};
use proptest::prelude::*;

use super::*;

/// What the first entry is that contains a key.
fn scan(entries: &[Vec<Cube>], key: &FlowKey) -> u32 {
    let first = entries.iter().position(|cubes| cubes.iter().any(|cube| cube.contains(key)));
    first.map_or(NONE, |n| n as u32)
}

/// A frame with the addresses and ports of a key, or another frame now and then, perhaps with something wrong in it.
fn frame(key: &FlowKey, generator: &mut Generator) -> Vec<u8> {
    let mac = |last: u64| MacAddr([2, 0, 0, 0, 0, last as u8]);
    let mut builder = FrameBuilder::new(mac(generator.below(2)), mac(9));
    if generator.once_in(12) {
        builder = builder.vlan(VlanId::new(5).unwrap());
    }
    let v4 = |bits: u64| IpAddr::V4(Ipv4Addr::from(bits as u32));
    builder = if key.ether_type == EtherType::IPV4 || (key.is_ip() && generator.once_in(4)) {
        builder.ip(key.source.to_ip(), key.destination.to_ip())
    } else {
        builder.ip(v4(generator.bits()), v4(generator.bits()))
    };
    if generator.once_in(12) {
        builder = builder.fragment(7, if generator.once_in(2) { 0 } else { 100 }, true);
    }
    let payload = [0x5a; 40];
    let length = if generator.once_in(2) { 18 } else { generator.below(40) as usize };
    builder = match generator.below(8) {
        0 => builder.protocol(IpProto(generator.bits() as u8)),
        1..4 => builder.tcp(
            key.source_port,
            key.destination_port,
            TcpFlags::from_bits_retain(generator.bits() as u8),
        ),
        _ => builder.udp(key.source_port, key.destination_port),
    };
    let mut frame = builder.payload(&payload[..length]).to_vec().unwrap();
    if generator.once_in(3) {
        let at = 12 + generator.below(frame.len().min(50) as u64 - 12) as usize;
        frame[at] ^= 1 << generator.below(8);
    }
    if generator.once_in(4) {
        frame.truncate(generator.below(frame.len() as u64 + 1) as usize);
    } else if generator.once_in(4) {
        frame.resize(frame.len() + 1 + generator.below(20) as usize, 0xa5);
    }
    frame
}

/// As `prefilter_by` makes them of packets in one buffer each, which goes on behind them.
fn fronts(frames: &[Vec<u8>]) -> Fronts {
    let mut fronts = Fronts { bytes: [[0xee; FRONT]; LANES], rooms: [0; LANES] };
    for (lane, frame) in frames.iter().enumerate() {
        let length = frame.len().min(FRONT);
        fronts.bytes[lane][..length].copy_from_slice(&frame[..length]);
        fronts.rooms[lane] = (frame.len() as u32).saturating_sub(ETHERNET);
    }
    fronts
}

fn check(entries: &[Vec<Cube>], frames: &[Vec<u8>]) -> Result<u32, TestCaseError> {
    let Some(prefilter) = Prefilter::build(entries) else { return Ok(0) };
    let mut proven = 0;
    for eight in frames.chunks_exact(LANES) {
        let fronts = fronts(eight);
        let first = header(&fronts.bytes[0]);
        let result = scalar::test_group(&prefilter, &fronts, first);
        #[cfg(target_arch = "x86_64")]
        if netvm_cpu::Level::of_processor() >= netvm_cpu::Level::Avx2 {
            // SAFETY: the processor has what the function is compiled for.
            prop_assert_eq!(unsafe { avx2::test_group(&prefilter, &fronts, first) }, result);
        }
        prop_assert_eq!(
            result.same_header,
            fronts.bytes.iter().all(|front| front[..14] == fronts.bytes[0][..14])
        );
        for (lane, frame) in eight.iter().enumerate().filter(|(lane, _)| result.proven >> lane & 1 == 1) {
            match FlowKey::of_frame(frame, frame.len()) {
                Ok(key) => prop_assert_eq!(scan(entries, &key), prefilter.otherwise(), "{:?}", key),
                Err(why) => prop_assert!(false, "packet {}: {} is proven: {:02x?}", lane, why, frame),
            }
        }
        proven += result.proven.count_ones();
    }
    Ok(proven)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_proven_has_a_key_that_no_rule_matches(
        (rules, keys) in rules_and_keys(0..24, 64..=64),
        ends in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut entries: Vec<Vec<Cube>> = rules.iter().map(|rule| rule.matches.cubes().unwrap()).collect();
        if ends {
            entries.push(vec![Cube { family: Family::V4, fields: Fields::ANY }]);
        }
        let mut generator = Generator::new(seed);
        let frames: Vec<Vec<u8>> = keys.iter().map(|key| frame(key, &mut generator)).collect();
        check(&entries, &frames)?;
    }
}

#[test]
fn sound_packets_are_proven_and_others_are_not() {
    let none: [Vec<Cube>; 0] = [];
    let prefilter = Prefilter::build(&none).unwrap();
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let plain = FrameBuilder::new(mac, mac).ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let frames = [
        plain.udp(1, 2).payload(&[1]).to_vec().unwrap(),
        plain.tcp(1, 2, TcpFlags::SYN).to_vec().unwrap(),
        plain.fragment(7, 0, true).udp(1, 2).payload(&[0; 8]).to_vec().unwrap(),
        plain.vlan(VlanId::new(5).unwrap()).udp(1, 2).to_vec().unwrap(),
        plain.protocol(IpProto::ICMP).payload(&[8; 20]).to_vec().unwrap(),
        plain.ip("::1".parse().unwrap(), "::2".parse().unwrap()).udp(1, 2).to_vec().unwrap(),
        plain.udp(1, 2).payload(&[1; 30]).to_vec().unwrap()[..60].to_vec(),
        plain.dscp(46).udp(1, 2).payload(&[1; 9]).to_vec().unwrap(),
    ];
    let fronts = fronts(&frames);
    let result = scalar::test_group(&prefilter, &fronts, header(&fronts.bytes[0]));
    assert_eq!(result, GroupResult { proven: 0b1000_0011, same_header: false });
    let burst = vec![frames[0].clone(); LANES];
    assert_eq!(check(&none, &burst).unwrap(), LANES as u32);
    let uniform = scalar::test_group(&prefilter, &self::fronts(&burst), header(&fronts.bytes[0]));
    assert_eq!(uniform, GroupResult { proven: 0xff, same_header: true });
}
