// SPDX-License-Identifier: Apache-2.0
//! UDP, ICMP, fragments and zones, by hand.

use netvm_conntrack::{Config, Refusal, Zone};
use netvm_wire::{ConnState, IpProto, VlanId};

use super::rig::{CLIENT, Rig, SERVER, between, error_about, from, udp};
use ConnState::{Established, Invalid, New, Related, Untracked};

fn rig() -> Rig {
    Rig::new(&Config::default())
}

#[test]
fn nothing_begins_before_rules_accept() {
    let mut rig = rig();
    for _ in 0..3 {
        assert_eq!(rig.look(&udp(false)).state, New);
        assert_eq!(rig.look(&udp(true)).state, New);
    }
    assert!(rig.table.is_empty());
}

#[test]
fn udp_is_established_by_an_answer_and_a_stream_after_two_seconds() {
    let mut rig = rig();
    assert_eq!(rig.pass(&udp(false)), New);
    assert_eq!(rig.pass(&udp(false)), New);
    assert_eq!((rig.table.incomplete(), rig.only().left(rig.now)), (1, 300));
    assert_eq!(rig.pass(&udp(true)), Established);
    assert_eq!(rig.pass(&udp(false)), Established);
    assert_eq!((rig.table.incomplete(), rig.only().left(rig.now)), (0, 300));
    rig.wait(3);
    assert_eq!(rig.pass(&udp(false)), Established);
    assert_eq!(rig.only().left(rig.now), 1200);
    rig.wait(121);
    assert_eq!(rig.look(&udp(true)).state, New);
    assert_eq!((rig.table.len(), rig.table.ended().expired), (0, 1));
}

#[test]
fn packets_and_bytes_are_counted_by_direction() {
    let mut rig = rig();
    rig.pass(&udp(false));
    rig.pass(&udp(true));
    rig.pass(&udp(true));
    let (connection, length) = (rig.only(), udp(true).len() as u64);
    assert_eq!((connection.packets(), connection.bytes), ([1, 2], [length, 2 * length]));
    assert_eq!(connection.original().source.to_string(), CLIENT);
    assert_eq!(connection.reply().source.to_string(), SERVER);
}

#[test]
fn the_hand_ends_connections_whose_time_is_over() {
    let mut rig = Rig::new(&Config { sessions: 100, ..Config::default() });
    for port in 1..=50 {
        rig.pass(&from(false).udp(port, 53).to_vec().unwrap());
    }
    rig.wait(29);
    assert_eq!(rig.table.expire(rig.now, 100), 0);
    rig.wait(2);
    assert_eq!((rig.table.expire(rig.now, 25), rig.table.expire(rig.now, 1000)), (25, 25));
    assert!(rig.table.is_empty());
}

#[test]
fn an_echo_reply_needs_its_request() {
    let mut rig = rig();
    let echo = |is_server, reply, id| from(is_server).echo(reply, id, 1).to_vec().unwrap();
    assert_eq!(rig.pass(&echo(true, true, 7)), Invalid);
    assert_eq!(rig.pass(&echo(false, false, 7)), New);
    assert_eq!(rig.pass(&echo(true, true, 8)), Invalid);
    assert_eq!(rig.pass(&echo(true, true, 7)), Established);
    assert_eq!(rig.pass(&echo(false, false, 7)), Established);
    assert_eq!(rig.look(&echo(true, false, 7)).state, New, "a request of the other end is no reply");
    let sent = echo(false, false, 7);
    assert_eq!(rig.look(&error_about(&sent, "192.0.2.1", CLIENT)).state, Related);
    assert_eq!(rig.look(&error_about(&echo(false, false, 9), "192.0.2.1", CLIENT)).state, Invalid);
}

#[test]
fn messages_of_the_link_are_not_tracked_and_unknown_ones_are_invalid() {
    let message = |from: &str, to: &str, protocol, kind: u8| {
        between(from, to).protocol(protocol).payload(&[kind, 0, 0, 0, 0, 0, 0, 0]).to_vec().unwrap()
    };
    let mut rig = rig();
    for kind in [133, 135, 136, 143] {
        assert_eq!(rig.pass(&message("fe80::1", "fe80::2", IpProto::ICMPV6, kind)), Untracked);
    }
    assert_eq!(rig.pass(&message("fe80::1", "fe80::2", IpProto::ICMPV6, 200)), Invalid);
    assert_eq!(rig.pass(&message(CLIENT, SERVER, IpProto::ICMP, 9)), Invalid);
    assert_eq!(rig.pass(&message(CLIENT, SERVER, IpProto::ICMP, 3)), Invalid, "an error about nothing");
    assert!(rig.table.is_empty());
}

#[test]
fn zones_do_not_meet() {
    let mut rig = rig();
    rig.pass(&udp(false));
    rig.zone = Zone(1);
    assert_eq!(rig.look(&udp(true)).state, New);
    let error = error_about(&udp(false), SERVER, CLIENT);
    assert_eq!(rig.look(&error).state, Invalid);
    rig.zone = Zone(0);
    assert_eq!((rig.look(&error).state, rig.look(&udp(true)).state), (Related, Established));
}

#[test]
fn later_fragments_follow_the_first() {
    for (a, b) in [(CLIENT, SERVER), ("2001:db8::1", "2001:db8::2")] {
        let first = between(a, b).fragment(9, 0, true).udp(1000, 53).payload(&[1; 8]).to_vec().unwrap();
        let later = |id, more: bool| {
            let fragment = between(a, b).fragment(id, 2, more).protocol(IpProto::UDP);
            fragment.payload(&[1; 8]).to_vec().unwrap()
        };
        let mut rig = rig();
        assert_eq!(rig.pass(&later(9, true)), Invalid, "before the first");
        assert_eq!(rig.look(&first).state, New);
        // All of a burst are tracked before rules accept the first.
        let tracked = rig.look(&later(9, true));
        assert_eq!((tracked.state, tracked.ports), (New, Some([1000, 53])));
        assert_eq!(rig.confirm(&later(9, true)), Err(Refusal::NotNew), "rules have dropped the first");
        let connection = rig.confirm(&first).unwrap();
        assert_eq!(rig.confirm(&later(9, true)), Ok(connection));
        assert_eq!(rig.look(&later(9, false)).connection, Some(connection));
        assert_eq!(rig.look(&later(8, false)).state, Invalid);
        let answer = between(b, a).udp(53, 1000).to_vec().unwrap();
        assert_eq!(rig.pass(&answer), Established);
        assert_eq!(rig.look(&later(9, false)).state, Established);
        rig.wait(31);
        assert_eq!(rig.look(&later(9, false)).state, Invalid);
    }
}

#[test]
fn fragments_of_connections_outlive_others() {
    let first = |id: u16, port| from(false).fragment(id, 0, true).udp(port, 53).to_vec().unwrap();
    let mut rig = Rig::new(&Config { fragments: 4, ..Config::default() });
    assert_eq!(rig.pass(&first(1, 1)), New);
    for id in 2..100 {
        assert_eq!(rig.look(&first(id, 2)).state, New);
    }
    let later = from(false).fragment(1, 1, false).protocol(IpProto::UDP).payload(&[1; 8]).to_vec().unwrap();
    assert_eq!(rig.look(&later).ports, Some([1, 53]));
}

#[test]
fn layers_are_found_behind_tags_and_extension_headers() {
    let mut rig = rig();
    let vlan = VlanId::new(5).unwrap();
    for (a, b) in [(CLIENT, SERVER), ("2001:db8::1", "2001:db8::2")] {
        let mut frames = Vec::new();
        for tags in 0..3 {
            let mut builder = between(a, b);
            for _ in 0..tags {
                builder = builder.vlan(vlan);
            }
            frames.push(builder.echo(false, 7, 1).to_vec().unwrap());
        }
        let plain = frames[0].clone();
        let mut priority = plain[..12].to_vec();
        priority.extend([0x81, 0, 0xe0, 0]);
        priority.extend(&plain[12..]);
        let mut snap = plain[..12].to_vec();
        snap.extend((plain.len() as u16 - 6).to_be_bytes());
        snap.extend([0xaa, 0xaa, 3, 0, 0, 0]);
        snap.extend(&plain[12..]);
        frames.extend([priority, snap]);
        if plain[12] == 0x86 {
            // Hop-by-hop options.
            let mut options = plain[..54].to_vec();
            options[19] += 8;
            options[20] = 0;
            options.extend([58, 0, 1, 4, 0, 0, 0, 0]);
            options.extend(&plain[54..]);
            frames.push(options);
        }
        for frame in &frames {
            rig.pass(frame);
        }
        let reply = between(b, a).echo(true, 7, 1).to_vec().unwrap();
        assert_eq!(rig.pass(&reply), Established);
    }
    assert_eq!(rig.table.len(), 2);
}

#[test]
fn ending_by_hand_ends_one_connection_and_never_its_successor() {
    let mut rig = Rig::new(&Config { sessions: 1, ..Config::default() });
    let first = rig.confirm(&udp(false)).unwrap();
    assert!(rig.table.end(first));
    let second = rig.confirm(&udp(false)).unwrap();
    assert!(!rig.table.end(first) && rig.table.get(first).is_none());
    assert_eq!((rig.table.get(second).is_some(), rig.table.ended().flushed), (true, 1));
    let taken = rig.table.take(second).unwrap();
    assert!(rig.table.is_empty() && rig.table.adopt(&taken) && !rig.table.adopt(&taken));
    assert_eq!(rig.pass(&udp(true)), Established);
}
