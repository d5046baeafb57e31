// SPDX-License-Identifier: Apache-2.0
//! Frames of every kind, and what a function in Rust says of each.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netvm_kernel_flows::{Field, Key, Mask, Transport};
use netvm_wire::MacAddr;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::rig::{self, Rig, host, mac};
use crate::sockets::packet_socket;

const FRAMES: u32 = 4000;
/// Sent at once.
const BURST: usize = 100;

/// A frame with fields from small sets, so that some are in the table, and now and then a byte of any value.
fn frame(random: &mut TestRng, number: u32) -> Vec<u8> {
    let mut any = |below: u32| random.next_u32() % below;
    let mut frame = if any(8) == 0 { vec![0xff; 6] } else { mac(1).0.to_vec() };
    frame.extend(mac(any(2) as u8 * 2).0);
    if any(10) == 0 {
        frame.extend([0x81, 0, 0, any(3) as u8]);
    }
    let (is_ipv6, protocol) = (any(3) == 0, [6, 17, 17, 6, 1, 132][any(6) as usize]);
    let ports = [1000 + any(2) as u16, 2000 + any(2) as u16];
    let mut transport = ports.map(u16::to_be_bytes).concat();
    match protocol {
        6 => {
            transport.extend([0; 8]);
            transport.extend([0x50, if any(3) == 0 { any(64) as u8 } else { 0x10 }, 1, 0, 0, 0, 0, 0]);
        }
        _ => transport.extend([0, 20, 0, 0]),
    }
    transport.extend(vec![0; any(40) as usize]);
    transport.extend(number.to_be_bytes());
    let length = transport.len() as u16;
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([if any(10) == 0 { 44 } else { protocol }, 64]);
        frame.extend(Ipv6Addr::from(0xfd09_u128 << 112 | u128::from(1 + any(2))).octets());
        frame.extend(Ipv6Addr::from(0xfd09_u128 << 112 | 2).octets());
    } else {
        let version = if any(10) == 0 { 0x46 } else { 0x45 };
        frame.extend([8, 0, version, 0]);
        frame.extend((length + 20).to_be_bytes());
        let fragment = [0, 0, 0, 0x2000, 0x4000, 100][any(6) as usize];
        frame.extend([0, 0]);
        frame.extend(u16::to_be_bytes(fragment));
        frame.extend([64, protocol, 0, 0]);
        frame.extend(Ipv4Addr::new(10, 9, 0, 1 + any(2) as u8).octets());
        frame.extend(host(1).octets());
    }
    frame.extend(transport);
    if any(6) == 0 {
        let at = 12 + any(frame.len() as u32 - 16) as usize;
        frame[at] = any(256) as u8;
    }
    if any(10) == 0 {
        // Cut, with its number at the end.
        frame.truncate(14 + any(frame.len() as u32 - 18) as usize);
        frame.extend(number.to_be_bytes());
    }
    frame
}

/// The flow of a frame, and whether it opens or closes a connection; `None` if it is none that the table may have.
fn flow_of(frame: &[u8]) -> Option<(Key, bool)> {
    // What netvm may refuse always comes to it.
    netvm_wire::parse(frame).ok()?;
    let mac_at = |at: usize| MacAddr(*frame[at..].first_chunk().unwrap());
    let ip = frame.get(14..)?;
    let (protocol, source, destination, transport) = match frame[12..14] {
        [8, 0] => {
            let is_whole = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff == 0;
            if ip[0] != 0x45 || !is_whole {
                return None;
            }
            let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
            (ip[9], address(12)?, address(16)?, ip.get(20..)?)
        }
        [0x86, 0xdd] => {
            let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
            (*ip.get(6)?, address(8)?, address(24)?, ip.get(40..)?)
        }
        _ => return None,
    };
    let opens_or_closes = match protocol {
        6 if transport.len() >= 20 => transport[13] & 7 != 0,
        17 if transport.len() >= 8 => false,
        _ => return None,
    };
    let ports = [0, 2].map(|at| u16::from_be_bytes([transport[at], transport[at + 1]]));
    let key = Key::new(0, [mac_at(0), mac_at(6)], Transport { protocol, source, destination, ports })?;
    Some((key, opens_or_closes))
}

#[test]
fn random_frames_take_the_way_that_their_headers_say() {
    check("ra", &Mask::all());
}

#[test]
fn random_frames_take_the_way_that_the_fields_of_a_mask_say() {
    check("rm", &Mask::default().with(Field::Destination(30)).with(Field::DestinationPort));
}

fn check(name: &str, mask: &Mask) {
    let Some(rig) = Rig::new(name, 64) else { return };
    rig.table.renew(rig::now() + Duration::from_secs(3600));
    rig.set_mask(0, mask);
    let mut flows = HashSet::new();
    for protocol in [6, 17] {
        let keys = [rig.key(protocol, [1000, 2000]), rig.key_of(protocol, addresses(), [1001, 2000])];
        for key in keys.map(|key| key.masked(mask)) {
            let flow = netvm_kernel_flows::Flow { is_tracked: true, ..rig.flow() };
            rig.table.insert(&key, flow).unwrap();
            flows.insert(key);
        }
    }
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|number| frame(&mut random, number)).collect();
    let socket = rig.inside(0, || packet_socket("eth0"));
    rig.take_slow_frames();
    let (mut slow, mut expected) = (Vec::new(), HashSet::new());
    for burst in frames.chunks(BURST) {
        for frame in burst {
            rustix::net::send(&socket, frame, rustix::net::SendFlags::empty()).unwrap();
            let hits = flow_of(frame)
                .is_some_and(|(key, opens_or_closes)| flows.contains(&key.masked(mask)) && !opens_or_closes);
            if !hits {
                expected.insert(frame.clone());
            }
        }
        netvm_testing::within(Duration::from_secs(5), || {
            slow.extend(rig.take_slow_frames().into_iter().filter(|frame| frames.contains(frame)));
            slow.len() >= expected.len()
        });
    }
    let slow: HashSet<Vec<u8>> = slow.into_iter().collect();
    let wrong: Vec<_> = slow.symmetric_difference(&expected).take(3).collect();
    assert!(wrong.is_empty(), "{} and {}: {wrong:02x?}", slow.len(), expected.len());
    let fast = FRAMES as usize - expected.len();
    assert!(fast > 40, "{fast}");
    let mut counted = 0;
    rig.table.dump(|_, counts| counted += counts.packets as usize).unwrap();
    assert_eq!(counted, fast);
}

fn addresses() -> [IpAddr; 2] {
    ["fd09::1", "fd09::2"].map(|text| text.parse().unwrap())
}
