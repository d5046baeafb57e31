// SPDX-License-Identifier: Apache-2.0
//! Deterministic NAT.

use netvm_conntrack::{Allocation, Pool, Refusal, Translation, deterministic_inside_of};
use netvm_wire::{Address, IpNet, Ipv4Net, PortRange};
use proptest::prelude::*;

use super::{INSIDE, OUTSIDE, REMOTE, address, pool, rig, source_of, udp_frame};

fn inside(length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new("100.64.0.0".parse().unwrap(), length).unwrap())
}

fn deterministic(pool: Pool, inside: IpNet) -> Pool {
    Pool { allocation: Allocation::Deterministic { inside }, ..pool }
}

#[test]
fn the_example_of_fd_io_has_its_ports() {
    // 4,096 addresses inside for 4 outside: 1,024 each, with 63 of 64,512 ports.
    let pools = [deterministic(pool("68.142.68.4", "68.142.68.7", [1024, u16::MAX]), inside(20))];
    let mut rig = rig();
    for (host, outside, first) in [
        ("100.64.0.0", "68.142.68.4", 1024),
        ("100.64.0.1", "68.142.68.4", 1087),
        ("100.64.15.255", "68.142.68.7", 65_473),
    ] {
        for port in 0..64 {
            let frame = udp_frame(host, REMOTE, [1 + port, 53]);
            let out = rig.through(&frame, Translation { sources: &pools, destination: None });
            assert_eq!(out.is_some(), port < 63);
            let Some(out) = out else { continue };
            let (source, port) = source_of(&out);
            assert_eq!(source, address(outside));
            assert!((first..=first + 62).contains(&port));
            assert_eq!(deterministic_inside_of(&pools, source, port), Some(address(host)));
        }
    }
    let other = udp_frame(INSIDE, REMOTE, [1, 53]);
    let refused = rig.begin(&other, Translation { sources: &pools, destination: None });
    assert_eq!(refused, Err(Refusal::NoPort), "an address that is not of the network");
}

#[test]
fn more_addresses_than_ports_are_refused() {
    let pools = [deterministic(pool(OUTSIDE, OUTSIDE, [1, 255]), inside(24))];
    let refused = rig()
        .begin(&udp_frame("100.64.0.1", REMOTE, [1, 53]), Translation { sources: &pools, destination: None });
    assert_eq!(refused, Err(Refusal::NoPort));
    assert_eq!(deterministic_inside_of(&pools, address(OUTSIDE), 1), None);
    assert_eq!(deterministic_inside_of(&[pool(OUTSIDE, OUTSIDE, [1, 2])], address(OUTSIDE), 1), None);
}

proptest! {
    /// Each end of the pools is of one address inside at most, and what is translated comes from that one.
    #[test]
    fn an_end_outside_tells_the_address_inside(
        length in 18u8..33, sizes in prop::collection::vec((1u8..5, 1u16..3000, 1u16..60_000), 1..4),
        hosts in prop::collection::vec(any::<u32>(), 1..20), port in 1u16..,
    ) {
        let mut rig = rig();
        let pools: Vec<Pool> = (0u8..).zip(sizes).map(|(n, (count, first, ports))| {
            let last = format!("203.0.{n}.{count}");
            let all = pool(&format!("203.0.{n}.1"), &last, [first, first + ports]);
            deterministic(all, inside(length))
        }).collect();
        for host in hosts {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let source = Address::from_v4_bits(0x6440_0000 | host & !mask);
            let frame = udp_frame(&source.to_ip().to_string(), REMOTE, [port, 53]);
            let Some(out) = rig.through(&frame, Translation { sources: &pools, destination: None }) else { continue };
            let (outside, port) = source_of(&out);
            prop_assert_eq!(deterministic_inside_of(&pools, outside, port), Some(source));
            let range: PortRange = pools.iter().find(|pool| (pool.first..=pool.last).contains(&outside)).unwrap().ports;
            prop_assert!(range.contains(port));
        }
    }
}
