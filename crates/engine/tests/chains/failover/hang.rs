// SPDX-License-Identifier: Apache-2.0
//! NFs that make no progress: chains treat them as dead until they do, and slow ones are left alone.

use std::process::{Child, Command};
use std::time::Duration;

use super::{TIMEOUT, all_come_home, chain_of, down, flows_on, rig_of, state};
use crate::support::{Rig, line};
use netvm_engine::{Engine, InstanceId, InstanceState, Notice};
use netvm_model::OnFailure;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};

fn signal(rig: &Rig, id: InstanceId, signal: Signal) {
    let nf = rig.nfs.iter().find(|nf| nf.id == id).unwrap();
    kill_process(Pid::from_child(&nf.child), signal).unwrap();
}

fn hangs(rig: &Rig) -> Vec<InstanceId> {
    let of = |notice: &Notice| match notice {
        Notice::Hung { instance, .. } => Some(*instance),
        _ => None,
    };
    rig.notices.iter().filter_map(of).collect()
}

fn is_in(engine: &Engine, id: InstanceId, expected: InstanceState) -> bool {
    state(engine, id) == Some(expected)
}

#[test]
fn a_stopped_nf_counts_as_dead_until_it_goes_on() {
    for policy in [OnFailure::Drop, OnFailure::Bypass, OnFailure::Standby] {
        let host = chain_of(&["a", "b"], policy);
        let mut rig = rig_of(&host);
        rig.attach("a", "forward", false);
        let b = rig.attach("b", "forward", false);
        let standby = (policy == OnFailure::Standby).then(|| rig.attach("b", "forward", true));
        assert!(flows_on(&mut rig), "{}", rig.describe());
        signal(&rig, b, Signal::STOP);
        assert!(rig.until(TIMEOUT, |engine| is_in(engine, b, InstanceState::Hung)), "{}", rig.describe());
        assert_eq!(hangs(&rig), [b], "only the stopped one: `a` waits for it");
        if policy == OnFailure::Drop {
            let before = down(&rig.engine);
            assert!(rig.until(TIMEOUT, |engine| down(engine) > before), "{}", rig.describe());
        } else {
            assert!(flows_on(&mut rig), "{policy:?}: {}", rig.describe());
        }
        signal(&rig, b, Signal::CONT);
        assert!(rig.until(TIMEOUT, |engine| is_in(engine, b, InstanceState::Active)), "{}", rig.describe());
        assert!(flows_on(&mut rig), "{}", rig.describe());
        if let Some(standby) = standby {
            assert!(is_in(&rig.engine, standby, InstanceState::Active), "{}", rig.describe());
        }
        // What the stopped one had is back, too.
        all_come_home(&mut rig, host);
    }
}

#[test]
fn an_nf_that_loops_on_a_packet_is_found() {
    let mut rig = rig_of(&chain_of(&["a"], OnFailure::Bypass));
    let a = rig.attach("a", "hang=1000", false);
    assert!(rig.until(TIMEOUT, |engine| is_in(engine, a, InstanceState::Hung)), "{}", rig.describe());
    assert!(flows_on(&mut rig), "{}", rig.describe());
    rig.kill(a);
    assert!(rig.until(TIMEOUT, |engine| !engine.is_settling()), "{}", rig.describe());
    assert_eq!(rig.buffers_out(), 0, "{}", rig.describe());
}

#[test]
fn a_slow_nf_one_that_waits_for_it_and_one_without_packets_do_not_hang() {
    let mut host = line(&["a", "b", "idle"], None, false);
    host.chains[0].hops.pop();
    let mut rig = rig_of(&host);
    rig.attach("a", "forward", false);
    // 1.3 s for a burst.
    rig.attach("b", "sleep=40000", false);
    rig.attach("idle", "forward", false);
    rig.until(Duration::from_secs(4), |_| false);
    assert_eq!(hangs(&rig), [], "{}", rig.describe());
}

/// Loops that take a core from the NF that runs there at the lowest priority: its share is a thousandth of a tenth.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn beside(rig: &Rig, id: InstanceId) -> Self {
        let nf = rig.nfs.iter().find(|nf| nf.id == id).unwrap();
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).unwrap();
        let run = |command: &str| Command::new("sh").args(["-c", command]).spawn().unwrap();
        let pid = nf.child.id();
        let moved = run(&format!("taskset -acp {core} {pid} && renice -n 19 $(ls /proc/{pid}/task)"));
        assert!(moved.wait_with_output().unwrap().status.success());
        let one = || run(&format!("exec taskset -c {core} sh -c 'while :; do :; done'"));
        Self((0..40).map(|_| one()).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn an_nf_without_a_core_is_starved_and_does_not_hang() {
    let mut rig = rig_of(&chain_of(&["a"], OnFailure::Drop));
    let a = rig.attach("a", "forward", false);
    let pid = rig.nfs[0].child.id();
    rig.engine.set_process(a, pid);
    assert!(flows_on(&mut rig), "{}", rig.describe());
    let loops = BusyLoops::beside(&rig, a);
    let is_starved = |engine: &Engine| {
        engine.instances().iter().any(|nf| nf.is_starved && nf.state == InstanceState::Active)
    };
    assert!(rig.until(TIMEOUT, is_starved), "{}", rig.describe());
    rig.until(Duration::from_secs(1), |_| false);
    assert_eq!(hangs(&rig), [], "{}", rig.describe());
    drop(loops);
    assert!(flows_on(&mut rig), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, |engine| !is_starved(engine)), "{}", rig.describe());
    assert!(rig.notices.iter().any(|notice| matches!(notice, Notice::Starved { .. })), "{}", rig.describe());
}
