// SPDX-License-Identifier: Apache-2.0
//! Translation: what is chosen, and what becomes of packets.

pub mod blocks;
mod deterministic;
mod forwarded;
pub mod packets;
mod services;
mod zones;

use std::collections::BTreeMap;

use netvm_conntrack::{Config, Connections, Half, Packet, Pool, Refusal, Rewrite, Target, Translation};
use netvm_wire::{Address, ConnState, IpProto, PortRange, TcpFlags, checksum, parse};
use proptest::prelude::*;

use crate::rig::{Rig, between};
use crate::sctp::{INIT, INIT_ACK, offer, sctp};

pub const INSIDE: &str = "10.0.0.1";
pub const OTHER_INSIDE: &str = "10.0.0.9";
pub const OUTSIDE: &str = "203.0.113.1";
pub const REMOTE: &str = "198.51.100.7";
pub const ROUTER: &str = "192.0.2.1";

pub fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

pub fn pool(first: &str, last: &str, ports: [u16; 2]) -> Pool {
    Pool::new(address(first), address(last), PortRange::new(ports[0], ports[1]).unwrap())
}

/// All ports of the address outside.
pub fn masquerade() -> [Pool; 1] {
    [pool(OUTSIDE, OUTSIDE, [1, u16::MAX])]
}

pub fn to(address_of: &str, port: u16) -> Option<Target> {
    Some(Target { address: address(address_of), port: Some(port) })
}

fn config() -> Config {
    Config { sessions: 4096, mappings: 4096, mapping_key: Some(1), ..Config::default() }
}

pub fn rig() -> Rig {
    Rig::new(&config())
}

impl Rig {
    /// Begins a translated connection.
    pub fn begin(&mut self, frame: &[u8], translation: Translation<'_>) -> Result<(), Refusal> {
        let key = *parse(frame).unwrap().key();
        let front = &frame[..frame.len().min(256)];
        let packet = Packet { key: &key, zone: self.zone, front, length: frame.len() };
        self.table.confirm_translated(&packet, self.origin(), self.now, translation).map(drop)
    }

    /// Passes a packet, which may begin a translated connection, and rewrites it.
    pub fn through(&mut self, frame: &[u8], translation: Translation<'_>) -> Option<Vec<u8>> {
        let mut tracked = self.look(frame);
        if tracked.state == ConnState::New && tracked.connection.is_none() {
            self.begin(frame, translation).ok()?;
            tracked = self.look(frame);
        }
        let mut frame = frame.to_vec();
        let (connection, length) = (*self.table.get(tracked.connection?).unwrap(), frame.len());
        for half in [Half::Destination, Half::Source] {
            let end = length.min(256);
            let mut packet = Rewrite { front: &mut frame[..end], length, is_partial: false };
            connection.rewrite(half, tracked.is_reply, &mut packet).unwrap();
            let once = frame.clone();
            let mut packet = Rewrite { front: &mut frame[..end], length, is_partial: false };
            connection.rewrite(half, tracked.is_reply, &mut packet).unwrap();
            assert_eq!(frame, once, "twice is once");
        }
        Some(frame)
    }

    /// Passes a packet of a connection that exists.
    pub fn known(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        match self.look(frame).connection {
            Some(_) => self.through(frame, Translation::default()),
            None => None,
        }
    }
}

pub fn udp_frame(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    between(from, to).udp(ports[0], ports[1]).payload(b"payload").to_vec().unwrap()
}

/// The source and its port after source translation.
pub fn source_of(frame: &[u8]) -> (Address, u16) {
    let key = *parse(frame).unwrap().key();
    (key.source, key.source_port)
}

#[test]
fn a_masqueraded_connection_keeps_its_port_and_answers_come_back() {
    let mut rig = rig();
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    let out = rig.through(&udp_frame(INSIDE, REMOTE, [1000, 53]), translation).unwrap();
    assert_eq!(out, udp_frame(OUTSIDE, REMOTE, [1000, 53]));
    let back = rig.known(&udp_frame(REMOTE, OUTSIDE, [53, 1000])).unwrap();
    assert_eq!(back, udp_frame(REMOTE, INSIDE, [53, 1000]));
    assert!(rig.known(&udp_frame(REMOTE, OUTSIDE, [53, 1001])).is_none());
    assert_eq!(rig.table.len(), 1);
}

#[test]
fn a_mapping_is_the_same_for_all_destinations_and_of_one_end_alone() {
    let mut rig = rig();
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    let mut source =
        |from, to| source_of(&rig.through(&udp_frame(from, to, [1000, 53]), translation).unwrap());
    let first = source(INSIDE, REMOTE);
    let other = source(OTHER_INSIDE, REMOTE);
    assert_ne!(first, other);
    for remote in ["198.51.100.8", "198.51.100.9"] {
        assert_eq!((source(INSIDE, remote), source(OTHER_INSIDE, remote)), (first, other));
    }
}

#[test]
fn a_restart_with_the_same_key_chooses_the_same() {
    let pools = [pool("203.0.113.0", "203.0.113.255", [20_000, 29_999])];
    let translation = Translation { sources: &pools, destination: None };
    let choose = || -> Vec<_> {
        let mut rig = rig();
        let frames = (1..200).map(|port| udp_frame(INSIDE, REMOTE, [port, 53]));
        frames.map(|frame| source_of(&rig.through(&frame, translation).unwrap())).collect()
    };
    let chosen = choose();
    assert_eq!(chosen, choose());
    assert!(chosen.iter().all(|(address, port)| *address == chosen[0].0 && (20_000..30_000).contains(port)));
}

#[test]
fn a_pool_without_a_free_port_refuses_until_a_connection_ends() {
    let mut rig = rig();
    let pools = [pool(OUTSIDE, OUTSIDE, [40_000, 40_009])];
    let translation = Translation { sources: &pools, destination: None };
    let frame = |port| udp_frame(INSIDE, REMOTE, [port, 53]);
    for port in 1..=10 {
        rig.begin(&frame(port), translation).unwrap();
    }
    assert_eq!(rig.begin(&frame(11), translation), Err(Refusal::NoPort));
    assert_eq!(rig.table.len(), 10);
    rig.wait(31);
    rig.table.expire(rig.now, 4096);
    assert_eq!(rig.begin(&frame(11), translation), Ok(()));
    let without_mappings = &mut Rig::new(&Config::default());
    assert_eq!(without_mappings.begin(&frame(1), translation), Err(Refusal::NoPort));
}

#[test]
fn identifiers_of_echoes_do_not_collide() {
    for (insides, remote, outside) in
        [([INSIDE, OTHER_INSIDE], REMOTE, OUTSIDE), (["fd00::1", "fd00::9"], "2001:db8::7", "2001:db8::1")]
    {
        let mut rig = rig();
        let pools = [pool(outside, outside, [1, u16::MAX])];
        let translation = Translation { sources: &pools, destination: None };
        let mut identifiers = Vec::new();
        for inside in insides {
            let request = between(inside, remote).echo(false, 7, 1).to_vec().unwrap();
            let out = rig.through(&request, translation).unwrap();
            let headers = parse(&out).unwrap();
            assert_eq!(checksum::verify(&out, &headers), Ok(()));
            let at = headers.l4_offset().unwrap() + 4;
            let identifier = u16::from_be_bytes([out[at], out[at + 1]]);
            let reply = between(remote, outside).echo(true, identifier, 1).to_vec().unwrap();
            let expected = between(remote, inside).echo(true, 7, 1).to_vec().unwrap();
            assert_eq!(rig.known(&reply).unwrap(), expected);
            identifiers.push(identifier);
        }
        assert_eq!(identifiers[0], 7);
        assert_ne!(identifiers[0], identifiers[1]);
    }
}

#[test]
fn a_published_port_leads_to_its_target() {
    let mut rig = rig();
    let translation = Translation { sources: &[], destination: to(INSIDE, 80) };
    let syn = |from: &str, to: &str, port| {
        between(from, to).tcp(1000, port, TcpFlags::SYN).numbers(9, 0).to_vec().unwrap()
    };
    let inwards = rig.through(&syn(REMOTE, OUTSIDE, 8080), translation).unwrap();
    assert_eq!(inwards, syn(REMOTE, INSIDE, 80));
    let answer = |from: &str, port| {
        let flags = TcpFlags::SYN | TcpFlags::ACK;
        between(from, REMOTE).tcp(port, 1000, flags).numbers(5, 10).to_vec().unwrap()
    };
    assert_eq!(rig.known(&answer(INSIDE, 80)).unwrap(), answer(OUTSIDE, 8080));
    assert_eq!(
        rig.begin(&syn(REMOTE, INSIDE, 80), Translation::default()),
        Err(Refusal::NoPort),
        "ends are taken"
    );
}

#[test]
fn hosts_inside_reach_each_other_by_their_outer_ends() {
    let mut rig = rig();
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    rig.through(&udp_frame(INSIDE, REMOTE, [1000, 53]), translation).unwrap();
    let hairpin = udp_frame(OTHER_INSIDE, OUTSIDE, [2000, 1000]);
    let key = *parse(&hairpin).unwrap().key();
    let packet = Packet { key: &key, zone: rig.zone, front: &hairpin, length: hairpin.len() };
    let destination = rig.table.targets().of(&packet, true);
    assert_eq!(destination, to(INSIDE, 1000));
    let there = rig.through(&hairpin, Translation { sources: &pools, destination }).unwrap();
    assert_eq!(there, udp_frame(OUTSIDE, INSIDE, [2000, 1000]));
    let back = rig.known(&udp_frame(INSIDE, OUTSIDE, [1000, 2000])).unwrap();
    assert_eq!(back, udp_frame(OUTSIDE, OTHER_INSIDE, [1000, 2000]));
}

#[test]
fn what_cannot_be_translated_is_refused() {
    let mut rig = rig();
    let pools = [pool(OUTSIDE, OUTSIDE, [40_000, 50_000])];
    let source = Translation { sources: &pools, destination: None };
    let of = |protocol, payload: &'static [u8]| {
        between(INSIDE, REMOTE).protocol(protocol).payload(payload).to_vec().unwrap()
    };
    assert_eq!(rig.begin(&of(IpProto(136), &[0; 8]), source), Err(Refusal::NotTranslatable), "UDP-Lite");
    assert_eq!(
        rig.begin(&sctp(between(INSIDE, REMOTE), [9, 80], 0, &[offer(INIT, 5)]), source),
        Err(Refusal::NoPort),
        "its port is not in the pool"
    );
    assert_eq!(rig.begin(&of(IpProto::GRE, &[0; 8]), source), Ok(()));
    let other = between(OTHER_INSIDE, REMOTE).protocol(IpProto::GRE).payload(&[0; 8]).to_vec().unwrap();
    assert_eq!(rig.begin(&other, source), Err(Refusal::NoPort), "one GRE tunnel to each remote host");
    let of_other_family = Translation { sources: &[], destination: to("2001:db8::1", 1) };
    let refused = rig.begin(&udp_frame(INSIDE, REMOTE, [1, 2]), of_other_family);
    assert_eq!(refused, Err(Refusal::NotTranslatable));
    assert_eq!(rig.table.len(), 1);
}

#[test]
fn addresses_of_sctp_are_translated_and_its_ports_stay() {
    let mut rig = rig();
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    let init = |from| sctp(between(from, REMOTE), [9, 80], 0, &[offer(INIT, 5)]);
    let answer = |to| sctp(between(REMOTE, to), [80, 9], 5, &[offer(INIT_ACK, 6)]);
    assert_eq!(rig.through(&init(INSIDE), translation).unwrap(), init(OUTSIDE));
    assert_eq!(rig.known(&answer(OUTSIDE)).unwrap(), answer(INSIDE));
    assert_eq!(rig.begin(&init(OTHER_INSIDE), translation), Err(Refusal::NoPort), "its port is taken");
}

#[test]
fn a_connection_that_moves_keeps_its_mapping() {
    let (mut old, mut new) = (rig(), rig());
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    old.begin(&udp_frame(INSIDE, REMOTE, [1000, 53]), translation).unwrap();
    let (id, _) = old.table.page(0, 4096, 0).next().unwrap();
    let moved = old.table.take(id).unwrap();
    assert!(new.table.adopt(&moved));
    assert_eq!(
        new.known(&udp_frame(REMOTE, OUTSIDE, [53, 1000])).unwrap(),
        udp_frame(REMOTE, INSIDE, [53, 1000])
    );
    // The old table has forgotten the mapping, the new one has not.
    for (rig, port) in [(&mut old, 1000), (&mut new, 1001)] {
        let out = rig.through(&udp_frame(OTHER_INSIDE, REMOTE, [1000, 53]), translation).unwrap();
        assert_eq!(source_of(&out).1 == 1000, port == 1000);
    }
}

/// What the mappings of a table are, by looking at its connections.
fn mappings(table: &Connections, now: u32) -> BTreeMap<(Address, u16), (Address, u16)> {
    let mut mappings = BTreeMap::new();
    for (_, connection) in table.page(0, table.capacity(), now) {
        let (original, reply) = (connection.original(), connection.reply());
        let inside = (original.source, original.source_port);
        let outside = (reply.destination, reply.destination_port);
        assert_eq!(*mappings.entry(inside).or_insert(outside), outside, "one end outside for each inside");
    }
    mappings
}

proptest! {
    #[test]
    fn mappings_are_independent_of_the_destination_and_unique(
        steps in prop::collection::vec((1u8..5, 1u16..5, 1u8..5, 0u32..20), 1..120), addresses in 1u8..3,
        restart in 0usize..200,
    ) {
        let mut rig = rig();
        let last = format!("203.0.113.{addresses}");
        let pools = [pool(OUTSIDE, &last, [3, 9])];
        let translation = Translation { sources: &pools, destination: None };
        for (n, (host, port, remote, seconds)) in steps.into_iter().enumerate() {
            if n == restart {
                rig.restart(&config(), u32::MAX - 50);
            }
            rig.wait(seconds);
            rig.table.expire(rig.now, 4096);
            let (from, to) = (format!("10.0.0.{host}"), format!("198.51.100.{remote}"));
            let before = mappings(&rig.table, rig.now);
            let out = rig.through(&udp_frame(&from, &to, [port, 53]), translation);
            let (inside, all) = ((address(&from), port), mappings(&rig.table, rig.now));
            let unique: std::collections::BTreeSet<_> = all.values().collect();
            prop_assert_eq!(unique.len(), all.len());
            match out {
                Some(out) => {
                    prop_assert_eq!(checksum::verify(&out, &parse(&out).unwrap()), Ok(()));
                    prop_assert_eq!(all[&inside], source_of(&out));
                    prop_assert!(before.get(&inside).is_none_or(|known| *known == all[&inside]));
                }
                None => {
                    // All seven ports of its address stand for others.
                    prop_assert!(!before.contains_key(&inside) && before.len() >= 7);
                }
            }
        }
    }
}

#[test]
fn a_source_is_settled_when_the_first_packet_leaves() {
    let mut rig = rig();
    let (pools, query) = (masquerade(), udp_frame(INSIDE, REMOTE, [1000, 53]));
    let led = Translation { sources: &[], destination: to("198.51.100.9", 5353) };
    let out = rig.through(&query, led).unwrap();
    assert_eq!(out, udp_frame(INSIDE, "198.51.100.9", [1000, 5353]));
    let id = rig.look(&query).connection.unwrap();
    assert!(!rig.table.get(id).unwrap().is_settled());
    rig.table.settle_source(id, &pools).unwrap();
    let out = rig.known(&query).unwrap();
    assert_eq!(out, udp_frame(OUTSIDE, "198.51.100.9", [1000, 5353]));
    let back = rig.known(&udp_frame("198.51.100.9", OUTSIDE, [5353, 1000])).unwrap();
    assert_eq!(back, udp_frame(REMOTE, INSIDE, [53, 1000]));
    rig.table.settle_source(id, &[pool("203.0.113.9", "203.0.113.9", [1, 9])]).unwrap();
    assert_eq!(rig.known(&query).unwrap(), out, "it stays settled");
    assert!(rig.table.end(id) && rig.table.is_empty());
    assert!(rig.known(&udp_frame("198.51.100.9", OUTSIDE, [5353, 1000])).is_none());
}

#[test]
fn an_end_of_the_pool_itself_keeps_its_port() {
    let mut rig = rig();
    let query = udp_frame(OUTSIDE, REMOTE, [1000, 53]);
    rig.through(&query, Translation::default()).unwrap();
    let id = rig.look(&query).connection.unwrap();
    rig.table.settle_source(id, &masquerade()).unwrap();
    assert_eq!(rig.known(&query).unwrap(), query);
    let other = rig.through(
        &udp_frame(INSIDE, REMOTE, [1000, 53]),
        Translation { sources: &masquerade(), destination: None },
    );
    assert_ne!(source_of(&other.unwrap()), source_of(&query));
}
