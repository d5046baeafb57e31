// SPDX-License-Identifier: Apache-2.0
//! Runs the demo with netvmd and the NFs that are built beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

const DEMO: &str = env!("CARGO_BIN_EXE_netvm-demo");

/// Whether the demo can run here; if not, prints the reason.
fn can_run() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root, so no network namespaces");
        return false;
    }
    let folder = Path::new(DEMO).parent().unwrap();
    let needed = ["netvmd", "netvm-firewall", "netvm-monitor", "netvm-l3-forward"];
    let missing: Vec<&str> = needed.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    if !missing.is_empty() {
        println!("SKIP: not built: {} (a test of the whole workspace builds them)", missing.join(", "));
        return false;
    }
    // Concurrent tests need different names.
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (process, time) = (std::process::id(), ASKED.fetch_add(1, Ordering::Relaxed));
    let namespace = format!("netvm-demo-test-{process}-{time}");
    let ip =
        |words: &[&str]| Command::new("ip").args(words).output().is_ok_and(|output| output.status.success());
    let (added, removed) = (ip(&["netns", "add", &namespace]), ip(&["netns", "delete", &namespace]));
    if !added || !removed {
        println!("SKIP: no network namespaces here");
    }
    added && removed
}

/// Everything that a run could leave.
fn traces(pid: u32) -> Vec<PathBuf> {
    let mut traces = vec![std::env::temp_dir().join(format!("netvm-demo-{pid}"))];
    for namespace in ["client", "server", "bridge"] {
        traces.push(format!("/run/netns/netvm-demo-{pid}-{namespace}").into());
    }
    for side in ["client", "server"] {
        traces.push(format!("/sys/class/net/nvd{pid}{}", &side[..1]).into());
    }
    traces.retain(|path| path.exists());
    traces
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_promise_holds() {
    if !can_run() {
        return;
    }
    for options in [&["--json"][..], &["--json", "--af-xdp"]] {
        let child =
            Command::new(DEMO).args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        assert_eq!(traces(pid), Vec::<PathBuf>::new());
        let told: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", errors(&output)));
        assert!(output.status.success() && told["ok"] == true, "{}", errors(&output));
        for download in ["download_by_chain", "download_by_bridge"] {
            assert_eq!(told["summary"][download]["bytes"], 200_000_000);
        }
    }
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    if !can_run() {
        return;
    }
    let mut child = Command::new(DEMO).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let mut log = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let up = log.find(|line| line.contains("netvmd") && line.contains("is up"));
    if up.is_some() {
        assert_eq!(traces(pid).len(), 5, "{:?}", traces(pid));
        kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    }
    log.for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert!(up.is_some(), "{}", errors(&output));
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    assert_eq!(traces(pid), Vec::<PathBuf>::new());
}

#[test]
fn help_explains_options_and_unknown_ones_are_refused() {
    let help = Command::new(DEMO).arg("--help").output().unwrap();
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(
        help.status.success() && ["--keep", "--af-xdp", "--json"].iter().all(|option| text.contains(option)),
        "{text}"
    );
    assert_eq!(Command::new(DEMO).arg("--wrong").output().unwrap().status.code(), Some(2));
}
