// SPDX-License-Identifier: Apache-2.0
//! Ends that lead to services: no pool gives them away.

use std::sync::Arc;

use netvm_conntrack::{Refusal, Reserved, ServicePorts, Translation};
use netvm_wire::{IpProto, PortRange};

use super::blocks::{in_blocks, rig_with_blocks};
use super::*;

/// These UDP ports of the address outside.
fn services(ports: [u16; 2]) -> Arc<Reserved> {
    let ports = PortRange::new(ports[0], ports[1]).unwrap();
    let outside = address(OUTSIDE);
    Arc::new(Reserved::from_iter([ServicePorts {
        first: outside,
        last: outside,
        protocol: IpProto::UDP,
        ports,
    }]))
}

#[test]
fn a_pool_gives_no_port_of_a_service_away() {
    let mut rig = rig();
    rig.table.reserve(&services([1000, 1006]));
    let pools = [pool(OUTSIDE, OUTSIDE, [1000, 1008])];
    let translation = Translation { sources: &pools, destination: None };
    let mut source = |port: u16| {
        let out = rig.through(&udp_frame(INSIDE, REMOTE, [port, 53]), translation);
        out.map(|frame| source_of(&frame).1)
    };
    let mut given = [source(1000).unwrap(), source(1001).unwrap()];
    given.sort_unstable();
    assert_eq!(given, [1007, 1008], "not the own ports, and only those that are left");
    assert_eq!(source(1002), None);
    assert_eq!(
        source(1000),
        Some(given[usize::from(given[0] != source(1000).unwrap())]),
        "the mapping stays"
    );

    // Another protocol, and another address, have these ports.
    let tcp = between(INSIDE, REMOTE).tcp(1000, 80, TcpFlags::SYN).to_vec().unwrap();
    assert_eq!(source_of(&rig.through(&tcp, translation).unwrap()).1, 1000);
    let other = [pool("203.0.113.2", "203.0.113.2", [1000, 1008])];
    let translation = Translation { sources: &other, destination: None };
    let out = rig.through(&udp_frame(OTHER_INSIDE, REMOTE, [1000, 53]), translation).unwrap();
    assert_eq!(source_of(&out).1, 1000);
}

#[test]
fn a_mapping_keeps_the_port_that_becomes_a_services_and_one_to_one_nat_has_all_ports() {
    let mut rig = rig();
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    let source = |rig: &mut Rig, remote: &str, translation: Translation<'_>| {
        source_of(&rig.through(&udp_frame(INSIDE, remote, [1000, 53]), translation).unwrap()).1
    };
    assert_eq!(source(&mut rig, REMOTE, translation), 1000);
    rig.table.reserve(&services([1, u16::MAX]));
    assert_eq!(source(&mut rig, "198.51.100.8", translation), 1000, "endpoint-independent mapping");
    let other = udp_frame(OTHER_INSIDE, REMOTE, [2000, 53]);
    assert_eq!(rig.begin(&other, translation), Err(Refusal::NoPort));
    // As engines ask for the address at the same place of another network.
    let same = [pool(OUTSIDE, OUTSIDE, [2000, 2000])];
    rig.begin(&other, Translation { sources: &same, destination: None }).unwrap();
}

#[test]
fn a_block_whose_ports_are_all_of_services_is_nobodys() {
    let mut rig = rig_with_blocks(64);
    rig.table.reserve(&services([1024, 1055]));
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [1024, 1087]), 16, 2)];
    let translation = Translation { sources: &pools, destination: None };
    for (n, host) in [INSIDE, OTHER_INSIDE].into_iter().enumerate() {
        for port in 0..16 {
            let frame = udp_frame(host, REMOTE, [5000 + port, 53]);
            let (_, port) = source_of(&rig.through(&frame, translation).unwrap());
            assert!((1056..1088).contains(&port), "{n}: {port}");
        }
    }
    assert_eq!(rig.begin(&udp_frame("10.0.0.10", REMOTE, [5000, 53]), translation), Err(Refusal::NoPort));
}
