// SPDX-License-Identifier: Apache-2.0
//! Configurations change under traffic.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod absent;
mod added;
mod bond;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod fast_path;
mod groups;
mod host;
mod many_ports;
mod memif;
mod memory;
mod multicast;
mod policy;
mod workers;

use common::{Forward, PROGRAM};
use netlib::Options;

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("detector") => policy::steering::detector(),
        Ok("talker") => policy::messages::talker(),
        Ok("listener") => policy::messages::listener(),
        Ok("stamp") => policy::scaling::stamp(),
        Ok("releaser") => fast_path::kept::releaser(),
        Ok("scrubber") => policy::steering::scrubber(),
        Ok(_) => netlib::run(&Options::new("forward"), |_| Forward).unwrap(),
        Err(_) => {}
    }
}
