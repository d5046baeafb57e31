// SPDX-License-Identifier: Apache-2.0
//! RFC 4787: unicast UDP.

use std::collections::BTreeSet;

use netvm_conntrack::{ContactTable, Refusal, Timeouts};

use super::{
    OTHER_REMOTE, from, masquerade_by_address, open_masquerade, plain, port_outside, udp_to_remote,
    with_timeouts,
};
use crate::nat::packets::error;
use crate::nat::{INSIDE, OTHER_INSIDE, OUTSIDE, REMOTE, ROUTER, masquerade, pool, source_of, to, udp_frame};

#[test]
fn rfc4787_req_1_a_mapping_does_not_depend_on_the_destination() {
    let (mut rig, pools) = (plain(), masquerade());
    let first = source_of(&rig.through(&udp_frame(INSIDE, REMOTE, [1000, 53]), from(&pools)).unwrap());
    for (remote, port) in [(REMOTE, 54), (OTHER_REMOTE, 53), (OTHER_REMOTE, 54)] {
        let out = rig.through(&udp_frame(INSIDE, remote, [1000, port]), from(&pools)).unwrap();
        assert_eq!(source_of(&out), first);
    }
}

#[test]
fn rfc4787_req_2_an_address_inside_has_one_address_outside() {
    let (mut rig, pools) = (plain(), [pool("203.0.113.1", "203.0.113.8", [1024, u16::MAX])]);
    let mut addresses = BTreeSet::new();
    for host in 1..60 {
        let inside = format!("10.0.0.{host}");
        let own: BTreeSet<_> = (1..5)
            .map(|n| udp_frame(&inside, &format!("198.51.100.{n}"), [1000 + n, 53]))
            .map(|frame| source_of(&rig.through(&frame, from(&pools)).unwrap()).0)
            .collect();
        assert_eq!(own.len(), 1);
        addresses.extend(own);
    }
    assert_eq!(addresses.len(), 8, "all of the pool are used");
}

#[test]
fn rfc4787_req_3_no_end_outside_stands_for_two() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [40_000, 40_009])]);
    let mut ends = BTreeSet::new();
    for port in 1..=10 {
        let out = rig.through(&udp_to_remote(INSIDE, port), from(&pools)).unwrap();
        assert!(ends.insert(source_of(&out)));
    }
    // Not even for another remote host.
    let refused = rig.begin(&udp_frame(OTHER_INSIDE, OTHER_REMOTE, [1, 99]), from(&pools));
    assert_eq!(refused, Err(Refusal::NoPort));
}

#[test]
fn rfc4787_req_4_the_parity_of_ports_is_kept() {
    let mut rig = plain();
    for port in [1000, 1001, 5004, 5005] {
        assert_eq!(port_outside(&mut rig, &udp_to_remote(INSIDE, port)), port);
        for host in 2..30 {
            let outside = port_outside(&mut rig, &udp_to_remote(&format!("10.0.0.{host}"), port));
            assert!(outside != port && outside % 2 == port % 2, "{outside} for {port}");
        }
    }
}

#[test]
fn rfc4787_req_5_udp_mappings_last_as_long_as_configured() {
    for seconds in [120, 300] {
        let mut rig = with_timeouts(Timeouts { udp: seconds, udp_stream: seconds, ..Timeouts::default() });
        rig.through(&udp_to_remote(INSIDE, 1000), from(&masquerade())).unwrap();
        rig.wait(seconds - 1);
        rig.expire();
        assert!(rig.known(&udp_frame(REMOTE, OUTSIDE, [53, 1000])).is_some());
        rig.wait(seconds + 1);
        rig.expire();
        assert!(rig.known(&udp_frame(REMOTE, OUTSIDE, [53, 1000])).is_none());
    }
}

#[test]
fn rfc4787_req_6_packets_from_inside_and_from_outside_refresh_a_mapping() {
    for is_inbound in [false, true] {
        let (mut rig, pools) = (plain(), masquerade());
        let out = udp_to_remote(INSIDE, 1000);
        rig.through(&out, from(&pools)).unwrap();
        for _ in 0..20 {
            rig.wait(25);
            rig.expire();
            let frame = if is_inbound { udp_frame(REMOTE, OUTSIDE, [53, 1000]) } else { out.clone() };
            assert!(rig.known(&frame).is_some());
        }
        assert_eq!(rig.table.begun(), 1);
    }
}

#[test]
fn rfc4787_req_8_filtering_is_independent_of_the_other_end_by_option() {
    let (closed, open) = (masquerade(), open_masquerade());
    for (pools, is_open) in [(&closed, false), (&open, true)] {
        let mut rig = plain();
        rig.through(&udp_to_remote(INSIDE, 1000), from(pools)).unwrap();
        for (remote, port) in [(REMOTE, 54), (OTHER_REMOTE, 53)] {
            let inwards = rig.inwards(&udp_frame(remote, OUTSIDE, [port, 1000]));
            assert_eq!(inwards, is_open.then(|| udp_frame(remote, INSIDE, [port, 1000])));
            let answer = rig.known(&udp_frame(INSIDE, remote, [1000, port]));
            assert_eq!(answer, is_open.then(|| udp_frame(OUTSIDE, remote, [1000, port])));
        }
        assert!(
            rig.inwards(&udp_frame(REMOTE, OUTSIDE, [53, 1001])).is_none(),
            "no end inside has that port"
        );
    }
}

#[test]
fn rfc4787_req_8_filtering_depends_on_the_address_by_option() {
    let (mut rig, pools) = (plain(), masquerade_by_address());
    let same_address = udp_frame(REMOTE, OUTSIDE, [99, 1000]);
    rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap();
    assert!(rig.inwards(&same_address).is_none(), "without memory for it, the port counts, too");
    rig.table.filter_by_address(ContactTable::new(64).unwrap());
    rig.through(&udp_frame(INSIDE, REMOTE, [1000, 54]), from(&pools)).unwrap();
    // By its address, from any port; not to the port of another end.
    assert_eq!(rig.inwards(&same_address), Some(udp_frame(REMOTE, INSIDE, [99, 1000])));
    assert!(rig.inwards(&udp_frame(OTHER_REMOTE, OUTSIDE, [53, 1000])).is_none());
    rig.through(&udp_frame(OTHER_INSIDE, OTHER_REMOTE, [2000, 53]), from(&pools)).unwrap();
    assert!(rig.inwards(&udp_frame(REMOTE, OUTSIDE, [53, 2000])).is_none());
    // Another address, once the end inside has sent to it.
    let unasked = udp_frame(OTHER_REMOTE, OUTSIDE, [7, 1000]);
    assert!(rig.inwards(&unasked).is_none());
    rig.through(&udp_frame(INSIDE, OTHER_REMOTE, [1000, 53]), from(&pools)).unwrap();
    assert_eq!(rig.inwards(&unasked), Some(udp_frame(OTHER_REMOTE, INSIDE, [7, 1000])));
    // It ends with the connections, also with those that began before.
    rig.wait(200);
    rig.expire();
    assert!(rig.table.is_empty() && rig.inwards(&same_address).is_none());
    rig.through(&udp_to_remote(OTHER_INSIDE, 1000), from(&pools)).unwrap();
    assert!(rig.inwards(&unasked).is_none() && rig.inwards(&same_address).is_some());
}

#[test]
fn rfc4787_req_8_a_mapping_lasts_as_long_as_what_came_in_by_it() {
    let (mut rig, pools) = (plain(), open_masquerade());
    rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap();
    let inwards = udp_frame(OTHER_REMOTE, OUTSIDE, [99, 1000]);
    assert!(rig.inwards(&inwards).is_some());
    for _ in 0..5 {
        rig.wait(25);
        rig.expire();
        assert!(rig.inwards(&inwards).is_some());
    }
    assert_eq!(rig.table.len(), 1, "that which began the mapping has ended");
    let other = rig.through(&udp_to_remote(OTHER_INSIDE, 1000), from(&pools)).unwrap();
    assert_ne!(source_of(&other).1, 1000, "the end outside is taken");
    assert_eq!(source_of(&rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap()).1, 1000);
    rig.wait(200);
    rig.expire();
    assert!(rig.table.is_empty());
    let other = rig.through(&udp_to_remote(OTHER_INSIDE, 1000), from(&pools)).unwrap();
    assert_eq!(source_of(&other).1, 1000, "and is free again");
}

#[test]
fn rfc4787_req_9_hosts_inside_reach_each_other_with_their_ends_outside() {
    let (mut rig, pools) = (plain(), masquerade());
    rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap();
    let there = udp_frame(OTHER_INSIDE, OUTSIDE, [2000, 1000]);
    assert_eq!(rig.target(&there, true), to(INSIDE, 1000));
    // The source is the end outside (REQ-9a), the same as for other destinations.
    assert_eq!(rig.hairpin(&there, &pools).unwrap(), udp_frame(OUTSIDE, INSIDE, [2000, 1000]));
    let answer = rig.known(&udp_frame(INSIDE, OUTSIDE, [1000, 2000])).unwrap();
    assert_eq!(answer, udp_frame(OUTSIDE, OTHER_INSIDE, [1000, 2000]));
    let out = rig.through(&udp_to_remote(OTHER_INSIDE, 2000), from(&pools)).unwrap();
    assert_eq!(source_of(&out).1, 2000);
}

#[test]
fn rfc4787_req_11_behavior_is_the_same_when_ports_conflict_or_run_out() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [1000, 1003])]);
    let mut source = |from_host: &str, remote: &str, port| {
        let out = rig.through(&udp_frame(from_host, remote, [port, 53]), from(&pools));
        out.map(|out| source_of(&out))
    };
    let kept = source(INSIDE, REMOTE, 1000);
    let moved = source(OTHER_INSIDE, REMOTE, 1000);
    assert!(kept.is_some() && moved.is_some() && kept != moved);
    let rest = [source(INSIDE, REMOTE, 7), source(INSIDE, REMOTE, 8), source(INSIDE, REMOTE, 9)];
    assert_eq!(rest.iter().flatten().count(), 2, "four ports are all");
    for remote in [REMOTE, OTHER_REMOTE] {
        assert_eq!([source(INSIDE, remote, 1000), source(OTHER_INSIDE, remote, 1000)], [kept, moved]);
    }
    assert!(rig.inwards(&udp_frame(OTHER_REMOTE, OUTSIDE, [54, 1000])).is_none());
}

#[test]
fn rfc4787_req_12_no_icmp_message_ends_a_mapping() {
    let (mut rig, pools) = (plain(), masquerade());
    let out = rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap();
    for icmp_type in 0..=255 {
        // From any sender (REQ-12a).
        for router in [REMOTE, ROUTER] {
            let mut frame = error(&out, router, OUTSIDE);
            frame[34] = icmp_type;
            rig.look(&frame);
        }
    }
    assert!(rig.known(&udp_frame(REMOTE, OUTSIDE, [53, 1000])).is_some());
    let unreachable = rig.known(&error(&out, ROUTER, OUTSIDE)).unwrap();
    assert_eq!(unreachable, error(&udp_to_remote(INSIDE, 1000), ROUTER, INSIDE), "REQ-12b");
}
