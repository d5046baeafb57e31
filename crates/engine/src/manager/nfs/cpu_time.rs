// SPDX-License-Identifier: Apache-2.0
//! CPU time that the kernel gave to an NF's process. In: `/proc/PID/task/*/stat` and `schedstat`, read only while the
//! NF makes no progress. Out: how much of an interval the process could have used.
//!
//! A thread that is runnable and runs on no core is starved: the core is overloaded, or the cgroup is at its limit. A
//! thread that sleeps, waits for a disk or was stopped needs no core, so all of the interval counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Threads of a process that are read: it may have as many as it likes.
const MAX_THREADS: usize = 64;
/// Place of the scheduling policy among the fields of `stat` after the thread's name.
const POLICY_FIELD: usize = 38;
/// A thread of this policy runs only when no other wants the core: it is expected to wait.
const SCHED_IDLE: &str = "5";

/// The CPU time of a process, as last read.
#[derive(Debug, Default)]
pub(super) struct CpuTime {
    /// `/proc/PID/task`; `None` if the process is unknown.
    tasks: Option<PathBuf>,
    /// By the thread's id.
    ran: BTreeMap<String, Duration>,
}

impl CpuTime {
    pub(super) fn of(pid: u32) -> Self {
        Self { tasks: Some(format!("/proc/{pid}/task").into()), ran: BTreeMap::new() }
    }

    /// Forgets what was read: the process makes progress.
    pub(super) fn forget(&mut self) {
        self.ran.clear();
    }

    /// How much of the time since the last call, which is `step`, all threads of the process could use: none of it
    /// while a thread only waits for a core. All of it if the kernel does not tell.
    pub(super) fn granted(&mut self, step: Duration) -> Duration {
        let Some(tasks) = self.tasks.as_ref().and_then(|tasks| fs::read_dir(tasks).ok()) else { return step };
        let (mut granted, mut ran) = (step, BTreeMap::new());
        for task in tasks.flatten().take(MAX_THREADS) {
            let Some(thread) = Thread::read(&task.path()) else { continue };
            let Ok(id) = task.file_name().into_string() else { continue };
            if thread.wants_core {
                // A thread that was not seen before may just have been woken.
                let before = self.ran.get(&id).copied().unwrap_or(thread.ran);
                granted = granted.min(thread.ran.saturating_sub(before));
            }
            ran.insert(id, thread.ran);
        }
        self.ran = ran;
        granted
    }
}

/// A thread, as the kernel sees it.
struct Thread {
    /// It runs, or waits for a core.
    wants_core: bool,
    /// For how long it has run.
    ran: Duration,
}

impl Thread {
    fn read(task: &Path) -> Option<Self> {
        let wants_core = wants_core(&fs::read_to_string(task.join("stat")).ok()?);
        let times = fs::read_to_string(task.join("schedstat")).ok()?;
        let ran = times.split_whitespace().next()?.parse().ok()?;
        Some(Self { wants_core, ran: Duration::from_nanos(ran) })
    }
}

/// Whether the thread of this `stat` runs or waits for a core, other than for idle time.
fn wants_core(stat: &str) -> bool {
    // The name before may contain anything.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    fields.next() == Some("R") && fields.nth(POLICY_FIELD - 1) != Some(SCHED_IDLE)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::thread::sleep;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    const STEP: Duration = Duration::from_millis(200);

    /// What a process could use of an interval.
    fn granted(child: &Child) -> Duration {
        let mut cpu = CpuTime::of(child.id());
        cpu.granted(STEP);
        sleep(STEP);
        cpu.granted(STEP)
    }

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn a_thread_that_waits_for_a_core_is_granted_only_what_it_ran() {
        let core = rustix::thread::sched_getcpu();
        let pinned =
            |nice| shell(&format!("exec taskset -c {core} nice -n {nice} sh -c 'while :; do :; done'"));
        // Its share of the core is four thousandths.
        let mut busy: Vec<Child> = (0..4).map(|_| pinned(0)).collect();
        let mut starved = pinned(19);
        sleep(STEP);
        let of_starved = granted(&starved);
        // The others share the core with whatever else runs.
        let are_granted_more = (0..100).any(|_| granted(&busy[0]) > STEP / 20);
        busy.iter_mut().for_each(|child| child.kill().unwrap());
        starved.kill().unwrap();
        busy.into_iter().chain([starved]).for_each(|mut child| drop(child.wait()));
        assert!(of_starved < STEP / 10, "{of_starved:?}");
        assert!(are_granted_more);
    }

    #[test]
    fn all_time_counts_for_a_thread_that_sleeps_or_is_stopped() {
        let mut child = shell("exec sleep 60");
        sleep(STEP);
        let asleep = granted(&child);
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        let stopped = granted(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!([asleep, stopped], [STEP; 2]);
        assert_eq!(CpuTime::default().granted(STEP), STEP, "an unknown process");
        assert_eq!(granted(&child), STEP, "a process that has ended");
    }

    #[test]
    fn names_and_idle_threads_do_not_mislead() {
        let stat = |name: &str, state: &str, policy: &str| {
            format!("1 ({name}) {state} {}{policy} 0 0", "0 ".repeat(POLICY_FIELD - 1))
        };
        assert!(wants_core(&stat("nf", "R", "0")));
        assert!(!wants_core(&stat(") R ", "S", "0")));
        assert!(!wants_core(&stat("nf", "R", SCHED_IDLE)));
        assert!(!wants_core("1 (nf"));
        // The own thread runs, with the usual policy.
        assert!(wants_core(&fs::read_to_string("/proc/thread-self/stat").unwrap()));
    }
}
