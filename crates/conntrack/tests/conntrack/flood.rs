// SPDX-License-Identifier: Apache-2.0
//! Floods beside connections of others, which lose nothing.

use netvm_conntrack::{Config, Quotas, Refusal};
use netvm_wire::{ConnState, TcpFlags};

use super::rig::{Rig, between, error_about, from, segment};

const ESTABLISHED: u16 = 1000;
const SESSIONS: u32 = 4096;

fn rig(quotas: Quotas) -> Rig {
    Rig::new(&Config { sessions: SESSIONS, fragments: 64, quotas, ..Config::default() })
}

/// Establishes 1,000 connections.
fn establish(rig: &mut Rig) {
    for client in 1..=ESTABLISHED {
        rig.pass(&segment(false, TcpFlags::SYN, 1, 0).frame_at(client));
        rig.pass(&segment(true, TcpFlags::SYN | TcpFlags::ACK, 1, 2).frame_at(client));
        rig.pass(&segment(false, TcpFlags::ACK, 2, 2).frame_at(client));
    }
    assert_eq!((rig.table.len(), rig.table.incomplete()), (ESTABLISHED.into(), 0));
}

/// Whether all of them are still established.
fn assert_established(rig: &mut Rig) {
    for client in 1..=ESTABLISHED {
        let state = rig.pass(&segment(true, TcpFlags::ACK, 2, 2).frame_at(client));
        assert_eq!(state, ConnState::Established, "port {client}");
    }
}

/// Another address for each number.
fn address(number: u32) -> String {
    let [a, b, c, _] = (number << 8).to_be_bytes();
    format!("172.{a}.{b}.{c}")
}

#[test]
fn a_syn_flood_evicts_itself() {
    let mut rig = rig(Quotas::default());
    establish(&mut rig);
    for number in 0..50_000 {
        let syn = between(&address(number), "10.0.0.2").tcp(7, 80, TcpFlags::SYN).to_vec().unwrap();
        assert_eq!(rig.pass(&syn), ConnState::New);
    }
    assert_eq!(rig.table.len(), SESSIONS);
    let new = |server: bool, flags| segment(server, flags, 1, 2).frame_at(9999);
    rig.pass(&new(false, TcpFlags::SYN));
    assert_eq!(rig.pass(&new(true, TcpFlags::SYN | TcpFlags::ACK)), ConnState::Established);
    assert_established(&mut rig);
}

#[test]
fn scans_of_udp_and_of_closed_ports_evict_themselves() {
    let mut rig = rig(Quotas::default());
    establish(&mut rig);
    for port in 2000..12_000 {
        rig.pass(&from(false).udp(port, 53).to_vec().unwrap());
        rig.pass(&segment(false, TcpFlags::SYN, 1, 0).frame_at(port));
        let refused = segment(true, TcpFlags::RST | TcpFlags::ACK, 0, 2).frame_at(port);
        assert_eq!(rig.pass(&refused), ConnState::Established);
    }
    assert_established(&mut rig);
}

#[test]
fn a_table_full_of_answered_connections_refuses_others() {
    let mut rig = Rig::new(&Config { sessions: 10, ..Config::default() });
    for port in 1..=10 {
        rig.pass(&from(false).udp(port, 53).to_vec().unwrap());
        rig.pass(&from(true).udp(53, port).to_vec().unwrap());
    }
    let another = from(false).udp(11, 53).to_vec().unwrap();
    assert_eq!(rig.confirm(&another), Err(Refusal::Full));
    rig.wait(31);
    assert!(rig.confirm(&another).is_ok(), "the time of others is over");
}

#[test]
fn quotas_hold_by_source_port_and_zone() {
    let mut rig = rig(Quotas { per_source: 5, per_port: 20, per_zone: 30, ..Quotas::default() });
    let packet = |source: &str, port: u16| between(source, "10.9.9.9").udp(port, 53).to_vec().unwrap();
    let begun = |rig: &mut Rig, source: &str| {
        (1..=10).filter(|port| rig.confirm(&packet(source, *port)).is_ok()).count()
    };
    assert_eq!(
        (begun(&mut rig, "10.0.0.1"), rig.confirm(&packet("10.0.0.1", 99))),
        (5, Err(Refusal::SourceQuota))
    );
    let others: usize = (2..=9).map(|n| begun(&mut rig, &format!("10.0.0.{n}"))).sum();
    assert_eq!((others, rig.confirm(&packet("10.0.1.1", 99))), (15, Err(Refusal::PortQuota)));
    rig.port = 1;
    let others: usize = (2..=9).map(|n| begun(&mut rig, &format!("10.0.2.{n}"))).sum();
    assert_eq!((others, rig.confirm(&packet("10.0.1.1", 99))), (10, Err(Refusal::ZoneQuota)));
    rig.wait(31);
    rig.table.expire(rig.now, SESSIONS);
    assert_eq!((rig.table.len(), begun(&mut rig, "10.0.0.1")), (0, 5), "ended connections do not count");
}

#[test]
fn addresses_of_one_ipv6_network_share_a_quota() {
    let mut rig = rig(Quotas { per_source: 5, ..Quotas::default() });
    let packet = |n: u32| between(&format!("2001:db8::{n:x}"), "2001:db8:1::1").udp(1, 53).to_vec().unwrap();
    assert_eq!((1..100).filter(|n| rig.confirm(&packet(*n)).is_ok()).count(), 5);
}

#[test]
fn fragments_and_errors_leave_no_trace() {
    let mut rig = rig(Quotas::default());
    establish(&mut rig);
    for number in 0..20_000u32 {
        let fragment =
            between(&address(number), "10.0.0.2").fragment(number as u16, (number % 3) as u16, true);
        let frame = fragment.udp(1, 2).payload(&[1; 8]).to_vec().unwrap();
        rig.look(&frame);
        rig.look(&error_about(&frame, "10.0.0.2", &address(number)));
    }
    assert_eq!(rig.table.len(), u32::from(ESTABLISHED));
    assert_established(&mut rig);
}

#[test]
fn a_syn_flood_of_one_source_leaves_connections_of_others_alone() {
    let mut rig = rig(Quotas { half_open_per_source: 10, ..Quotas::default() });
    establish(&mut rig);
    let others: Vec<_> = (1..=500)
        .map(|n| between(&address(n), "10.0.0.2").tcp(7, 80, TcpFlags::SYN).to_vec().unwrap())
        .collect();
    for other in &others {
        rig.confirm(other).unwrap();
    }
    let flood = |port| between("192.0.2.66", "10.0.0.2").tcp(port, 80, TcpFlags::SYN).to_vec().unwrap();
    let begun = (1..=50_000).filter(|port| rig.confirm(&flood(*port)).is_ok()).count();
    assert_eq!((begun, rig.confirm(&flood(60_000))), (10, Err(Refusal::HalfOpenQuota)));
    assert_eq!((rig.table.len(), rig.table.ended().evicted), (u32::from(ESTABLISHED) + 510, 0));
    for other in &others {
        assert_eq!(rig.look(other).state, ConnState::New);
        assert!(rig.look(other).connection.is_some(), "it still waits for its answer");
    }
    assert_established(&mut rig);
}

#[test]
fn handshakes_make_room_for_others_and_ends_do_too() {
    for quotas in [
        Quotas { half_open_per_source: 2, ..Quotas::default() },
        Quotas { half_open_per_port: 2, ..Quotas::default() },
    ] {
        let mut rig = rig(quotas);
        let by_client = |port, flags| segment(false, flags, 1, 2).frame_at(port);
        let by_server = |port, flags| segment(true, flags, 1, 2).frame_at(port);
        let syn = |port| segment(false, TcpFlags::SYN, 1, 0).frame_at(port);
        // An open connection does not count, one whose handshake is not complete does.
        for port in 1..=20 {
            rig.confirm(&syn(port)).unwrap();
            assert_eq!(rig.pass(&by_server(port, TcpFlags::SYN | TcpFlags::ACK)), ConnState::Established);
            if port % 2 == 0 {
                assert_eq!(
                    rig.pass(&segment(false, TcpFlags::ACK, 2, 2).frame_at(port)),
                    ConnState::Established
                );
            } else {
                assert_eq!(rig.pass(&by_server(port, TcpFlags::RST)), ConnState::Established, "refused");
            }
        }
        rig.confirm(&syn(100)).unwrap();
        rig.pass(&by_server(100, TcpFlags::SYN | TcpFlags::ACK));
        let other = rig.confirm(&syn(101)).unwrap();
        assert_eq!(rig.confirm(&syn(102)), Err(Refusal::HalfOpenQuota));
        assert!(rig.confirm(&from(false).udp(9, 9).to_vec().unwrap()).is_err(), "of any protocol");
        // An end that resets its own SYNs gets no more.
        rig.pass(&by_client(101, TcpFlags::RST));
        assert_eq!(rig.confirm(&syn(102)), Err(Refusal::HalfOpenQuota));
        assert!(rig.table.end(other));
        let saved: Vec<_> = rig.saved();
        rig.confirm(&syn(102)).unwrap();
        // Restored connections count as they are.
        let restored = &mut Rig::new(&Config { quotas, ..Config::default() });
        assert!(saved.iter().all(|saved| restored.table.restore(saved, 0).is_ok()));
        restored.confirm(&syn(102)).unwrap();
        assert_eq!(restored.confirm(&syn(103)), Err(Refusal::HalfOpenQuota));
        for rig in [&mut rig, restored] {
            rig.wait(121);
            rig.table.expire(rig.now, SESSIONS);
            assert!(rig.confirm(&syn(104)).is_ok() && rig.confirm(&syn(105)).is_ok());
            assert_eq!(rig.confirm(&syn(106)), Err(Refusal::HalfOpenQuota));
        }
    }
}
