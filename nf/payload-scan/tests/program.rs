// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Read;
use std::process::Command;

use netlib::sim::Process;
use netlib::{PortId, RoleId, Verdict};
use netvm_nf_common::testing;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-payload-scan");

fn verdict(nf: &mut Process, payload: &[u8]) -> Verdict {
    let frame = testing::tcp("10.0.0.1:1000", "10.0.1.2:80", payload);
    let outcome = nf.inject(PortId(0), &frame).unwrap();
    assert_eq!(outcome.bytes, frame);
    outcome.verdict
}

#[test]
fn the_program_steers_by_content_and_reloads_its_patterns() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("patterns");
    let first = "# steer\nrole:web \"GET \"i\ndrop hex:de ad be ef\nport:gone \"lost\"\ncount \"x\"\n";
    std::fs::write(&file, first).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("--patterns").arg(&file).args(["--default", "port:wan"]).stderr(writer);
    let mut nf = Process::spawn(command, &["lan", "wan"], &["web"]).unwrap();
    let wan = Verdict::Port(PortId(1));
    assert_eq!(verdict(&mut nf, b"get /x HTTP/1.1\r\n"), Verdict::Role(RoleId(0)));
    assert_eq!(verdict(&mut nf, b"..\xde\xad\xbe\xef"), Verdict::Drop);
    assert_eq!(verdict(&mut nf, b"lost"), Verdict::Drop);
    assert_eq!(verdict(&mut nf, b""), wan);

    std::fs::write(&file, "next \"GET \"\n").unwrap();
    assert!(Command::new("sh").args(["-c", &format!("kill -HUP {}", nf.id())]).status().unwrap().success());
    testing::until("the new patterns are used", || verdict(&mut nf, b"GET /") == Verdict::Next);
    assert_eq!(verdict(&mut nf, b"get /"), wan);
    assert!(nf.stop().unwrap().success());
    assert_eq!((nf.counter("no-target"), nf.counter("pattern-1")), (Some(1), Some(1)));
    assert_eq!(
        (nf.counter("pattern-4"), nf.counter("pattern-5")),
        (Some(0), None),
        "as many as at the start"
    );
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("netvm-payload-scan: no port:gone: "), "{text}");
}

#[test]
fn a_wrong_file_ends_it_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("patterns");
    std::fs::write(&file, "drop \"a\"\n\nallow \"b\"\n").unwrap();
    let output = Command::new(PROGRAM).arg("--patterns").arg(&file).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = format!("netvm-payload-scan: {}:3: `allow` is not an action: ", file.display());
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
