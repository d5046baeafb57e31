// SPDX-License-Identifier: Apache-2.0
//! Guests that keep netvm waiting on the socket: neither packets nor other guests wait for them.

use std::path::Path;

use crate::support::Rig;
use crate::support::hostile_guest::HostileGuest;
use crate::support::hostile_rig::{HOSTILE, OTHER, TIMEOUT, VERSION_1, goes_on, is_up, rig_of, socket};
use netvm_model::VhostDma;
use netvm_vhost_user::request::SET_VRING_ERR;

/// Packets go on, another guest connects, and netvm disconnects the hostile guest.
fn others_go_on(mut rig: Rig, mut hostile: HostileGuest, other: &Path) {
    assert!(goes_on(&mut rig), "{}", rig.describe());
    let _guest = HostileGuest::connect(other, VERSION_1);
    assert!(rig.until(TIMEOUT, |engine| is_up(engine, OTHER)), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, |engine| !is_up(engine, HOSTILE)), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, |_| hostile.is_alone()));
}

#[test]
fn nobody_waits_for_a_guest_to_read_what_it_is_answered() {
    let paths = [socket("answered"), socket("answered-other")];
    let mut rig = rig_of(vec![(&paths[0], VhostDma::Off), (&paths[1], VhostDma::Off)]).unwrap();
    let mut hostile = HostileGuest::connect(&paths[0], VERSION_1);
    assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)), "{}", rig.describe());
    hostile.offer(0, 1);
    hostile.ask_and_read_nothing(SET_VRING_ERR, 1 << 8);
    others_go_on(rig, hostile, &paths[1]);
}

#[test]
fn nobody_waits_for_the_rest_of_a_message() {
    let paths = [socket("rest"), socket("rest-other")];
    let mut rig = rig_of(vec![(&paths[0], VhostDma::Off), (&paths[1], VhostDma::Off)]).unwrap();
    let mut hostile = HostileGuest::connect(&paths[0], VERSION_1);
    assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)), "{}", rig.describe());
    hostile.begin_to_speak();
    others_go_on(rig, hostile, &paths[1]);
}
