// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use netlib::sim::Process;
use netlib::{PortId, Verdict};
use netvm_nf_common::testing;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-l2-switch");

#[test]
fn the_program_learns() {
    let mut command = Command::new(PROGRAM);
    command.args(["--ports", "a,b,c", "--flood-port", "up"]);
    let mut nf = Process::spawn(command, &["a", "b", "c", "up"], &[]).unwrap();
    let there = testing::udp("10.0.0.1:1", "10.0.0.2:2", b"there");
    let mut back = there.clone();
    back[..6].copy_from_slice(&there[6..12]);
    back[6..12].copy_from_slice(&there[..6]);
    assert_eq!(nf.inject(PortId(0), &there).unwrap().verdict, Verdict::Port(PortId(3)));
    assert_eq!(nf.inject(PortId(2), &back).unwrap().verdict, Verdict::Port(PortId(0)));
    assert_eq!(nf.inject(PortId(0), &there).unwrap().verdict, Verdict::Port(PortId(2)));
    assert!(nf.stop().unwrap().success());
    assert_eq!(
        (nf.counter("flooded"), nf.counter("forwarded"), nf.counter("stations")),
        (Some(1), Some(2), Some(2))
    );
}

#[test]
fn wrong_options_end_it_with_an_error() {
    let output = Command::new(PROGRAM).args(["--ports", "a"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "netvm-l2-switch: --ports: a switch needs at least two ports\n");
}
