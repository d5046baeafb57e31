// SPDX-License-Identifier: Apache-2.0
//! RFC 5382: TCP.

use netvm_conntrack::{Config, Refusal, Timeouts};
use netvm_wire::{ConnState, TcpFlags};

use super::{ACK, OTHER_REMOTE, SYN, from, open_masquerade, plain, segment, syn_ack, with_timeouts};
use crate::nat::packets::error;
use crate::nat::{INSIDE, OTHER_INSIDE, OUTSIDE, REMOTE, ROUTER, masquerade, pool, source_of, to};
use crate::rig::Rig;

fn syn(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    segment(from, to, ports, SYN)
}

/// A connection from inside whose handshake is complete.
fn establish(rig: &mut Rig) {
    rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(&masquerade())).unwrap();
    rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], syn_ack())).unwrap();
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK)).unwrap();
    assert_eq!(rig.only().state().name(), "established");
}

#[test]
fn rfc5382_req_1_a_mapping_does_not_depend_on_the_destination() {
    let (mut rig, pools) = (plain(), masquerade());
    for (remote, port) in [(REMOTE, 80), (REMOTE, 81), (OTHER_REMOTE, 80)] {
        let out = rig.through(&syn(INSIDE, remote, [1000, port]), from(&pools)).unwrap();
        assert_eq!(out, syn(OUTSIDE, remote, [1000, port]));
    }
}

#[test]
fn rfc5382_req_2_both_ends_may_open_at_once() {
    let mut rig = plain();
    rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(&masquerade())).unwrap();
    assert_eq!(rig.known(&syn(REMOTE, OUTSIDE, [80, 1000])).unwrap(), syn(REMOTE, INSIDE, [80, 1000]));
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], syn_ack())).unwrap();
    rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], syn_ack())).unwrap();
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK)).unwrap();
    assert_eq!(rig.only().state().name(), "established");
}

#[test]
fn rfc5382_req_2_connections_begin_on_either_side() {
    establish(&mut plain());
    let (mut rig, pools) = (plain(), open_masquerade());
    rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(&pools)).unwrap();
    let ports = [4000, 1000];
    assert_eq!(rig.inwards(&syn(OTHER_REMOTE, OUTSIDE, ports)), Some(syn(OTHER_REMOTE, INSIDE, ports)));
    let answer = segment(INSIDE, OTHER_REMOTE, [1000, 4000], syn_ack());
    assert_eq!(rig.known(&answer), Some(segment(OUTSIDE, OTHER_REMOTE, [1000, 4000], syn_ack())));
    let third = rig.inwards(&segment(OTHER_REMOTE, OUTSIDE, ports, ACK));
    assert_eq!(third, Some(segment(OTHER_REMOTE, INSIDE, ports, ACK)));
}

#[test]
fn rfc5382_req_3_filtering_is_independent_of_the_other_end_by_option() {
    let (closed, open) = (masquerade(), open_masquerade());
    for (pools, is_open) in [(&closed, false), (&open, true)] {
        let mut rig = plain();
        rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(pools)).unwrap();
        assert_eq!(rig.inwards(&syn(OTHER_REMOTE, OUTSIDE, [80, 1000])).is_some(), is_open);
    }
}

#[test]
fn rfc5382_req_4_an_unsolicited_syn_leaves_no_state_and_does_not_hinder_a_connection() {
    let mut rig = plain();
    let unsolicited = syn(REMOTE, OUTSIDE, [80, 1000]);
    assert_eq!(rig.look(&unsolicited).state, ConnState::New);
    assert!(rig.inwards(&unsolicited).is_none() && rig.table.is_empty());
    rig.wait(3);
    rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(&masquerade())).unwrap();
    assert_eq!(rig.known(&unsolicited).unwrap(), syn(REMOTE, INSIDE, [80, 1000]), "its retransmission");
}

#[test]
fn rfc5382_req_5_idle_connections_stay_for_two_hours_and_four_minutes() {
    let mut rig = plain();
    establish(&mut rig);
    rig.wait(2 * 3600 + 4 * 60 - 1);
    rig.expire();
    assert!(rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], ACK)).is_some());
}

#[test]
fn rfc5382_req_5_transitory_connections_stay_as_long_as_configured() {
    let timeouts = Timeouts { tcp_syn_sent: 240, tcp_syn_recv: 240, ..Timeouts::default() };
    let mut rig = with_timeouts(timeouts);
    rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(&masquerade())).unwrap();
    rig.wait(239);
    rig.expire();
    assert!(rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], syn_ack())).is_some());
    rig.wait(239);
    rig.expire();
    assert!(rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK)).is_some());
}

#[test]
fn rfc5382_req_7_no_end_outside_stands_for_two() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [40_000, 40_001])]);
    let ports: Vec<_> = (1..=2)
        .map(|port| rig.through(&syn(INSIDE, REMOTE, [port, 80]), from(&pools)).unwrap())
        .map(|out| source_of(&out).1)
        .collect();
    assert_ne!(ports[0], ports[1]);
    let refused = rig.begin(&syn(OTHER_INSIDE, OTHER_REMOTE, [1, 80]), from(&pools));
    assert_eq!(refused, Err(Refusal::NoPort));
}

#[test]
fn rfc5382_req_8_hosts_inside_connect_by_their_ends_outside() {
    let (mut rig, pools) = (plain(), masquerade());
    rig.through(&syn(INSIDE, REMOTE, [1000, 80]), from(&pools)).unwrap();
    let there = syn(OTHER_INSIDE, OUTSIDE, [2000, 1000]);
    assert_eq!(rig.target(&there, true), to(INSIDE, 1000));
    assert_eq!(rig.hairpin(&there, &pools).unwrap(), syn(OUTSIDE, INSIDE, [2000, 1000]));
    let answer = rig.known(&segment(INSIDE, OUTSIDE, [1000, 2000], syn_ack()));
    assert_eq!(answer, Some(segment(OUTSIDE, OTHER_INSIDE, [1000, 2000], syn_ack())));
    let third = rig.known(&segment(OTHER_INSIDE, OUTSIDE, [2000, 1000], ACK));
    assert_eq!(third, Some(segment(OUTSIDE, INSIDE, [2000, 1000], ACK)));
}

#[test]
fn rfc5382_req_9_destination_unreachable_is_translated() {
    let mut rig = plain();
    let sent = syn(INSIDE, REMOTE, [1000, 80]);
    let out = rig.through(&sent, from(&masquerade())).unwrap();
    for from in [REMOTE, ROUTER] {
        assert_eq!(rig.known(&error(&out, from, OUTSIDE)).unwrap(), error(&sent, from, INSIDE));
    }
}

#[test]
fn rfc5382_req_10_no_icmp_message_ends_a_connection() {
    let mut rig = plain();
    establish(&mut rig);
    let out = segment(OUTSIDE, REMOTE, [1000, 80], ACK);
    for icmp_type in 0..=255 {
        let mut frame = error(&out, ROUTER, OUTSIDE);
        frame[34] = icmp_type;
        rig.look(&frame);
    }
    assert_eq!(rig.only().state().name(), "established");
    assert!(rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], ACK)).is_some());
}

#[test]
fn rfc5382_req_2_a_segment_in_mid_stream_is_translated_by_option() {
    for pick_up in [true, false] {
        let mut rig = Rig::new(&Config { mappings: 16, pick_up, ..Config::default() });
        let out = rig.through(&segment(INSIDE, REMOTE, [1000, 80], TcpFlags::ACK), from(&masquerade()));
        assert_eq!(out.is_some(), pick_up);
    }
}
