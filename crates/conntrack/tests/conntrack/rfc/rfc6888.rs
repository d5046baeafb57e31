// SPDX-License-Identifier: Apache-2.0
//! RFC 6888: carrier-grade NAT.

use std::collections::BTreeSet;

use netvm_conntrack::{Allocation, Config, Pool, Quotas, Refusal};
use netvm_wire::{IpNet, Ipv4Net};

use super::{OTHER_REMOTE, SYN, from, plain, segment, udp_to_remote};
use crate::nat::blocks::{in_blocks, rig_with_blocks};
use crate::nat::{INSIDE, OTHER_INSIDE, OUTSIDE, REMOTE, address, pool, source_of, udp_frame};
use crate::rig::Rig;

#[test]
fn rfc6888_req_2_all_blocks_of_an_address_inside_are_at_one_address() {
    let mut rig = rig_with_blocks(1024);
    let pools = [in_blocks(pool("203.0.113.1", "203.0.113.8", [1024, 9215]), 64, 4)];
    for host in 1..60 {
        let mut addresses = BTreeSet::new();
        for port in 1..=200 {
            let frame = udp_to_remote(&format!("10.0.0.{host}"), port);
            let out = rig.through(&frame, from(&pools)).unwrap();
            addresses.insert(source_of(&out).0);
        }
        assert_eq!(addresses.len(), 1);
    }
}

#[test]
fn rfc6888_req_3_pools_need_not_be_contiguous() {
    let mut rig = plain();
    let pools = [
        pool("203.0.113.1", "203.0.113.2", [1024, u16::MAX]),
        pool("192.0.2.200", "192.0.2.200", [1024, u16::MAX]),
        pool("198.18.0.5", "198.18.0.9", [1024, u16::MAX]),
    ];
    let used: BTreeSet<_> = (1..=200)
        .map(|host| rig.through(&udp_to_remote(&format!("10.0.0.{host}"), 5000), from(&pools)).unwrap())
        .map(|out| source_of(&out).0)
        .collect();
    assert_eq!(used.len(), 8);
    assert!(used.iter().all(|it| pools.iter().any(|pool| (pool.first..=pool.last).contains(it))));
}

#[test]
fn rfc6888_req_4_ports_of_a_subscriber_are_limited() {
    let mut rig = rig_with_blocks(64);
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [1024, 2047]), 32, 2)];
    for port in 1..=100 {
        let expected = if port <= 64 { Ok(()) } else { Err(Refusal::NoPort) };
        assert_eq!(rig.begin(&udp_to_remote(INSIDE, port), from(&pools)), expected);
    }
    // For each protocol.
    let tcp = segment(INSIDE, REMOTE, [1, 80], SYN);
    assert_eq!(rig.begin(&tcp, from(&pools)), Ok(()));
    assert_eq!(rig.begin(&udp_to_remote(OTHER_INSIDE, 1), from(&pools)), Ok(()));
}

#[test]
fn rfc6888_req_5_connections_of_a_subscriber_are_limited() {
    let quotas = Quotas { per_source: 5, ..Quotas::default() };
    let mut rig = Rig::new(&Config { mappings: 64, quotas, ..Config::default() });
    let pools = crate::nat::masquerade();
    for port in 1..=10 {
        let expected = if port <= 5 { Ok(()) } else { Err(Refusal::SourceQuota) };
        assert_eq!(rig.begin(&udp_to_remote(INSIDE, port), from(&pools)), expected);
    }
    assert_eq!(rig.begin(&udp_to_remote(OTHER_INSIDE, 1), from(&pools)), Ok(()));
}

#[test]
fn rfc6888_req_11_a_refused_connection_ends_no_other() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [40_000, 40_009])]);
    for port in 1..=10 {
        rig.begin(&udp_to_remote(INSIDE, port), from(&pools)).unwrap();
    }
    for port in 1..=100 {
        assert_eq!(rig.begin(&udp_to_remote(OTHER_INSIDE, port), from(&pools)), Err(Refusal::NoPort));
    }
    assert_eq!((rig.table.len(), rig.table.begun()), (10, 10));
    assert!((1..=10).all(|port| rig.known(&udp_to_remote(INSIDE, port)).is_some()));
}

#[test]
fn rfc6888_req_12_events_of_blocks_name_no_destination() {
    let mut rig = rig_with_blocks(64);
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [1024, 2047]), 32, 2)];
    for (n, remote) in [REMOTE, OTHER_REMOTE].iter().cycle().take(20).enumerate() {
        rig.begin(&udp_frame(INSIDE, remote, [1 + n as u16, 53]), from(&pools)).unwrap();
    }
    let event = rig.table.take_block_event().unwrap();
    assert_eq!((event.inside, event.outside), (address(INSIDE), address(OUTSIDE)));
    assert_eq!(rig.table.take_block_event(), None, "one for twenty connections (REQ-14)");
}

#[test]
fn rfc6888_req_13_all_ports_of_a_block_are_used() {
    let mut rig = rig_with_blocks(64);
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [1024, 1151]), 128, 1)];
    let ports: BTreeSet<_> = (1..=128)
        .map(|port| source_of(&rig.through(&udp_to_remote(INSIDE, port), from(&pools)).unwrap()).1)
        .collect();
    assert_eq!(ports, (1024..1152).collect());
}

#[test]
fn rfc6888_req_14_deterministic_pools_need_no_log() {
    let inside = IpNet::V4(Ipv4Net::new("10.0.0.0".parse().unwrap(), 24).unwrap());
    let pools = [Pool {
        allocation: Allocation::Deterministic { inside },
        ..pool(OUTSIDE, OUTSIDE, [1024, u16::MAX])
    }];
    let mut rig = rig_with_blocks(64);
    for host in 0..=255 {
        let from_host = format!("10.0.0.{host}");
        let out = rig.through(&udp_to_remote(&from_host, 5000), from(&pools)).unwrap();
        let (outside, port) = source_of(&out);
        let found = netvm_conntrack::deterministic_inside_of(&pools, outside, port);
        assert_eq!(found, Some(address(&from_host)));
    }
    assert_eq!(rig.table.take_block_event(), None);
}

#[test]
fn rfc6888_req_15_ports_are_hard_to_guess_without_the_key() {
    let pools = [pool(OUTSIDE, OUTSIDE, [32_768, u16::MAX])];
    let ports = |key| {
        let config = Config { mappings: 256, mapping_key: Some(key), ..Config::default() };
        let mut rig = Rig::new(&config);
        let port = |port| source_of(&rig.through(&udp_to_remote(INSIDE, port), from(&pools)).unwrap()).1;
        (1..=100).map(port).collect::<Vec<u16>>()
    };
    let [one, other] = [ports(1), ports(2)];
    assert!(one.iter().zip(&other).filter(|(one, other)| one == other).count() < 5);
    let following = one.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 2).count();
    assert!(following < 5, "nor does one port tell the next");
}
