// SPDX-License-Identifier: Apache-2.0
//! Ports that share memory with DPDK's testpmd (memif): docs/how-to/memif.md, with its commands.

mod frames;
mod grout;
mod libraries;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_api::{ApplyReply, Event, EventKind, PortInfo, Status, path};
use rustix::process::Signal;

use crate::common::hosts::within;
use crate::common::page::blocks;
use crate::common::{ADAPTIVE, Daemon, Folder, engine};

const PAGE: &str = include_str!("../../../../../docs/how-to/memif.md");
const PROGRAM: &str = "dpdk-testpmd";

/// One test at a time: testpmd polls, and there may be two cores only.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn turn() -> Option<MutexGuard<'static, ()>> {
    if Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().is_err() {
        println!("SKIP: no {PROGRAM} (package dpdk-dev)");
        return None;
    }
    exclusive()
}

/// The turn of a test without testpmd.
fn exclusive() -> Option<MutexGuard<'static, ()>> {
    Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A testpmd; killed when dropped.
struct Testpmd {
    child: Child,
    prompt: ChildStdin,
}

/// The last core: netvmd's worker has the first.
fn core() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).unwrap()
}

impl Testpmd {
    /// With a memif of these parameters, and a prompt at which `commands` are typed.
    fn start(memif: &str, commands: &str) -> Self {
        Self::start_with(memif, &[], commands)
    }

    /// The same, with further arguments.
    fn start_with(memif: &str, arguments: &[&str], commands: &str) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg(format!("--lcores=0@{0},1@{0}", core()));
        command.args(["--no-huge", "--no-shconf", "-m", "128", "--no-pci", "--no-telemetry"]);
        command.arg(format!("--vdev=net_memif0,socket-abstract=no,{memif}"));
        command.args(["--", "-i", "--port-topology=loop", "--total-num-mbufs=4096", "--no-flush-rx"]);
        command.args(arguments);
        let mut child = Self::spawn(command);
        let mut prompt = child.stdin.take().unwrap();
        prompt.write_all(commands.as_bytes()).unwrap();
        Self { child, prompt }
    }

    /// Another program.
    fn start_program(command: Command) -> Self {
        let mut child = Self::spawn(command);
        let prompt = child.stdin.take().unwrap();
        Self { child, prompt }
    }

    fn spawn(mut command: Command) -> Child {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        command.spawn().unwrap()
    }

    fn types(&mut self, line: &str) {
        writeln!(self.prompt, "{line}").unwrap();
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A source to a memif, and what comes back to a sink.
fn config(folder: &Folder, memif: &str, source: &str) -> String {
    let socket = folder.0.join("app.sock");
    let engine = engine(ADAPTIVE);
    format!(
        "{engine}\n[[port]]\nname = \"load\"\nkind = \"source\"\n{source}\nforward = {{ out = \"app\" }}\n\
         \n[[port]]\nname = \"app\"\nkind = \"memif\"\npath = {socket:?}\n{memif}\nforward = {{ out = \"back\" }}\n\
         \n[[port]]\nname = \"back\"\nkind = \"sink\"\n"
    )
}

fn port(daemon: &Daemon, name: &str) -> PortInfo {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    ports.into_iter().find(|port| port.name == name).unwrap()
}

/// Packets come back from the program.
fn until_flowing(daemon: &Daemon) {
    let before = port(daemon, "back").tx_packets;
    daemon.until("packets come back", |daemon| port(daemon, "back").tx_packets > before + 500);
}

fn problem(daemon: &Daemon, text: &str) {
    daemon.until(text, |daemon| {
        daemon.get::<Status>(path::STATUS).problems.iter().any(|problem| problem.contains(text))
    });
}

/// Seconds of processor time that a process has used.
fn cpu_seconds(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(Result::ok);
    let nanos: u64 = tasks
        .filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    nanos as f64 / 1e9
}

#[test]
fn the_how_to_page_works_as_written() {
    let Some(_turn) = turn() else { return };
    let (toml, sh) = (blocks(PAGE, "toml"), blocks(PAGE, "sh"));
    let client = toml[0].split("[[port]]").find(|port| port.contains("memif")).unwrap();
    for (configuration, command, driver) in [
        (toml[0].clone(), &sh[0], "memif server"),
        (
            toml[0].replace(
                client,
                &toml[1].replace("[[port]]", "").replace("id = 0", "id = 0\nforward = { out = \"back\" }"),
            ),
            &sh[1],
            "memif client",
        ),
    ] {
        let folder = Arc::new(Folder::new());
        let inside = |text: &str| text.replace("/run/netvm", &folder.0.display().to_string());
        let daemon = Daemon::start_in(Arc::clone(&folder), &inside(&configuration));
        let command = inside(command);
        let mut words = command.split_whitespace();
        let mut testpmd = Command::new(words.next().unwrap());
        testpmd.args(words);
        let mut testpmd = Testpmd::spawn(testpmd);
        until_flowing(&daemon);
        let app = port(&daemon, "app");
        assert_eq!((app.kind.as_str(), app.driver_mode.as_str(), app.link), ("memif", driver, true));
        assert!(
            !PAGE.contains(driver)
                || PAGE.lines().any(|line| line.contains("memif") && line.contains(driver))
        );
        testpmd.kill().unwrap();
        testpmd.wait().unwrap();
    }
}

#[test]
fn a_dpdk_client_comes_goes_and_comes_back_and_every_packet_is_accounted_for() {
    let Some(_turn) = turn() else { return };
    let folder = Arc::new(Folder::new());
    let daemon =
        Daemon::start_in(Arc::clone(&folder), &config(&folder, "secret = \"s3cret\"", "rate = 20000"));
    let client = format!("role=client,secret=s3cret,socket={}", folder.0.join("app.sock").display());
    daemon.until("packets are dropped without a peer", |daemon| {
        port(daemon, "app").tx_dropped > 0 && !port(daemon, "app").link
    });
    for _ in 0..3 {
        let testpmd = Testpmd::start(&client, "start\n");
        until_flowing(&daemon);
        assert!(port(&daemon, "app").link);
        // As by kill -9.
        drop(testpmd);
        daemon.until("the link is down", |daemon| !port(daemon, "app").link);
    }
    // One with another secret, and with another number.
    let _wrong = Testpmd::start(&client.replace("s3cret", "other"), "start\n");
    problem(&daemon, "its secret is missing or wrong: give both sides the same `secret`");
    drop(_wrong);
    let _wrong = Testpmd::start(&format!("{client},id=5"), "start\n");
    problem(&daemon, "it asks for interface 5, and the port is interface 0");
    drop(_wrong);
    let _large = Testpmd::start(&format!("{client},rsize=12"), "start\n");
    // DPDK asks for no more than the server offers.
    until_flowing(&daemon);
    daemon.until("no problem is left", |daemon| daemon.get::<Status>(path::STATUS).problems.is_empty());
    let (load, app) = (port(&daemon, "load"), port(&daemon, "app"));
    assert!(app.tx_packets + app.tx_dropped <= load.rx_packets + 20_000, "{app:?} {load:?}");
    let events: Vec<Event> = daemon.get(path::EVENTS);
    assert!(events.iter().any(|event| event.kind == EventKind::PortFault && event.subject == "app"));
}

#[test]
fn a_dpdk_server_is_found_whenever_it_starts() {
    let Some(_turn) = turn() else { return };
    let folder = Arc::new(Folder::new());
    let text = config(&folder, "role = \"client\"\nid = 7", "rate = 20000");
    let daemon = Daemon::start_in(Arc::clone(&folder), &text);
    let socket = folder.0.join("app.sock");
    problem(&daemon, "app.sock: it does not exist: start the server that creates it");
    let server = |id: u8| format!("role=server,id={id},socket={}", socket.display());
    let start = |id: u8| {
        // A killed server leaves its socket, in whose place the next one does not listen.
        let _ = std::fs::remove_file(&socket);
        Testpmd::start(&server(id), "start\n")
    };
    for _ in 0..3 {
        let testpmd = start(7);
        until_flowing(&daemon);
        drop(testpmd);
        daemon.until("the link is down", |daemon| !port(daemon, "app").link);
        problem(&daemon, "nothing listens on it: start its server again");
    }
    let other = start(8);
    problem(&daemon, "it ended the connection: \"ID not found\"");
    drop(other);
    let _right = start(7);
    until_flowing(&daemon);
    daemon.until("no problem is left", |daemon| daemon.get::<Status>(path::STATUS).problems.is_empty());
}

#[test]
fn a_full_ring_is_counted_and_the_port_goes_on() {
    let Some(_turn) = turn() else { return };
    for (netvm, program) in [("role = \"server\"", "client"), ("role = \"client\"", "server")] {
        let folder = Arc::new(Folder::new());
        let memif = format!("{netvm}\nring_size = 64");
        let daemon = Daemon::start_in(Arc::clone(&folder), &config(&folder, &memif, "rate = 50000"));
        let socket = folder.0.join("app.sock");
        let mut testpmd = Testpmd::start(&format!("role={program},socket={}", socket.display()), "start\n");
        until_flowing(&daemon);
        testpmd.types("stop");
        let before = port(&daemon, "app").tx_dropped;
        daemon.until("packets are dropped", |daemon| port(daemon, "app").tx_dropped > before + 1000);
        assert!(port(&daemon, "app").link);
        testpmd.types("start");
        until_flowing(&daemon);
    }
}

#[test]
fn without_packets_a_worker_sleeps_and_each_packet_wakes_it() {
    let Some(_turn) = turn() else { return };
    for (netvm, program) in [("role = \"server\"", "client"), ("role = \"client\"", "server")] {
        let folder = Arc::new(Folder::new());
        let daemon =
            Daemon::start_in(Arc::clone(&folder), &config(&folder, netvm, "rate = 5000\ncount = 5000"));
        let socket = folder.0.join("app.sock");
        let _testpmd = Testpmd::start(&format!("role={program},socket={}", socket.display()), "start\n");
        daemon.until("connected", |daemon| port(daemon, "app").link);
        let mut sent = 0;
        daemon.until("the source is done", |daemon| {
            std::thread::sleep(Duration::from_millis(500));
            let before = std::mem::replace(&mut sent, port(daemon, "load").rx_packets);
            sent > 2000 && sent == before
        });
        let app = port(&daemon, "app");
        assert_eq!(app.rx_packets, app.tx_packets, "{app:?}");
        let before = cpu_seconds(daemon.child.id());
        // The time of a worker without packets is measured.
        std::thread::sleep(Duration::from_secs(2));
        let used = cpu_seconds(daemon.child.id()) - before;
        assert!(used < 0.5, "{used} seconds of CPU time in 2 seconds without packets");
    }
}

#[test]
fn a_socket_that_another_port_serves_is_refused_with_a_remedy() {
    let folder = Arc::new(Folder::new());
    let daemon = Daemon::start_in(Arc::clone(&folder), &config(&folder, "", "rate = 1000"));
    let app = folder.0.join("app.sock");
    let _other = std::os::unix::net::UnixListener::bind(folder.0.join("other.sock")).unwrap();
    let text = std::fs::read_to_string(folder.config()).unwrap();
    let changed = text.replace("app.sock", "other.sock");
    let _: ApplyReply = daemon.post(path::APPLY, &changed);
    problem(&daemon, "another port or program serves this socket: stop that one, or choose another path");
    let _: ApplyReply = daemon.post(path::APPLY, &text);
    daemon.until("it is served again", |_| Path::new(&app).exists());
}

#[test]
fn several_queues_connect_to_several_and_to_one() {
    let Some(_turn) = turn() else { return };
    for (netvm, program) in [("server", "client"), ("client", "server")] {
        for queues in ["--rxq=2", "--rxq=1"] {
            let folder = Arc::new(Folder::new());
            let memif = format!("role = {netvm:?}\nqueues = 2");
            let text = config(&folder, &memif, "rate = 10000\nflows = 64\nqueues = 2");
            let daemon = Daemon::start_in(Arc::clone(&folder), &text);
            let socket = folder.0.join("app.sock");
            let parameters = format!("role={program},socket={}", socket.display());
            let arguments = [queues, &queues.replace("rx", "tx")];
            let _testpmd = Testpmd::start_with(&parameters, &arguments, "start\n");
            if (netvm, queues) == ("client", "--rxq=1") {
                // DPDK offers more rings than its port has, and refuses them.
                problem(&daemon, "it ended the connection: \"Invalid ring index\"");
                continue;
            }
            until_flowing(&daemon);
            assert_eq!(port(&daemon, "app").queues, 2);
        }
    }
}
