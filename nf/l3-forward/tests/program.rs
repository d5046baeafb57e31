// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use netlib::sim::Process;
use netlib::{PortId, Verdict};
use netvm_nf_common::testing;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-l3-forward");

#[test]
fn the_program_routes_and_reloads_its_routes() {
    let dir = tempfile::tempdir().unwrap();
    let routes = dir.path().join("routes");
    std::fs::write(&routes, "10.0.0.0/8 02:00:00:00:00:01 right\n").unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("--routes").arg(&routes).args(["--threads", "2"]);
    let log = dir.path().join("log");
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut nf = Process::spawn(command, &["left", "right"], &[]).unwrap();
    let frame = testing::udp("192.0.2.1:1", "10.1.1.1:1", b"");
    assert_eq!(verdicts(&mut nf, &frame), [Verdict::Port(PortId(1)); 2]);

    // A wrong file changes nothing; the error goes to standard error.
    std::fs::write(&routes, "10.0.0.0/8\n").unwrap();
    hang_up(nf.id());
    let log = || std::fs::read_to_string(&log).unwrap();
    testing::until("it says what is wrong", || log().contains("kept the old configuration"));
    assert_eq!(verdicts(&mut nf, &frame), [Verdict::Port(PortId(1)); 2]);

    std::fs::write(&routes, "0.0.0.0/0 02:00:00:00:00:02 left\n").unwrap();
    hang_up(nf.id());
    testing::until("the new routes are used", || verdicts(&mut nf, &frame) == [Verdict::Port(PortId(0)); 2]);
    assert!(nf.stop().unwrap().success());
    assert!(nf.counter("routed").unwrap() >= 6);
}

/// The verdicts of both threads for the frame.
fn verdicts(nf: &mut Process, frame: &[u8]) -> Vec<Verdict> {
    nf.inject_all(&[(PortId(0), frame); 2]).unwrap().iter().map(|outcome| outcome.verdict).collect()
}

fn hang_up(process: u32) {
    assert!(Command::new("sh").args(["-c", &format!("kill -HUP {process}")]).status().unwrap().success());
}

#[test]
fn a_missing_file_ends_it_with_an_error() {
    let output = Command::new(PROGRAM).args(["--routes", "/nonexistent/routes"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("netvm-l3-forward: /nonexistent/routes: No such file"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
