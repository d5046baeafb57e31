// SPDX-License-Identifier: Apache-2.0
//! netvmd as a host of a fleet, with a real etcd.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod follow;
mod page;
mod refused;
mod site;
mod tls;
mod waves;

use common::{Forward, PROGRAM};
use netlib::Options;

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("forward") => netlib::run(&Options::new("forward"), |_| Forward).unwrap(),
        Ok("crash") => std::process::exit(3),
        Ok(other) => panic!("no program {other}"),
        Err(_) => {}
    }
}
