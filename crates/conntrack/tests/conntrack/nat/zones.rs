// SPDX-License-Identifier: Apache-2.0
//! Zones are in every key, and nothing of an ended connection is left.

use netvm_conntrack::{Refusal, Translation, Zone};
use netvm_wire::{ConnState, IpProto, TcpFlags};

use super::packets::error;
use super::{INSIDE, OTHER_INSIDE, OUTSIDE, REMOTE, ROUTER, masquerade, pool, rig, source_of, to, udp_frame};
use crate::rig::{Rig, between};

#[test]
fn tenants_with_the_same_addresses_do_not_meet() {
    let (mut rig, pools) = (rig(), [pool(OUTSIDE, OUTSIDE, [40_000, 40_000])]);
    let translation = Translation { sources: &pools, destination: None };
    let answer = udp_frame(REMOTE, OUTSIDE, [53, 40_000]);
    let mut hosts = Vec::new();
    for (zone, host) in [(1, INSIDE), (2, OTHER_INSIDE)] {
        rig.zone = Zone(zone);
        let out = rig.through(&udp_frame(host, REMOTE, [1000, 53]), translation).unwrap();
        assert_eq!(source_of(&out).1, 40_000, "the only port, of each zone");
        hosts.push((Zone(zone), host, out));
    }
    for (zone, host, out) in &hosts {
        rig.zone = *zone;
        assert_eq!(rig.known(&answer).unwrap(), udp_frame(REMOTE, host, [53, 1000]));
        let sent = udp_frame(host, REMOTE, [1000, 53]);
        assert_eq!(rig.known(&error(out, ROUTER, OUTSIDE)).unwrap(), error(&sent, ROUTER, host));
        let hairpin = udp_frame("10.0.0.3", OUTSIDE, [5, 40_000]);
        assert_eq!(rig.target(&hairpin, true), to(host, 1000));
        assert_eq!(rig.begin(&udp_frame("10.0.0.3", REMOTE, [1, 53]), translation), Err(Refusal::NoPort));
    }
    rig.zone = Zone(3);
    assert!(rig.known(&answer).is_none() && rig.target(&answer, true).is_none());
}

#[test]
fn fragments_of_tenants_do_not_meet() {
    let (mut rig, pools) = (rig(), masquerade());
    let translation = Translation { sources: &pools, destination: None };
    let first =
        between(INSIDE, REMOTE).fragment(5, 0, true).udp(1000, 53).payload(&[9; 24]).to_vec().unwrap();
    let later = between(INSIDE, REMOTE).fragment(5, 4, false).protocol(IpProto::UDP).payload(&[9; 40]);
    let later = later.to_vec().unwrap();
    rig.zone = Zone(1);
    rig.through(&first, translation).unwrap();
    assert!(rig.look(&later).connection.is_some());
    rig.zone = Zone(2);
    assert_eq!(rig.look(&later).state, ConnState::Invalid);
}

/// Begins connections of all kinds. Returns packets of both directions.
fn all_kinds(rig: &mut Rig) -> Vec<Vec<u8>> {
    let pools = masquerade();
    let out = Translation { sources: &pools, destination: None };
    let published = Translation { sources: &[], destination: to(INSIDE, 80) };
    let syn = |from: &str, to: &str, ports: [u16; 2]| {
        between(from, to).tcp(ports[0], ports[1], TcpFlags::SYN).numbers(9, 0).to_vec().unwrap()
    };
    let gre = between(INSIDE, REMOTE).protocol(IpProto::GRE).payload(&[0; 8]).to_vec().unwrap();
    let echo = between(INSIDE, REMOTE).echo(false, 7, 1).to_vec().unwrap();
    let hairpin = udp_frame(OTHER_INSIDE, OUTSIDE, [2000, 1000]);
    let mut packets = Vec::new();
    for (frame, translation) in [
        (udp_frame(INSIDE, REMOTE, [1000, 53]), out),
        (syn(INSIDE, REMOTE, [1000, 80]), out),
        (gre, out),
        (echo, out),
        (syn(REMOTE, OUTSIDE, [7000, 8080]), published),
        (hairpin, Translation { sources: &pools, destination: to(INSIDE, 1000) }),
        (udp_frame(INSIDE, "10.0.1.1", [9, 9]), Translation::default()),
    ] {
        rig.through(&frame, translation).unwrap();
        packets.push(frame);
    }
    for (_, connection) in rig.table.page(0, 4096, rig.now) {
        let reply = connection.reply();
        let [from, to] = [reply.source, reply.destination].map(|it| it.to_ip().to_string());
        let builder = between(&from, &to);
        packets.push(match reply.protocol {
            IpProto::UDP => udp_frame(&from, &to, [reply.source_port, reply.destination_port]),
            IpProto::TCP => {
                let flags = TcpFlags::SYN | TcpFlags::ACK;
                let tcp = builder.tcp(reply.source_port, reply.destination_port, flags);
                tcp.numbers(1, 10).to_vec().unwrap()
            }
            IpProto::ICMP => builder.echo(true, reply.source_port, 1).to_vec().unwrap(),
            protocol => builder.protocol(protocol).payload(&[0; 8]).to_vec().unwrap(),
        });
    }
    assert_eq!(packets.len(), 14);
    packets.sort();
    packets
}

#[test]
fn a_flush_misses_nothing() {
    for ends_all_at_once in [false, true] {
        let mut rig = rig();
        let packets = all_kinds(&mut rig);
        assert!(packets.iter().all(|packet| rig.look(packet).connection.is_some()));
        if ends_all_at_once {
            rig.table.end_slots(0, rig.table.capacity());
        } else {
            let ids: Vec<_> = rig.table.page(0, 4096, rig.now).map(|(id, _)| id).collect();
            assert!(ids.into_iter().all(|id| rig.table.end(id)));
        }
        assert!(rig.table.is_empty());
        for packet in &packets {
            assert!(rig.look(packet).connection.is_none());
            assert!(rig.target(packet, true).is_none(), "no mapping is left");
        }
        // All of it can begin anew, with the same ends.
        assert_eq!(all_kinds(&mut rig), packets);
    }
}
