// SPDX-License-Identifier: Apache-2.0
//! Ports on two workers: which worker serves which port, after a start and after a change.

use std::sync::Arc;

use crate::common::{Daemon, Folder, forwarding_chain, program};
use netvm_api::{ApplyReply, Event, EventKind, PlanReply, PortInfo, Status, path};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Four sources and a sink; each source has an additional line.
fn config(lines: [&str; 4]) -> String {
    let engine = "[engine]\ncores = [0, 1]\nidle = \"adaptive\"\nhuge_pages = false\n";
    let source = |(n, line): (usize, &str)| {
        format!(
            "\n[[port]]\nname = \"p{n}\"\nkind = \"source\"\nrate = 5000\nforward = {{ out = \"out\" }}\n{line}\n"
        )
    };
    let sources: String = lines.into_iter().enumerate().map(source).collect();
    format!("{engine}{sources}\n[[port]]\nname = \"out\"\nkind = \"sink\"\n")
}

/// The workers of each port, and queues of each worker.
fn placed(daemon: &Daemon) -> (Vec<Vec<u8>>, Vec<u32>) {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    let of = |port: &PortInfo| port.workers.iter().map(|part| part.worker).collect();
    let status: Status = daemon.get(path::STATUS);
    (ports.iter().map(of).collect(), status.workers.iter().map(|worker| worker.queues).collect())
}

#[test]
fn ports_are_spread_the_same_way_at_each_start_and_move_when_the_file_says_so() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: two workers need two cores");
        return;
    }
    let folder = Arc::new(Folder::new());
    let spread = vec![vec![0], vec![1], vec![0], vec![1], vec![0, 1]];
    for _ in 0..2 {
        let daemon = Daemon::start_in(Arc::clone(&folder), &config([""; 4]));
        assert_eq!(placed(&daemon), (spread.clone(), vec![2, 2]));
        daemon.until("packets on each port", |daemon| {
            daemon.stats().ports[..4].iter().all(|port| port.rx_packets > 100)
        });
    }
    let daemon = Daemon::start_in(folder, &config([""; 4]));
    let moved = config(["worker = 1", "worker = \"auto\"", "", ""]);
    let _: ApplyReply = daemon.post(path::APPLY, &moved);
    let mut expected = spread;
    expected[0] = vec![1];
    assert_eq!(placed(&daemon), (expected.clone(), vec![1, 3]));
    daemon.until("packets on both workers", |daemon| {
        daemon.stats().ports[..4].iter().all(|port| port.rx_packets > 100)
    });

    let (status, error) = daemon.post_failing(path::APPLY, config(["worker = 2", "", "", ""]));
    assert_eq!(status, 422, "{error:?}");
    let text = format!("{error:?}");
    assert!(text.contains("port p0 names worker 2, which does not exist"), "{text}");
    assert_eq!(placed(&daemon), (expected, vec![1, 3]), "nothing has changed");
}

/// A chain, and a worker on each of these cores.
fn chain_on(cores: &str) -> String {
    format!(
        "[engine]\ncores = {cores}\nidle = \"adaptive\"\nhuge_pages = false\n\
         \n[[group]]\nname = \"edge\"\nbuffers = 2048\n{}",
        forwarding_chain("a", &program("forward"))
    )
}

/// The cores of a process.
fn cores_of(pid: u32) -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(pid.try_into().unwrap())).unwrap();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

#[test]
fn workers_come_and_go_by_apply_while_a_chain_loses_nothing() {
    let allowed = cores_of(std::process::id());
    if !(allowed.contains(&0) && allowed.contains(&1)) {
        return println!("SKIP: needs cores 0 and 1");
    }
    let daemon = Daemon::start(&chain_on("[0]"));
    let pid = daemon.until_running("a-nf").pid.unwrap();
    daemon.until_flowing("a");
    let lost = |daemon: &Daemon| {
        let drops = daemon.stats().drops;
        drops.chains.get("a").map_or(0, |reasons| reasons.values().sum::<u64>())
    };
    let workers = |daemon: &Daemon| -> Vec<(u8, u32)> {
        daemon.get::<Status>(path::STATUS).workers.iter().map(|worker| (worker.id, worker.core)).collect()
    };
    // An NF without `cores` has those that no worker has, or else all.
    let without = |cores: &[usize]| -> Vec<usize> {
        let free: Vec<usize> = allowed.iter().copied().filter(|core| !cores.contains(core)).collect();
        if free.is_empty() { allowed.clone() } else { free }
    };
    let before = lost(&daemon);
    assert_eq!(cores_of(pid), without(&[0]));
    let plan: PlanReply = daemon.post(path::PLAN, &chain_on("[0, 1]"));
    let page = include_str!("../../../../docs/reference/configuration.md");
    let shown = page.split_once("$ netvm plan host.toml\n~ engine: cores").unwrap().1;
    let (shown, _) = shown.split_once("```").unwrap();
    assert_eq!(plan.plan.to_string(), format!("~ engine: cores{shown}"));
    for (cores, expected, taken) in [
        ("[0, 1]", vec![(0, 0), (1, 1)], &[0, 1][..]),
        ("[1]", vec![(0, 1)], &[1]),
        ("[1, 0]", vec![(0, 1), (1, 0)], &[0, 1]),
        ("[0]", vec![(0, 0)], &[0]),
    ] {
        let left = daemon.left("a");
        let _: ApplyReply = daemon.post(path::APPLY, &chain_on(cores));
        assert_eq!((workers(&daemon), cores_of(pid)), (expected, without(taken)), "{cores}");
        assert!(daemon.left("a") >= left, "{cores}: a total has decreased");
        daemon.until_flowing("a");
    }
    assert_eq!((daemon.nf("a-nf").pid, lost(&daemon)), (Some(pid), before));
    let events: Vec<Event> = daemon.get(path::EVENTS);
    for kind in [EventKind::WorkerAdded, EventKind::WorkerRemoved, EventKind::WorkerMoved] {
        assert!(events.iter().any(|event| event.kind == kind), "{kind:?} in {events:#?}");
    }

    for (cores, expected, text) in [
        ("[0, 1023]", 422, "core 1023: netvmd may use only"),
        ("[0, 0]", 422, "list every core once"),
        ("[0, 1]\nring_size = 1024", 409, "ring_size"),
    ] {
        let (status, error) = daemon.post_failing(path::APPLY, chain_on(cores));
        assert_eq!(status, expected, "{error:?}");
        assert!(format!("{error:?}").contains(text), "{error:?}");
        assert_eq!(workers(&daemon), [(0, 0)], "nothing has changed");
    }
    daemon.until_flowing("a");
}

#[test]
fn a_core_on_a_node_without_memory_is_refused_before_anything_changes() {
    let allowed = cores_of(std::process::id());
    if !(allowed.contains(&0) && allowed.contains(&1)) {
        return println!("SKIP: needs cores 0 and 1");
    }
    let config = |cores: &str| chain_on(&format!("{cores}\nnodes = [[0], [1]]"));
    let daemon = Daemon::start(&config("[0]"));
    daemon.until_running("a-nf");
    for path in [path::PLAN, path::APPLY] {
        let (status, error) = daemon.post_failing(path, config("[0, 1]"));
        let text = "core 1 is on NUMA node 1, where netvm had no worker when it started";
        assert!(status == 409 && error.message.contains(text), "{status} {error}");
    }
    assert_eq!(daemon.get::<Status>(path::STATUS).workers.len(), 1);
    daemon.until_flowing("a");
}
