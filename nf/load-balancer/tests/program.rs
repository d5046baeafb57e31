// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Read;
use std::process::{Command, Stdio};

use netlib::sim::Process;
use netlib::{PortId, RoleId, Verdict};
use netvm_nf_common::testing;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-load-balancer");

#[test]
fn the_program_keeps_flows_together_across_threads() {
    let mut command = Command::new(PROGRAM);
    command.args(["--to", "web=3", "--to", "api", "--by", "sticky", "--threads", "2", "--other", "drop"]);
    let mut nf = Process::spawn(command, &["lan"], &["web", "api"]).unwrap();
    // The two packets of each flow reach different threads.
    let frames: Vec<_> = (0..200)
        .flat_map(|n| {
            let client = format!("10.0.0.1:{}", 1000 + n);
            [testing::udp(&client, "10.0.1.1:53", b"q"), testing::udp("10.0.1.1:53", &client, b"a")]
        })
        .collect();
    let list: Vec<_> = frames.iter().map(|frame| (PortId(0), frame.as_slice())).collect();
    let outcomes = nf.inject_all(&list).unwrap();
    let mut web = 0;
    for (pair, frames) in outcomes.chunks(2).zip(frames.chunks(2)) {
        assert_eq!((pair[0].verdict, pair[0].hash), (pair[1].verdict, pair[1].hash));
        assert_eq!([&pair[0].bytes, &pair[1].bytes], [&frames[0], &frames[1]]);
        web += u64::from(pair[0].verdict == Verdict::Role(RoleId(0)));
    }
    assert!((110..190).contains(&web), "{web} of 200, expected 150");
    assert_eq!(nf.inject(PortId(0), &[0; 60]).unwrap().verdict, Verdict::Drop);
    assert!(nf.stop().unwrap().success());
    assert_eq!((nf.counter("to-web"), nf.counter("to-api")), (Some(2 * web), Some(400 - 2 * web)));
    assert_eq!((nf.counter("evicted"), nf.counter("unknown-role")), (Some(0), Some(0)));
}

#[test]
fn a_missing_role_is_named_and_its_packets_pass() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["--to", "web", "--fallback", "next", "--threads", "2"]).stderr(writer);
    let mut nf = Process::spawn(command, &["lan"], &["api"]).unwrap();
    let frame = testing::udp("10.0.0.1:1", "10.0.0.2:2", b"");
    assert_eq!(nf.inject(PortId(0), &frame).unwrap().verdict, Verdict::Next);
    assert!(nf.stop().unwrap().success());
    assert_eq!(nf.counter("unknown-role"), Some(1));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let expected = "netvm-load-balancer: no role `web`: ";
    assert!(text.starts_with(expected) && text.lines().count() == 1, "{text}");
}

#[test]
fn wrong_options_end_it_with_an_error() {
    let mut command = Command::new(PROGRAM);
    let output = command.args(["--to", "web", "--to", "web"]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("netvm-load-balancer: --to: a role is named twice"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
