// SPDX-License-Identifier: Apache-2.0
//! Numbers that the caller stores with connections.

use netvm_conntrack::{Config, Connections};

use crate::nat::{INSIDE, OUTSIDE, REMOTE, masquerade};
use crate::rig::{CLIENT, Rig, SERVER, between, error_about, udp};

const SESSIONS: u32 = 64;

fn rig() -> Rig {
    Rig::new(&Config { sessions: SESSIONS, mappings: 16, ..Config::default() })
}

/// Stores a number with the connection and the direction of a packet.
fn store(rig: &mut Rig, frame: &[u8], number: u32) {
    let tracked = rig.look(frame);
    rig.table.set_decided(tracked.connection.unwrap(), tracked.is_reply, number);
}

#[test]
fn each_direction_has_its_own_number_as_long_as_the_connection_lives() {
    let mut rig = rig();
    let [query, answer] = [false, true].map(udp);
    rig.confirm(&query).unwrap();
    assert_eq!([&query, &answer].map(|frame| rig.look(frame).decided), [None; 2]);
    store(&mut rig, &query, 0);
    store(&mut rig, &answer, (1 << 31) - 2);
    let both = |rig: &mut Rig| [&query, &answer].map(|frame| rig.look(frame).decided);
    assert_eq!(both(&mut rig), [Some(0), Some((1 << 31) - 2)]);
    store(&mut rig, &query, 7);
    assert_eq!(both(&mut rig)[0], Some(7));
    assert_eq!(rig.look(&error_about(&answer, CLIENT, SERVER)).decided, None, "an error is another packet");

    let id = rig.look(&query).connection.unwrap();
    assert!(rig.table.end(id));
    rig.table.set_decided(id, false, 9);
    rig.confirm(&query).unwrap();
    assert_eq!(both(&mut rig), [None; 2], "another connection in its slot");
}

#[test]
fn a_connection_whose_source_is_decided_and_one_that_moves_have_none() {
    let mut rig = rig();
    let query = between(INSIDE, REMOTE).udp(5000, 53).to_vec().unwrap();
    let id = rig.confirm(&query).unwrap();
    store(&mut rig, &query, 5);
    rig.table.settle_source(id, &masquerade()).unwrap();
    assert_eq!(rig.look(&query).decided, None);
    let answer = between(REMOTE, OUTSIDE).udp(53, 5000).to_vec().unwrap();
    store(&mut rig, &answer, 6);
    assert_eq!(rig.look(&answer).decided, Some(6));

    let connection = rig.table.take(id).unwrap();
    rig.table = Connections::new(&Config { mappings: 16, ..Config::default() }).unwrap();
    assert!(rig.table.adopt(&connection));
    assert_eq!([&query, &answer].map(|frame| rig.look(frame).decided), [None; 2]);
}

#[test]
fn all_are_forgotten_at_once_but_not_before_the_hand_has_passed_all_slots() {
    let mut rig = rig();
    let query = udp(false);
    rig.confirm(&query).unwrap();
    for round in 0..5 {
        // One that is not used before the next round.
        let idle = between(CLIENT, SERVER).udp(2000 + round, 53).to_vec().unwrap();
        rig.confirm(&idle).unwrap();
        store(&mut rig, &query, 3);
        store(&mut rig, &idle, 4);
        assert!(rig.table.forget_decided());
        assert_eq!(rig.look(&query).decided, None);
        store(&mut rig, &query, 8);
        rig.table.expire(rig.now, SESSIONS - 1);
        assert!(!rig.table.forget_decided());
        assert_eq!(rig.look(&query).decided, Some(8), "the hand leaves new ones alone");
        rig.table.expire(rig.now, 1);
        assert!(rig.table.forget_decided());
        assert_eq!([&query, &idle].map(|frame| rig.look(frame).decided), [None; 2], "nor do old ones return");
        rig.table.expire(rig.now, SESSIONS);
    }
}
