// SPDX-License-Identifier: Apache-2.0
//! RFC 7857: updates. Its sections have no numbers of requirements: tests have those of sections.

use netvm_conntrack::{Refusal, Timeouts};
use netvm_wire::TcpFlags;

use super::{
    ACK, OTHER_REMOTE, SYN, from, open_masquerade, plain, segment, syn_ack, udp_to_remote, with_timeouts,
};
use crate::nat::blocks::{in_blocks, rig_with_blocks};
use crate::nat::packets::error;
use crate::nat::{INSIDE, OUTSIDE, REMOTE, masquerade, pool, source_of, udp_frame};

#[test]
fn rfc7857_section_2_1_opening_and_closing_have_time_outs_of_their_own() {
    let timeouts = Timeouts { tcp_syn_sent: 240, tcp_fin_wait: 300, ..Timeouts::default() };
    let mut rig = with_timeouts(timeouts);
    rig.through(&segment(INSIDE, REMOTE, [1000, 80], SYN), from(&masquerade())).unwrap();
    assert_eq!(rig.only().left(rig.now), 2400);
    rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], syn_ack())).unwrap();
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK)).unwrap();
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK | TcpFlags::FIN)).unwrap();
    assert_eq!(rig.only().left(rig.now), 3000);
}

#[test]
fn rfc7857_section_2_2_a_reset_is_translated_and_the_connection_waits_as_configured() {
    let mut rig = with_timeouts(Timeouts { tcp_close: 240, ..Timeouts::default() });
    rig.through(&segment(INSIDE, REMOTE, [1000, 80], SYN), from(&masquerade())).unwrap();
    rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], syn_ack())).unwrap();
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK)).unwrap();
    let reset = rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], TcpFlags::RST)).unwrap();
    assert_eq!(reset, segment(REMOTE, INSIDE, [80, 1000], TcpFlags::RST));
    rig.wait(239);
    rig.expire();
    assert_eq!(rig.only().state().name(), "close");
    rig.wait(2);
    rig.expire();
    assert!(rig.table.is_empty());
}

#[test]
fn rfc7857_section_4_an_address_inside_stays_at_its_address_when_its_ports_run_out() {
    let mut rig = rig_with_blocks(64);
    let pools = [in_blocks(pool("203.0.113.1", "203.0.113.4", [64, 127]), 16, 4)];
    let mut source = |host: u8, port| {
        let out = rig.through(&udp_to_remote(&format!("10.0.0.{host}"), port), from(&pools));
        out.map(|out| source_of(&out).0).ok_or(Refusal::NoPort)
    };
    let first = source(1, 1).unwrap();
    // Others take the rest of its address.
    let others = (2..=13).filter(|host| source(*host, 1) == Ok(first)).count();
    assert!(others > 0);
    for port in 2..=64 {
        let address = source(1, port);
        assert!(address.is_err() || address == Ok(first));
    }
}

#[test]
fn rfc7857_section_5_mappings_of_protocols_are_independent() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [40_000, 40_000])]);
    let udp = rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap();
    let tcp = rig.through(&segment("10.0.0.9", REMOTE, [1000, 53], SYN), from(&pools)).unwrap();
    assert_eq!(source_of(&udp), source_of(&tcp), "one port of each protocol, for two hosts");
}

#[test]
fn rfc7857_section_6_filtering_of_protocols_is_independent() {
    let (mut rig, open, closed) = (plain(), open_masquerade(), masquerade());
    rig.through(&udp_to_remote(INSIDE, 1000), from(&open)).unwrap();
    rig.through(&segment(INSIDE, REMOTE, [1000, 80], SYN), from(&closed)).unwrap();
    assert!(rig.inwards(&udp_frame(OTHER_REMOTE, OUTSIDE, [9, 1000])).is_some());
    assert!(rig.inwards(&segment(OTHER_REMOTE, OUTSIDE, [9, 1000], SYN)).is_none());
}

#[test]
fn rfc7857_section_7_1_errors_and_resets_from_inside_do_not_refresh() {
    let mut rig = plain();
    rig.through(&udp_to_remote(INSIDE, 1000), from(&masquerade())).unwrap();
    let inwards = rig.known(&udp_frame(REMOTE, OUTSIDE, [53, 1000])).unwrap();
    rig.wait(10);
    let left = rig.only().left(rig.now);
    assert!(rig.known(&error(&inwards, INSIDE, REMOTE)).is_some());
    assert_eq!(rig.only().left(rig.now), left);

    let mut rig = plain();
    rig.through(&segment(INSIDE, REMOTE, [1000, 80], SYN), from(&masquerade())).unwrap();
    rig.known(&segment(REMOTE, OUTSIDE, [80, 1000], syn_ack())).unwrap();
    rig.known(&segment(INSIDE, REMOTE, [1000, 80], ACK)).unwrap();
    let left = rig.only().left(rig.now);
    assert!(rig.known(&segment(INSIDE, REMOTE, [1000, 80], TcpFlags::RST)).is_some());
    assert!(rig.only().left(rig.now) < left);
}

#[test]
fn rfc7857_section_9_ports_are_chosen_at_random_if_they_cannot_be_kept() {
    let ports = |key| {
        let config = netvm_conntrack::Config { mappings: 64, mapping_key: key, ..Default::default() };
        let mut rig = crate::rig::Rig::new(&config);
        let pools = [pool(OUTSIDE, OUTSIDE, [32_768, u16::MAX])];
        (1..=20)
            .map(|port| source_of(&rig.through(&udp_to_remote(INSIDE, port), from(&pools)).unwrap()).1)
            .collect::<Vec<u16>>()
    };
    assert_ne!(ports(None), ports(None), "a key for each start");
    assert_eq!(ports(Some(3)), ports(Some(3)));
}

#[test]
fn rfc7857_section_11_the_mapping_of_a_query_ends_with_its_last_session() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [7, 7])]);
    let echo = |from: &str| crate::rig::between(from, REMOTE).echo(false, 7, 1).to_vec().unwrap();
    rig.through(&echo(INSIDE), from(&pools)).unwrap();
    assert!(rig.through(&echo("10.0.0.9"), from(&pools)).is_none());
    rig.wait(31);
    rig.expire();
    assert!(rig.through(&echo("10.0.0.9"), from(&pools)).is_some());
}
