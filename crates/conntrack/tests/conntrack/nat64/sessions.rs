// SPDX-License-Identifier: Apache-2.0
//! RFC 6146: sessions of hosts with IPv4 servers.

use netvm_conntrack::nat64::{Front, Prefix, Untranslatable};
use netvm_conntrack::{
    Config, Connections, ContactTable, Filtering, Nat64, NextPacket, Packet, Pool, Refusal, TICKS_PER_SECOND,
};
use netvm_wire::{ConnState, FrameBuilder, IpProto, PortRange, TcpFlags, checksum, parse};
use proptest::prelude::*;

use super::headers::with_fragment_flags;
use super::{AT_HAND, HOST, SERVER, SERVER_INSIDE, address};
use crate::rig::{Rig, between};

const OTHER_HOST: &str = "2001:db8:2::2";
const ROUTER: &str = "198.51.100.99";
const ROUTER_INSIDE: &str = "2001:db8:9::9";
/// The only address of the pool, and what stands for it in IPv6.
const POOL: &str = "203.0.113.5";
const POOL_INSIDE: &str = "2001:db8:64::cb00:7105";

fn config() -> Config {
    Config { sessions: 256, mappings: 256, mapping_key: Some(1), ..Config::default() }
}

/// A router with NAT64.
struct Router {
    rig: Rig,
    pools: [Pool; 1],
}

impl Router {
    fn new() -> Self {
        let ports = PortRange::new(1024, u16::MAX).unwrap();
        Self { rig: Rig::new(&config()), pools: [Pool::new(address(POOL), address(POOL), ports)] }
    }

    fn prefix() -> Prefix {
        Prefix::new("2001:db8:64::/96".parse().unwrap()).unwrap()
    }

    /// Passes a packet, which may begin a session. What the router makes of it is without an identification.
    fn pass(&mut self, frame: &[u8]) -> Result<Vec<u8>, Refused> {
        let key = *parse(frame).unwrap().key();
        let front = &frame[..frame.len().min(AT_HAND)];
        let packet = Packet { key: &key, zone: self.rig.zone, front, length: frame.len() };
        let mut tracked = self.rig.look(frame);
        if tracked.state == ConnState::New && tracked.connection.is_none() {
            let nat64 = Nat64 { prefix: Self::prefix(), pools: &self.pools };
            let begun = self.rig.table.confirm_nat64(&packet, self.rig.origin(), self.rig.now, &nat64);
            tracked.connection = Some(begun.map_err(Refused::Session)?);
        }
        let next = NextPacket::new(&packet, &tracked).ok_or(Refused::State(tracked.state))?;
        let mut front = Front::new();
        let translated = self.rig.table.translate_family(&next, &Self::prefix(), &mut front);
        let translated = translated.map_err(Refused::Packet)?;
        let mut new = [front.bytes(), &frame[translated.replaced..]].concat();
        new.truncate(translated.length);
        let headers = parse(&new).unwrap();
        if headers.key().source.is_v4() && new[20] & 0x3f == 0 && new[21] == 0 {
            new[18..20].fill(0);
            let sum_is_right = checksum::verify(&new, &headers);
            assert!(sum_is_right.is_err() || sum_is_right == Ok(()));
            checksum::fill(&mut new, &headers).unwrap();
        }
        Ok(new)
    }

    /// What two hosts say to each other: the IPv4 packet that one became goes to the other.
    fn hairpin(&mut self, frame: &[u8]) -> Result<Vec<u8>, Refused> {
        let outside = self.pass(frame)?;
        self.pass(&outside)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Session(Refusal),
    State(ConnState),
    Packet(Untranslatable),
}

fn udp(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    let frame = between(from, to).udp(ports[0], ports[1]).payload(b"payload").to_vec().unwrap();
    with_fragment_flags(frame)
}

/// The source port of a packet.
fn port_of(frame: &[u8]) -> u16 {
    parse(frame).unwrap().key().source_port
}

#[test]
fn a_host_reaches_a_server_and_gets_answers() {
    let mut router = Router::new();
    let out = router.pass(&udp(HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    assert_eq!(out, udp(POOL, SERVER, [5000, 53]));
    let back = router.pass(&udp(SERVER, POOL, [53, 5000])).unwrap();
    assert_eq!(back, udp(SERVER_INSIDE, HOST, [53, 5000]));
    assert_eq!(router.rig.look(&udp(HOST, SERVER_INSIDE, [5000, 53])).state, ConnState::Established);
    assert_eq!(router.rig.table.len(), 1);
    assert!(router.rig.only().is_nat64());
}

/// Section 3.5.1: the mapping of a host's end is the same for all servers, and of that end alone.
#[test]
fn rfc6146_3_5_1_mappings_are_endpoint_independent() {
    let mut router = Router::new();
    let mut source = |host, server| port_of(&router.pass(&udp(host, server, [5000, 53])).unwrap());
    let (first, other) = (source(HOST, SERVER_INSIDE), source(OTHER_HOST, SERVER_INSIDE));
    assert_ne!(first, other);
    for server in ["2001:db8:64::c633:6408", "2001:db8:64::c633:6409"] {
        assert_eq!((source(HOST, server), source(OTHER_HOST, server)), (first, other));
    }
}

#[test]
fn rfc6146_3_5_1_filtering_is_by_address_and_port_or_by_none() {
    let mut router = Router::new();
    router.pass(&udp(HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    let unsolicited = udp(ROUTER, POOL, [7, 5000]);
    assert_eq!(router.pass(&unsolicited), Err(Refused::Session(Refusal::NotTranslatable)));
    let mut router = Router::new();
    router.pools[0].filtering = Filtering::EndpointIndependent;
    assert_eq!(router.pass(&unsolicited), Err(Refused::Session(Refusal::NotTranslatable)), "no mapping yet");
    router.pass(&udp(HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    let inwards = router.pass(&unsolicited).unwrap();
    assert_eq!(inwards, udp("2001:db8:64::c633:6463", HOST, [7, 5000]));
    let answer = router.pass(&udp(HOST, "2001:db8:64::c633:6463", [5000, 7])).unwrap();
    assert_eq!(answer, udp(POOL, ROUTER, [5000, 7]));
}

#[test]
fn rfc6146_3_5_1_filtering_depends_on_the_address_by_option() {
    let mut router = Router::new();
    router.rig.table.filter_by_address(ContactTable::new(64).unwrap());
    router.pools[0].filtering = Filtering::AddressDependent;
    router.pass(&udp(HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    assert_eq!(router.pass(&udp(SERVER, POOL, [7, 5000])).unwrap(), udp(SERVER_INSIDE, HOST, [7, 5000]));
    let unsolicited = router.pass(&udp(ROUTER, POOL, [53, 5000]));
    assert_eq!(unsolicited, Err(Refused::Session(Refusal::NotTranslatable)));
}

#[test]
fn rfc6146_3_5_other_addresses_are_refused() {
    let mut router = Router::new();
    let refused = Err(Refused::Session(Refusal::NotTranslatable));
    assert_eq!(router.pass(&udp(HOST, "2001:db8:65::1", [1, 2])), refused, "not the prefix");
    assert_eq!(router.pass(&udp(POOL_INSIDE, SERVER_INSIDE, [1, 2])), refused, "a loop");
    assert_eq!(router.pass(&udp(SERVER, POOL, [53, 5000])), refused, "no mapping");
    router.pools[0] = Pool { first: address(HOST), last: address(HOST), ..router.pools[0] };
    assert_eq!(router.pass(&udp(HOST, SERVER_INSIDE, [1, 2])), refused, "an IPv6 pool");
    assert!(router.rig.table.is_empty());
}

/// Section 3.8: two hosts reach each other by the ends that stand for them in IPv4.
#[test]
fn rfc6146_3_8_hairpinning() {
    let mut router = Router::new();
    let ends = [HOST, OTHER_HOST].map(|host| {
        let out = router.pass(&udp(host, SERVER_INSIDE, [5000, 53])).unwrap();
        port_of(&out)
    });
    let [first, other] = ends;
    for _ in 0..2 {
        let to = router.hairpin(&udp(HOST, POOL_INSIDE, [5000, other])).unwrap();
        assert_eq!(to, udp(POOL_INSIDE, OTHER_HOST, [first, 5000]));
        let back = router.hairpin(&udp(OTHER_HOST, POOL_INSIDE, [5000, first])).unwrap();
        assert_eq!(back, udp(POOL_INSIDE, HOST, [other, 5000]));
    }
    assert_eq!(router.rig.table.len(), 4);
}

#[test]
fn echoes_have_an_identifier_of_the_pool() {
    let mut router = Router::new();
    let echo = |from: &str, to: &str, is_reply, identifier| {
        let built = between(from, to).echo(is_reply, identifier, 9).payload(b"payload");
        with_fragment_flags(built.to_vec().unwrap())
    };
    let out = router.pass(&echo(HOST, SERVER_INSIDE, false, 5000)).unwrap();
    assert_eq!(out, echo(POOL, SERVER, false, 5000));
    let other = router.pass(&echo(OTHER_HOST, SERVER_INSIDE, false, 5000)).unwrap();
    let identifier = u16::from_be_bytes([other[38], other[39]]);
    assert_eq!(other, echo(POOL, SERVER, false, identifier));
    assert_ne!(identifier, 5000);
    let back = router.pass(&echo(SERVER, POOL, true, identifier)).unwrap();
    assert_eq!(back, echo(SERVER_INSIDE, OTHER_HOST, true, 5000));
    let unasked = echo(SERVER, POOL, true, identifier.wrapping_add(7));
    assert_eq!(router.pass(&unasked), Err(Refused::State(ConnState::Invalid)));
}

#[test]
fn a_tcp_handshake_establishes_a_session() {
    let mut router = Router::new();
    let segment = |from: &str, to: &str, ports: [u16; 2], flags| {
        let built = between(from, to).tcp(ports[0], ports[1], flags);
        let numbers = if flags == TcpFlags::SYN { [1, 0] } else { [2, 2] };
        with_fragment_flags(built.numbers(numbers[0], numbers[1]).to_vec().unwrap())
    };
    let (out, back) = ([5000, 80], [80, 5000]);
    let syn = router.pass(&segment(HOST, SERVER_INSIDE, out, TcpFlags::SYN)).unwrap();
    assert_eq!(syn, segment(POOL, SERVER, out, TcpFlags::SYN));
    let mut answer = between(SERVER, POOL).tcp(80, 5000, TcpFlags::SYN | TcpFlags::ACK).numbers(1, 2);
    router.pass(&answer.to_vec().unwrap()).unwrap();
    assert_eq!(router.rig.only().left(router.rig.now) / TICKS_PER_SECOND, 240, "TCP_TRANS");
    router.pass(&segment(HOST, SERVER_INSIDE, out, TcpFlags::ACK)).unwrap();
    assert_eq!(router.rig.only().state().name(), "established");
    assert_eq!(router.rig.only().left(router.rig.now) / TICKS_PER_SECOND, 7440, "TCP_EST");
    answer = between(SERVER, POOL).tcp(80, 5000, TcpFlags::RST | TcpFlags::ACK).numbers(2_000_000_000, 2);
    assert_eq!(router.pass(&answer.to_vec().unwrap()), Err(Refused::State(ConnState::Invalid)));
    let data = router.pass(&segment(SERVER, POOL, back, TcpFlags::ACK)).unwrap();
    assert_eq!(data, segment(SERVER_INSIDE, HOST, back, TcpFlags::ACK));
}

/// Section 4: the default time-outs are the least that a session has.
#[test]
fn rfc6146_4_timeouts() {
    let mut router = Router::new();
    let out = udp(HOST, SERVER_INSIDE, [5000, 53]);
    router.pass(&out).unwrap();
    router.rig.wait(299);
    assert!(router.pass(&udp(SERVER, POOL, [53, 5000])).is_ok());
    router.rig.wait(301);
    assert!(router.pass(&udp(SERVER, POOL, [53, 5000])).is_err(), "UDP_DEFAULT");
    router.pass(&between(HOST, SERVER_INSIDE).echo(false, 5000, 1).to_vec().unwrap()).unwrap();
    let reply = between(SERVER, POOL).echo(true, 5000, 1).to_vec().unwrap();
    router.rig.wait(59);
    assert!(router.pass(&reply).is_ok());
    router.rig.wait(61);
    assert!(router.pass(&reply).is_err(), "ICMP_DEFAULT");
    router.rig.table.expire(router.rig.now, 256);
    assert!(router.rig.table.is_empty());
}

/// An error about a packet, with its header's type, code and the four bytes after the checksum.
fn error(from: &str, to: &str, [kind, code, a, b, c, d]: [u8; 6], about: &[u8]) -> Vec<u8> {
    let protocol = if address(from).is_v4() { IpProto::ICMP } else { IpProto::ICMPV6 };
    let message = [&[kind, code, 0, 0, a, b, c, d][..], &about[14..]].concat();
    let mut frame = between(from, to).protocol(protocol).payload(&message).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    checksum::fill(&mut frame, &headers).unwrap();
    with_fragment_flags(frame)
}

/// Traceroute and path MTU discovery.
#[test]
fn errors_belong_to_sessions() {
    let mut router = Router::new();
    let (sent, answered) = (udp(HOST, SERVER_INSIDE, [5000, 53]), udp(SERVER, POOL, [53, 5000]));
    let out = router.pass(&sent).unwrap();
    let back = router.pass(&answered).unwrap();
    for (from, inside) in [(SERVER, SERVER_INSIDE), (ROUTER, "2001:db8:64::c633:6463")] {
        let exceeded = router.pass(&error(from, POOL, [11, 0, 0, 0, 0, 0], &out)).unwrap();
        assert_eq!(exceeded, error(inside, HOST, [3, 0, 0, 0, 0, 0], &sent));
        let too_long = router.pass(&error(from, POOL, [3, 4, 0, 0, 5, 0x78], &out)).unwrap();
        assert_eq!(too_long, error(inside, HOST, [2, 0, 0, 0, 5, 0x8c], &sent));
    }
    for from in [HOST, ROUTER_INSIDE] {
        let too_big = router.pass(&error(from, SERVER_INSIDE, [2, 0, 0, 0, 5, 0x78], &back)).unwrap();
        assert_eq!(too_big, error(POOL, SERVER, [3, 4, 0, 0, 5, 0x64], &answered));
    }
    let foreign = udp(POOL, SERVER, [5001, 53]);
    let refused = router.pass(&error(ROUTER, POOL, [11, 0, 0, 0, 0, 0], &foreign));
    assert_eq!(refused, Err(Refused::State(ConnState::Invalid)));
}

#[test]
fn fragments_follow_the_first_one() {
    let mut router = Router::new();
    // Another host has the port, so that it changes.
    router.pass(&udp(OTHER_HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    let whole = |from: &str, to: &str, ports: [u16; 2]| {
        let built = between(from, to).udp(ports[0], ports[1]).payload(&[9; 64]).to_vec().unwrap();
        let at = parse(&built).unwrap().l4_offset().unwrap();
        built[at..].to_vec()
    };
    let fragments = |from: &str, to: &str, ports: [u16; 2]| {
        let datagram = whole(from, to, ports);
        let piece = |offset: u16, more: bool, data: &[u8]| {
            let built: FrameBuilder<'_> = between(from, to).fragment(5, offset, more);
            built.protocol(IpProto::UDP).payload(data).to_vec().unwrap()
        };
        [piece(0, true, &datagram[..32]), piece(4, false, &datagram[32..])]
    };
    let [first, last] = fragments(HOST, SERVER_INSIDE, [5000, 53]);
    let out = router.pass(&first).unwrap();
    let port = port_of(&out);
    assert_ne!(port, 5000);
    assert_eq!([out, router.pass(&last).unwrap()], fragments(POOL, SERVER, [port, 53]));
    for (outside, inside) in
        fragments(SERVER, POOL, [53, port]).iter().zip(fragments(SERVER_INSIDE, HOST, [53, 5000]))
    {
        assert_eq!(router.pass(outside), Ok(inside));
    }
    let lost = between(SERVER, POOL).fragment(6, 4, false).protocol(IpProto::UDP).payload(&[0; 8]);
    assert_eq!(router.pass(&lost.to_vec().unwrap()), Err(Refused::State(ConnState::Invalid)));
}

#[test]
fn sessions_and_mappings_end_together() {
    let mut router = Router::new();
    router.pools[0].ports = PortRange::new(5000, 5001).unwrap();
    let frame = |port| udp(HOST, SERVER_INSIDE, [port, 53]);
    router.pass(&frame(1)).unwrap();
    router.pass(&frame(2)).unwrap();
    assert_eq!(router.pass(&frame(3)), Err(Refused::Session(Refusal::NoPort)));
    router.rig.wait(301);
    router.rig.table.expire(router.rig.now, 256);
    assert!(router.pass(&frame(3)).is_ok());
}

#[test]
fn a_restored_session_goes_on() {
    let mut router = Router::new();
    let out = router.pass(&udp(HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    let echo = between(HOST, SERVER_INSIDE).echo(false, 7000, 1).to_vec().unwrap();
    let echoed = router.pass(&echo).unwrap();
    let saved = router.rig.saved();
    router.rig.table = Connections::new(&config()).unwrap();
    for connection in saved {
        router.rig.table.restore(&connection, router.rig.now).unwrap();
    }
    assert_eq!(router.pass(&udp(SERVER, POOL, [53, 5000])), Ok(udp(SERVER_INSIDE, HOST, [53, 5000])));
    assert_eq!(router.pass(&udp(HOST, SERVER_INSIDE, [5000, 53])), Ok(out));
    assert_eq!(router.pass(&echo), Ok(echoed));
    let other = router.pass(&udp(OTHER_HOST, SERVER_INSIDE, [5000, 53])).unwrap();
    assert_ne!(port_of(&other), 5000, "the mapping is restored, too");
}

#[test]
fn a_connection_of_one_family_is_not_translated_to_the_other() {
    let mut rig = Rig::new(&config());
    let frame = udp(SERVER, POOL, [1, 2]);
    let id = rig.confirm(&frame).unwrap();
    let key = *parse(&frame).unwrap().key();
    let packet = Packet { key: &key, zone: rig.zone, front: &frame, length: frame.len() };
    let next = NextPacket { packet: &packet, connection: id, is_reply: false, is_partial: false };
    let translated = rig.table.translate_family(&next, &Router::prefix(), &mut Front::new());
    assert_eq!(translated, Err(Untranslatable::NoConnection));
}

proptest! {
    #[test]
    fn payloads_pass_unchanged_in_both_directions(
        kind in 0..3, from: u16, to: u16, payload in prop::collection::vec(any::<u8>(), 0..1300),
    ) {
        let mut router = Router::new();
        // So that the port changes in half of the cases.
        router.pools[0].ports = PortRange::new(0x8000, u16::MAX).unwrap();
        let frame = |from: &str, to: &str, ports: [u16; 2], is_reply: bool| {
            let built = between(from, to).payload(&payload);
            let built = match kind {
                0 => built.udp(ports[0], ports[1]),
                1 => built.tcp(ports[0], ports[1], TcpFlags::ACK),
                _ => built.echo(is_reply, if is_reply { ports[1] } else { ports[0] }, 1),
            };
            with_fragment_flags(built.to_vec().unwrap())
        };
        let out = router.pass(&frame(HOST, SERVER_INSIDE, [from, to], false)).unwrap();
        let at = parse(&out).unwrap().l4_offset().unwrap();
        let place = if kind == 2 { at + 4 } else { at };
        let port = u16::from_be_bytes([out[place], out[place + 1]]);
        prop_assert_eq!(out, frame(POOL, SERVER, [port, to], false));
        let back = router.pass(&frame(SERVER, POOL, [to, port], true)).unwrap();
        prop_assert_eq!(back, frame(SERVER_INSIDE, HOST, [to, from], true));
    }
}
