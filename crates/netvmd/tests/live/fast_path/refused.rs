// SPDX-License-Identifier: Apache-2.0
//! Kernels that refuse something: a port has another way then, or no fast path, and says so.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use netvm_api::{Status, path};

use super::table::until_forwarded;
use super::traffic::Stream;
use super::{are_connected, container, port};
use crate::common::hosts::{Host, are_possible};
use crate::common::{Daemon, ENGINE, Folder};

const UDP: u16 = 7100;
/// Commands of bpf(2).
const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;

/// What is refused.
#[derive(Clone, Copy)]
struct Refused {
    /// This command of bpf(2); `None`: all of it.
    command: Option<u32>,
    error: i32,
}

/// Starts netvmd, as a process for which bpf(2) may fail, and two connected containers.
fn start(hosts: &[Host; 2], refused: Option<Refused>, text: &str) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvmd"));
    match refused.map(filter) {
        // SAFETY: it calls prctl(2) only.
        Some(filter) => unsafe { command.pre_exec(move || refuse(&filter)) },
        None => command.env("NETVM_TCX", "0"),
    };
    let mut daemon = Daemon::launch_as(command, Arc::new(Folder::new()), text);
    daemon.await_log("serves its API on");
    assert!(are_connected(hosts), "{}", daemon.log());
    daemon
}

fn config(hosts: &[Host; 2]) -> String {
    let auto = container(2, &hosts[1], "").replace("fast_path = true", "fast_path = \"auto\"");
    ENGINE.to_owned() + &container(1, &hosts[0], "") + &auto
}

#[test]
fn without_programs_a_port_has_no_fast_path_and_says_why() {
    if !are_possible() {
        return;
    }
    let hosts = ["fc1", "fc2"].map(Host::bare);
    let all = Refused { command: None, error: libc::EPERM };
    // As a verifier that refuses.
    let loading = Refused { command: Some(PROG_LOAD), error: libc::EACCES };
    for refused in [all, loading] {
        let mut daemon = start(&hosts, Some(refused), &config(&hosts));
        for name in ["c1", "c2"] {
            let driver = port(&daemon, name).driver_mode;
            assert!(driver.starts_with("TAP, ") && driver.contains("no fast path: "), "{driver}");
        }
        // Only the one that is to have it has a problem.
        let problems = daemon.get::<Status>(path::STATUS).problems;
        assert!(matches!(&problems[..], [one] if one.starts_with("port c1: no fast path: ")), "{problems:?}");
        daemon.signal(rustix::process::Signal::TERM);
        assert!(daemon.wait().success());
    }
}

#[test]
fn without_tcx_programs_are_filters_of_clsact() {
    if !are_possible() {
        return;
    }
    let hosts = ["fe1", "fe2"].map(Host::bare);
    let links = Refused { command: Some(LINK_CREATE), error: libc::EINVAL };
    for refused in [Some(links), None] {
        let mut daemon = start(&hosts, refused, &config(&hosts));
        for name in ["c1", "c2"] {
            let driver = port(&daemon, name).driver_mode;
            assert!(driver.ends_with("fast path by clsact"), "{driver}");
        }
        assert!(daemon.get::<Status>(path::STATUS).problems.is_empty());
        let stream = Stream::start(&hosts, "10.54.0.2", UDP);
        until_forwarded(&daemon);
        drop(stream);
        daemon.signal(rustix::process::Signal::TERM);
        assert!(daemon.wait().success());
    }
}

#[test]
fn a_port_whose_packets_count_one_by_one_says_so() {
    if !are_possible() {
        return;
    }
    let hosts = ["ff1", "ff2"].map(Host::bare);
    let engine = "huge_pages = false\nflow_monitor = { sampling = 8 }\n";
    let text = config(&hosts).replace("huge_pages = false\n", engine);
    let daemon = Daemon::start(&text);
    assert!(are_connected(&hosts), "{}", daemon.log());
    daemon.until("the port says so", |daemon| {
        port(daemon, "c1").driver_mode.ends_with("(unused: the flow monitor takes some packets only)")
    });
    assert_eq!(port(&daemon, "c1").rx_by_kernel, Some(0));
}

/// A filter of system calls.
fn filter(Refused { command, error }: Refused) -> Vec<libc::sock_filter> {
    let jump = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let (load, equal, answer) = (0x20, 0x15, 0x06);
    // Where `struct seccomp_data` has the first argument, in machines whose bytes begin with the lowest.
    let argument = 16;
    let refused = jump(answer, libc::SECCOMP_RET_ERRNO | error.unsigned_abs(), 0);
    let allowed = jump(answer, libc::SECCOMP_RET_ALLOW, 0);
    let is_bpf = |no: u8| libc::sock_filter { jf: no, ..jump(equal, libc::SYS_bpf as u32, 0) };
    match command {
        // The number of the system call.
        None => vec![jump(load, 0, 0), is_bpf(1), refused, allowed],
        Some(command) => vec![
            jump(load, 0, 0),
            is_bpf(3),
            jump(load, argument, 0),
            libc::sock_filter { jf: 1, ..jump(equal, command, 0) },
            refused,
            allowed,
        ],
    }
}

/// Makes bpf(2) fail in this process and its children.
fn refuse(filter: &[libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: numbers only.
    let mut outcome = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if outcome == 0 {
        // SAFETY: the program outlives the call.
        outcome = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    }
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
