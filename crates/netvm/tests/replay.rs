// SPDX-License-Identifier: Apache-2.0
//! `netvm replay` executes `netvmd replay`. In a test binary of its own, because a file open for writing cannot be
//! executed (ETXTBSY), and other threads that fork inherit the open file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{folder, run, script};

#[test]
fn replay_executes_netvmd() {
    let folder = folder();
    let beside = folder.path().join("netvm");
    std::fs::copy(env!("CARGO_BIN_EXE_netvm"), &beside).unwrap();
    let call = |path: &Path| {
        run(Command::new(&beside).env("PATH", path).args([
            "replay",
            "--json",
            "in.pcap",
            "-out.pcap",
            "--chain",
            "a,b -v",
        ]))
    };
    // A file name that begins with a dash needs `--`.
    assert!(call(Path::new("")).failed(2).contains("-o"));
    let call = |path: &Path| {
        run(Command::new(&beside).env("PATH", path).args([
            "replay",
            "--json",
            "--chain",
            "a,b -v",
            "--",
            "in.pcap",
            "-out.pcap",
        ]))
    };
    let error = call(Path::new("/nowhere")).failed(1);
    assert!(error.contains("no program netvmd in"), "{error}");
    // First only in PATH, then also beside netvm, which takes precedence.
    let elsewhere = folder.path().join("bin");
    std::fs::create_dir(&elsewhere).unwrap();
    script(&elsewhere.join("netvmd"), "echo elsewhere");
    assert_eq!(call(&elsewhere).good(), "elsewhere\n");
    script(&folder.path().join("netvmd"), "printf '<%s>' \"$@\"; exit 3");
    let run = call(&elsewhere);
    assert_eq!(run.out, "<replay><--chain><a,b -v><--cut-frames><play><--json><--><in.pcap><-out.pcap>");
    assert_eq!(run.code, Some(3));
    // A file without execute permission is skipped.
    std::fs::set_permissions(folder.path().join("netvmd"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(call(&elsewhere).good(), "elsewhere\n");
}
