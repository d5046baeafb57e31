// SPDX-License-Identifier: Apache-2.0
//! Translated connections over several workers: answers come back to the owner, which keeps them when cores change.

use std::collections::BTreeSet;

use super::connections::{CONNECTIONS, LIMIT, SERVER, client, connections, frame, on};
use super::has_two_cores;
use crate::alone;
use crate::support::Rig;
use crate::support::pcap::Scratch;
use netvm_engine::{ConnectionView, PortId};
use netvm_model::{
    AddressRange, DestinationNat, EngineConfig, Filtering, Forward, Host, Match, NatAction, NatAddresses,
    NatRule, NatTarget, PortAllocation, SourceNat,
};
use netvm_wire::{Address, PortRange};

/// What clients ask.
const SERVICE: [u8; 4] = [203, 0, 113, 9];

fn address(of: [u8; 4]) -> Address {
    std::net::IpAddr::from(of).into()
}

/// Sources of what leaves by port 1 get ports of an address.
fn masquerade() -> NatRule {
    let outside = address([203, 0, 113, 1]);
    let action = NatAction::Source(SourceNat {
        addresses: NatAddresses::Ranges(vec![AddressRange { first: outside, last: outside }]),
        ports: PortRange::new(1024, u16::MAX).unwrap(),
        allocation: PortAllocation::Any,
        filtering: Filtering::AddressAndPort,
    });
    let matches = Match { to: vec![PortId(1)], ..Match::default() };
    NatRule { name: "masquerade".into(), matches, local_to: None, action }
}

/// The service leads to the server.
fn service() -> NatRule {
    let target = NatTarget { address: Some(address(SERVER)), port: Some(53), weight: 1 };
    let matches = Match {
        from: vec![PortId(0)],
        destination: vec!["203.0.113.9/32".parse().unwrap()],
        ..Match::default()
    };
    let action = NatAction::Destination(DestinationNat { targets: vec![target], health: None });
    NatRule { name: "service".into(), matches, local_to: None, action }
}

/// Port 0 leads to port 1, and back.
fn host(scratch: &Scratch, asks: &[Vec<u8>], answers: &[Vec<u8>]) -> Host {
    let mut ports = vec![scratch.port(0, asks), scratch.port(1, answers)];
    for (n, port) in ports.iter_mut().enumerate() {
        port.policy.track = true;
        port.policy.forward = Forward::Port(PortId(1 - n as u16));
    }
    Host { ports, ..Host::default() }
}

/// The ends of connections, before and after translation.
fn ends(known: &[ConnectionView]) -> BTreeSet<(String, String)> {
    known.iter().map(|it| (format!("{:?}", it.original), format!("{:?}", it.reply))).collect()
}

/// Begins connections with a destination on these cores; answers come after each of the changes.
fn answers_pass_after(cores: &[&[u32]], nat: &NatRule, destination: [u8; 4]) {
    let scratch = Scratch::new();
    let with_nat = |host: Host| Host { nat: vec![nat.clone()], ..host };
    let mut rig = Rig::new(&EngineConfig { cores: cores[0].to_vec(), ..EngineConfig::default() });
    let requests: Vec<_> =
        (0..CONNECTIONS).map(|n| frame(client(n), destination, [1000 + n * 7, 53])).collect();
    rig.engine.apply(&on(cores[0], with_nat(host(&scratch, &requests, &[])))).unwrap();
    assert!(rig.until(LIMIT, |engine| engine.connection_counts().begun == u64::from(CONNECTIONS)));
    let begun = connections(&mut rig);
    assert!(begun.iter().all(|it| format!("{:?}", it.reply) != format!("{:?}", it.original.reversed())));
    let mut passed = 0;
    for cores in cores {
        rig.engine.apply(&on(cores, with_nat(host(&scratch, &[], &[])))).unwrap();
        assert!(rig.until(LIMIT, |engine| !engine.is_settling()));
        let known = connections(&mut rig);
        assert_eq!(ends(&known), ends(&begun), "{cores:?}");
        let octets = |address: Address| address.v4_bits().unwrap().to_be_bytes();
        let answer = |it: &ConnectionView| {
            let (from, to) = (octets(it.reply.source), octets(it.reply.destination));
            frame(from, to, [it.reply.source_port, it.reply.destination_port])
        };
        let answers: Vec<_> = known.iter().rev().map(answer).collect();
        rig.engine.apply(&on(cores, with_nat(host(&scratch, &[], &answers)))).unwrap();
        passed += u64::from(CONNECTIONS);
        let is_passed = |engine: &netvm_engine::Engine| engine.ports()[0].tx_packets == passed;
        assert!(rig.until(LIMIT, is_passed), "{cores:?}: {}", rig.describe());
        let known = connections(&mut rig);
        assert_eq!(ends(&known), ends(&begun), "{cores:?}");
        assert!(known.iter().all(|it| it.state == "replied"));
        let workers: BTreeSet<_> = known.iter().map(|it| it.worker).collect();
        assert_eq!(workers.len(), cores.len(), "{cores:?}: each worker owns some");
    }
}

#[test]
fn answers_to_masqueraded_connections_find_their_owners() {
    let _alone = alone();
    if has_two_cores() {
        answers_pass_after(&[&[0], &[0, 1], &[1]], &masquerade(), SERVER);
        answers_pass_after(&[&[0, 1], &[1], &[0, 1]], &masquerade(), SERVER);
    }
}

#[test]
fn answers_of_a_service_find_their_owners() {
    let _alone = alone();
    if has_two_cores() {
        answers_pass_after(&[&[0], &[0, 1], &[1]], &service(), SERVICE);
        answers_pass_after(&[&[0, 1], &[1], &[0, 1]], &service(), SERVICE);
    }
}
