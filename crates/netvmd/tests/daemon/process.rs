// SPDX-License-Identifier: Apache-2.0
//! netvmd as a process: starting, ending, users, logs.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ChainInfo, Status, path};
use rustix::process::Signal;

use super::common::hosts::within;
use super::common::{Daemon, ENGINE, Folder, is_root, processes_below, request, status_field};
use super::config;

#[test]
fn packets_flow_and_the_daemon_shuts_down_in_order() {
    let mut daemon = Daemon::start(&config(&["a"]));
    let nf = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let status: Status = daemon.get(path::STATUS);
    assert_eq!((status.ports, status.nfs, status.chains, status.pid), (2, 1, 1, daemon.child.id()));
    assert!(status.dpdk.starts_with("DPDK") && status.problems.is_empty(), "{status:?}");
    let stats = daemon.stats();
    assert!(stats.nfs[0].threads[0].packets.received > 0 && stats.ports[1].tx_packets > 0, "{stats:?}");
    assert_eq!(daemon.get::<Vec<ChainInfo>>(path::CHAINS)[0].hops, ["a-nf"]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!std::path::Path::new(&format!("/proc/{}", nf.pid.unwrap())).exists());
    assert!(!daemon.api_socket().exists() && !daemon.attach_socket().exists());
    assert!(!daemon.log().contains("did not end in time"), "{}", daemon.log());
}

#[test]
fn a_daemon_starts_after_another_was_killed() {
    let folder = Arc::new(Folder::new());
    let mut daemon = Daemon::start_in(Arc::clone(&folder), &config(&["a", "b"]));
    daemon.until_running("a-nf");
    daemon.until_running("b-nf");
    let nfs = processes_below(daemon.child.id());
    assert_eq!(nfs.len(), 2);
    daemon.child.kill().unwrap();
    assert_eq!(daemon.wait().signal(), Some(9));
    let lives = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(within(Duration::from_secs(30), || !nfs.iter().any(lives)), "an NF did not end");
    assert!(daemon.api_socket().exists(), "the killed daemon left its socket");
    let next = Daemon::start_in(folder, &config(&["a"]));
    next.until_running("a-nf");
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::start(&ENGINE);
    let mut second = Daemon::launch(Arc::clone(&daemon.folder), &ENGINE);
    assert_eq!(second.wait().code(), Some(1));
    let expected = format!("another netvmd (process {}) uses", daemon.child.id());
    assert!(second.log().contains(&expected), "{}", second.log());
    let _: Status = daemon.get(path::STATUS);
}

#[test]
fn an_unprivileged_user_can_run_netvmd() {
    if !is_root() {
        println!("SKIP: not root, so every other test shows it");
        return;
    }
    let folder = Arc::new(Folder::new());
    let copy = |from: &std::path::Path, name: &str| {
        std::fs::copy(from, folder.0.join(name)).unwrap();
        folder.0.join(name)
    };
    let own = std::env::current_exe().unwrap();
    let (netvmd, nf) = (copy(env!("CARGO_BIN_EXE_netvmd").as_ref(), "netvmd"), copy(&own, "nf"));
    std::fs::create_dir(folder.run_dir()).unwrap();
    std::os::unix::fs::chown(folder.run_dir(), Some(65534), Some(65534)).unwrap();
    let text = config(&["a"]).replace(own.to_str().unwrap(), nf.to_str().unwrap());
    let mut command = std::process::Command::new(netvmd);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let mut daemon = Daemon::launch_as(command, folder, &text);
    daemon.await_log("serves its API on");
    let pid = daemon.until_running("a-nf").pid.unwrap();
    daemon.until_flowing("a");
    assert_eq!(status_field(pid, "Uid"), status_field(daemon.child.id(), "Uid"));
    assert_eq!((status_field(pid, "NoNewPrivs"), status_field(pid, "Seccomp")), ("1".into(), "2".into()));
    assert!(daemon.log().contains("netvmd is not root"), "{}", daemon.log());
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let folder = Folder::new();
    std::fs::write(folder.config(), config(&["a"])).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_netvmd"))
        .args(["--log", "trace", "--config"])
        .arg(folder.config())
        .arg("--run-dir")
        .arg(folder.run_dir())
        .stderr(writer)
        .spawn()
        .unwrap();
    let socket = folder.run_dir().join("api.sock");
    let running = |body: &str| body.contains("\"running\"");
    let ask = || request(&socket, &[], &format!("GET {}", path::NFS), b"").1;
    let runs = within(Duration::from_secs(30), || socket.exists() && running(&ask()));
    assert!(runs, "netvmd waits for its log");
    assert_eq!(request(&socket, &[], &format!("POST {}", path::STOP), b"").0, 200);
    let has_ended = within(Duration::from_secs(30), || child.try_wait().unwrap().is_some());
    assert!(has_ended, "netvmd waits for its log at the end");
    drop(reader);
}
