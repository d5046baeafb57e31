// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use netlib::sim::Process;
use netlib::{PortId, Verdict};

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-simple-forward");

#[test]
fn the_program_is_a_bump_in_the_wire() {
    let mut command = Command::new(PROGRAM);
    command.args(["--map", "a=b,b=a", "--threads", "2", "--role", "bump"]);
    let mut nf = Process::spawn(command, &["a", "b", "c"], &[]).unwrap();
    assert_eq!((nf.hello().role.as_str(), nf.hello().threads), ("bump", 2));
    let frames: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 60]).collect();
    let list: Vec<_> = frames.iter().zip([0, 1, 2].into_iter().cycle()).collect();
    let list: Vec<_> = list.iter().map(|(frame, port)| (PortId(*port), frame.as_slice())).collect();
    let outcomes = nf.inject_all(&list).unwrap();
    for ((outcome, frame), (port, _)) in outcomes.iter().zip(&frames).zip(&list) {
        let expected = match port.0 {
            0 => Verdict::Port(PortId(1)),
            1 => Verdict::Port(PortId(0)),
            _ => Verdict::Drop,
        };
        assert_eq!((outcome.verdict, &outcome.bytes), (expected, frame));
    }
    assert!(nf.stop().unwrap().success());
    assert_eq!(nf.counter("no-port"), Some(33));
}

#[test]
fn the_threads_option_overrides_the_configuration() {
    for (args, threads) in [(&[][..], 3), (&["--threads", "2"], 2)] {
        let mut command = Command::new(PROGRAM);
        command.args(args).env(netlib::THREADS_VARIABLE, "3");
        let mut nf = Process::spawn(command, &[], &[]).unwrap();
        assert_eq!(nf.hello().threads, threads);
        assert!(nf.stop().unwrap().success());
    }
}

#[test]
fn without_an_engine_it_prints_an_error() {
    let output = Command::new(PROGRAM).args(["--socket", "/nonexistent/attach.sock"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("netvm-simple-forward: cannot connect to /nonexistent/attach.sock"), "{text}");
}
