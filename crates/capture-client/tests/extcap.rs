// SPDX-License-Identifier: Apache-2.0
//! `netvm-extcap` without a netvmd. With one it is tested by netvmd's tests, which find it built because this test is
//! here.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Output};

fn extcap(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm-extcap"));
    command.args(arguments).args(["--socket", "/nonexistent/api.sock"]).output().unwrap()
}

fn printed(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn without_a_netvmd_wireshark_gets_no_interface_and_no_error() {
    let output = extcap(&["--extcap-interfaces"]);
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<_> = printed(&output).lines().collect();
    assert!(matches!(lines[..], [line] if line.starts_with("extcap {version=")), "{output:?}");
}

#[test]
fn a_filter_is_checked_without_a_capture() {
    for (filter, is_right) in [("tcp port 80", true), ("tcp prt 80", false)] {
        let output = extcap(&["--extcap-interface", "netvm-ports", "--extcap-capture-filter", filter]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(printed(&output).is_empty(), is_right, "{output:?}");
    }
}

#[test]
fn an_unknown_interface_is_refused() {
    let output = extcap(&["--capture", "--extcap-interface", "eth0", "--fifo", "/nonexistent/fifo"]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("`eth0` is not an interface of netvm: see --extcap-interfaces"), "{error}");
}
