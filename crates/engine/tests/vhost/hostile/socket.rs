//! Guests that keep netvm waiting on the socket: neither packets nor other guests wait for them.

use std::path::Path;

use crate::support::Rig;
use crate::support::rogue::Rogue;
use crate::support::rogues::{OTHER, ROGUE, SOON, VERSION_1, goes_on, is_up, rig_of, socket};
use netvm_model::VhostDma;
use netvm_vhost_user::request::SET_VRING_ERR;

/// Packets go on, another guest connects, and netvm disconnects the rogue.
fn others_go_on(mut rig: Rig, mut rogue: Rogue, other: &Path) {
    assert!(goes_on(&mut rig), "{}", rig.story());
    let _guest = Rogue::connect(other, VERSION_1);
    assert!(rig.until(SOON, |engine| is_up(engine, OTHER)), "{}", rig.story());
    assert!(rig.until(SOON, |engine| !is_up(engine, ROGUE)), "{}", rig.story());
    assert!(rig.until(SOON, |_| rogue.is_alone()));
}

#[test]
fn nobody_waits_for_a_guest_to_read_what_it_is_answered() {
    let paths = [socket("answered"), socket("answered-other")];
    let mut rig = rig_of(vec![(&paths[0], VhostDma::Off), (&paths[1], VhostDma::Off)]).unwrap();
    let mut rogue = Rogue::connect(&paths[0], VERSION_1);
    assert!(rig.until(SOON, |engine| is_up(engine, ROGUE)), "{}", rig.story());
    rogue.offer(0, 1);
    rogue.ask_and_read_nothing(SET_VRING_ERR, 1 << 8);
    others_go_on(rig, rogue, &paths[1]);
}

#[test]
fn nobody_waits_for_the_rest_of_a_message() {
    let paths = [socket("rest"), socket("rest-other")];
    let mut rig = rig_of(vec![(&paths[0], VhostDma::Off), (&paths[1], VhostDma::Off)]).unwrap();
    let mut rogue = Rogue::connect(&paths[0], VERSION_1);
    assert!(rig.until(SOON, |engine| is_up(engine, ROGUE)), "{}", rig.story());
    rogue.begin_to_speak();
    others_go_on(rig, rogue, &paths[1]);
}
