// SPDX-License-Identifier: Apache-2.0
//! VMs of a netvmd process: real Linux guests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod disks;
mod guests;
mod libvirt;
mod messages;
mod migration;
mod nfs;

use common::{Forward, PROGRAM};
use netlib::Options;

/// Not a test: runs as an NF if the environment says so, which for a guest is the kernel's command line.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("in-the-vm") => messages::run("b-nf"),
        Ok("beside-the-vm") => messages::run("a-nf"),
        Ok("moving-guest") => migration::serve(),
        Ok("firewall") => netlib::run(&Options::new("firewall"), |_| guests::Firewall).unwrap(),
        Ok(_) => netlib::run(&Options::new("forward"), |_| Forward).unwrap(),
        Err(_) => {}
    }
}
