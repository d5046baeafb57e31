// SPDX-License-Identifier: Apache-2.0
//! NFs that die, hang, misbehave and take too much.

use std::os::unix::fs::PermissionsExt;

use netvm_api::{ApplyReply, GroupInfo, NfInfo, NfState, Status, path};
use rustix::process::Signal;

use super::common::{Daemon, ENGINE, Folder, forwarding_chain, is_root, program, status_field};
use super::{config, kill};

#[test]
fn a_killed_nf_restarts_and_its_buffers_are_reclaimed() {
    let daemon = Daemon::start(&config(&["a"]));
    let first = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    kill(first.pid.unwrap());
    daemon.until("another process runs", |daemon| {
        let nf = daemon.nf("a-nf");
        nf.state == NfState::Running && nf.pid != first.pid
    });
    let second = daemon.nf("a-nf");
    assert_eq!((second.restarts, second.last_exit.as_deref()), (1, Some("killed by signal 9")));
    daemon.until_flowing("a");
    daemon.until("its buffers are back", |daemon| daemon.log().contains("buffers reclaimed"));
    let group: GroupInfo = daemon.get::<Vec<GroupInfo>>(path::GROUPS).remove(0);
    assert!(group.longest_reclaim_ms < 100.0 && group.instances == 1, "{group:?}");
}

#[test]
fn a_stopped_nf_is_found_killed_and_restarted() {
    let daemon = Daemon::start(&config(&["a"]));
    let first = daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let pid = rustix::process::Pid::from_raw(first.pid.unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    daemon.until("another process runs", |daemon| {
        let nf = daemon.nf("a-nf");
        nf.state == NfState::Running && nf.pid != first.pid
    });
    let last_exit = daemon.nf("a-nf").last_exit.unwrap_or_default();
    assert!(last_exit.starts_with("hung, and was killed"), "{last_exit}");
    assert!(daemon.log().contains("nf a-nf: instance 1 hangs: no progress for 5"), "{}", daemon.log());
    daemon.until_flowing("a");
}

#[test]
fn repeated_kills_lose_no_buffer() {
    let daemon = Daemon::start(&config(&["a"]));
    for _ in 0..4 {
        let pid = daemon.until_running("a-nf").pid.unwrap();
        daemon.until_flowing("a");
        kill(pid);
        daemon.until("netvmd has noticed", |daemon| daemon.nf("a-nf").pid != Some(pid));
    }
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    let quiet = config(&["a"]).replace("chain = \"a\"", "drop = true");
    let _: ApplyReply = daemon.post(path::APPLY, &quiet);
    daemon.until("every buffer is free", |daemon| {
        let region = daemon.stats().groups.remove(0).regions.remove(0);
        (region.free, region.in_nfs, region.in_engine) == (region.buffers, 0, 0)
    });
}

#[test]
fn misbehaving_nfs_are_killed_and_restarted() {
    let programs = ["crash", "impostor", "turncoat"];
    let chains: String = programs.iter().map(|name| forwarding_chain(name, &program(name))).collect();
    let mut daemon = Daemon::start(&format!("{ENGINE}{chains}"));
    for (role, word) in [
        ("crash-nf", "ended before it attached: exit status 3"),
        ("impostor-nf", "somebody-else"),
        ("turncoat-nf", "closed its attach socket without ending; killed"),
    ] {
        let failed_twice =
            |nf: &NfInfo| nf.restarts >= 2 && nf.last_exit.as_ref().is_some_and(|how| how.contains(word));
        daemon.until(&format!("{role}: {word}"), |daemon| failed_twice(&daemon.nf(role)));
    }
    daemon.await_log("| answer: netvmd refused this NF: netvmd started this NF as role `impostor-nf`");
    let problems = daemon.get::<Status>(path::STATUS).problems;
    assert!(problems.iter().any(|problem| problem.contains("chain crash drops its traffic")), "{problems:?}");
}

#[test]
fn a_silent_nf_is_killed() {
    let daemon = Daemon::start(&format!("{ENGINE}{}", forwarding_chain("a", &program("silent"))));
    daemon.until("it is killed", |daemon| {
        daemon.nf("a-nf").last_exit.is_some_and(|how| how.contains("no Hello within 5 s"))
    });
}

#[test]
fn a_program_beside_netvmd_is_found_by_its_name() {
    let netvmd = std::path::Path::new(env!("CARGO_BIN_EXE_netvmd"));
    if !netvmd.with_file_name("netvm-simple-forward").exists() {
        println!("SKIP: netvm-simple-forward is not built (cargo build -p netvm-nf-simple-forward)");
        return;
    }
    let text = format!("{ENGINE}{}", forwarding_chain("a", "command = [\"netvm-simple-forward\"]\n"));
    let daemon = Daemon::start(&text);
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
}

#[test]
fn an_nf_that_takes_too_much_is_limited_alone() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let [open, closed] = ["open", "closed"].map(|name| folder.0.join(name));
    for folder in [&open, &closed] {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let (open, closed) = (open.display(), closed.display());
    let hog = program("hog")
        .replace("environment = {", &format!("environment = {{ FILES = \"{open}/x:{closed}/x:/dev/null\","))
        + &format!("memory = 128\ntasks = 20\ncpu_weight = 50\nwritable = [\"{open}\"]\n");
    let config =
        format!("{ENGINE}{}{}", forwarding_chain("a", &program("forward")), forwarding_chain("g", &hog));
    let mut daemon = Daemon::start(&config);
    daemon.await_log("| now memory");
    daemon.until("it has ended", |daemon| daemon.nf("g-nf").last_exit.is_some());
    let (log, how) = (daemon.log(), daemon.nf("g-nf").last_exit.unwrap());
    let tasks = log.lines().find_map(|line| line.split_once("| tasks: ")?.1.parse::<usize>().ok()).unwrap();
    if let Some(line) = log.lines().find(|line| line.contains("no cgroup controller for")) {
        println!("SKIP in part: {line}");
    } else {
        // Its main thread is one, and the test's another.
        assert!((17..20).contains(&tasks), "{tasks}");
        assert!(how.contains("needed more than its 128 MiB"), "{how}");
    }
    assert!(!log.contains("| memory: "), "{log}");
    if !log.contains("no Landlock") {
        let wrote = |file: &str| log.contains(&format!("{file}: true"));
        assert!(wrote(&format!("{open}/x")) && !wrote(&format!("{closed}/x")) && wrote("/dev/null"), "{log}");
    }
    daemon.until_flowing("a");
    assert_eq!(daemon.nf("a-nf").last_exit, None);
}

#[test]
fn an_nf_runs_in_a_sandbox() {
    if !is_root() {
        return;
    }
    let text = format!("{ENGINE}{}", forwarding_chain("a", &program("probe")));
    let mut daemon = Daemon::start(&text);
    daemon.await_log("| folder: ");
    let pid = daemon.until_running("a-nf").pid.unwrap();
    assert_eq!(status_field(pid, "Uid"), "65534\t65534\t65534\t65534");
    assert_eq!(status_field(pid, "Groups"), "");
    assert_eq!(status_field(pid, "NoNewPrivs"), "1");
    assert_eq!(
        (status_field(pid, "Seccomp"), status_field(pid, "Seccomp_filters")),
        ("2".into(), "3".into())
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status_field(pid, set), 16), Ok(0), "{set}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let log = daemon.log();
    let said = |what: &str| log.lines().find_map(|line| Some(line.split_once(what)?.1.to_owned())).unwrap();
    assert_eq!((said("| socket: "), said("| process: ")), ("Some(1)".to_owned(), "Some(1)".to_owned()));
    assert_eq!(said("| folder: "), "\"/\"");
    let variables = said("| variables: ");
    assert!(variables.contains("NETVM_ROLE") && !variables.contains("CARGO"), "{variables}");
    // Standard input, output and error, the attach socket, and the folder being read.
    assert_eq!(said("| descriptors: ").matches('"').count(), 10, "{}", said("| descriptors: "));
}
