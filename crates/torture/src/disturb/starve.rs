// SPDX-License-Identifier: Apache-2.0
//! An NF without a core: many threads take the core that it may run on. netvmd must report the NF as starved, and must
//! not take it for hung; its chain must go on afterwards.
//!
//! The threads enter the NF's cgroup, because the kernel divides a core between cgroups first: other NFs keep their
//! share. In the cgroup, the NF's nice value gives it a slice of a few milliseconds once in several seconds.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use netvm_api::{EventKind, NfState};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::end;
use crate::config::{self, STARVED_CHAIN, STARVED_NF};
use crate::daemon::Daemon;
use crate::failure::{Failure, io};

/// Threads that compete with the NF.
const HOGS: usize = 40;
/// For how long at most: the NF has no core for a second within this time.
const CONTENTION: Duration = Duration::from_secs(20);
/// The chain must go on within this time after it.
const RECOVERY: Duration = Duration::from_secs(10);
/// The lowest priority.
const NICE: i32 = 19;
/// Where cgroups of version 2 are mounted: alone, and beside version 1.
const VERSION_2: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Where version 1 has the controller that shares out cores.
const VERSION_1: [&str; 2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];

/// The NF that is being starved, if it is.
#[derive(Debug, Default)]
pub struct Starvation(Option<Case>);

#[derive(Debug)]
struct Case {
    /// The NF's process.
    pid: u32,
    /// The last event before.
    event: u64,
    phase: Phase,
    since: Instant,
}

#[derive(Debug)]
enum Phase {
    /// The threads of this process compete with the NF.
    Contended(Child),
    /// They have ended, when this many packets had left the chain.
    Over { left: u64 },
}

impl Starvation {
    /// Starts, unless the last case is not over yet. Returns whether it did.
    pub fn start(&mut self, daemon: &mut Daemon) -> Result<bool, Failure> {
        if self.0.is_some() {
            return Ok(false);
        }
        let nfs = daemon.nfs()?;
        let running = nfs.iter().find(|nf| nf.role == STARVED_NF && nf.state == NfState::Running);
        let Some(pid) = running.and_then(|nf| nf.pid) else { return Ok(false) };
        lower_priority(pid);
        let event = daemon.last_event()?;
        let hogs = Command::new(daemon.program())
            .args(["hogs", &pid.to_string(), &config::contended_core().to_string()])
            .stdin(Stdio::null())
            .spawn()
            .map_err(io("cannot start threads that take a core"))?;
        self.0 = Some(Case { pid, event, phase: Phase::Contended(hogs), since: Instant::now() });
        Ok(true)
    }

    /// The NF runs as before, is reported in time, and its chain goes on in time. Returns whether the case is over.
    pub fn check(&mut self, daemon: &mut Daemon) -> Result<bool, Failure> {
        let Some(case) = &mut self.0 else { return Ok(true) };
        let events = daemon.events_after(case.event)?;
        let has = |kind| events.iter().any(|event| event.kind == kind && event.subject == STARVED_NF);
        if has(EventKind::NfHung) {
            return Err(Failure::Broken("an NF that got no core counted as hung".to_owned()));
        }
        if process(daemon)? != Some(case.pid) {
            return Err(Failure::Broken("an NF that got no core was ended".to_owned()));
        }
        let elapsed = case.since.elapsed();
        let left = daemon.chain(STARVED_CHAIN)?.map_or(0, |chain| chain.left);
        match &case.phase {
            Phase::Contended(_) if has(EventKind::NfStarved) => {
                let over = std::mem::replace(&mut case.phase, Phase::Over { left });
                case.since = Instant::now();
                if let Phase::Contended(hogs) = over {
                    end(hogs);
                }
            }
            Phase::Over { left: before } if has(EventKind::NfRecovered) && left > *before => self.0 = None,
            Phase::Contended(_) if elapsed > CONTENTION => {
                let seconds = elapsed.as_secs();
                return Err(Failure::Broken(format!(
                    "an NF got no core for {seconds} s, and was not reported as starved"
                )));
            }
            Phase::Over { .. } if elapsed > RECOVERY => {
                let seconds = elapsed.as_secs();
                return Err(Failure::Broken(format!(
                    "the chain of a starved NF did not go on within {seconds} s after it had a core again"
                )));
            }
            _ => {}
        }
        Ok(self.0.is_none())
    }
}

impl Drop for Starvation {
    fn drop(&mut self) {
        if let Some(Case { phase: Phase::Contended(hogs), .. }) = self.0.take() {
            end(hogs);
        }
    }
}

/// The NF's process; `None`: there is none.
fn process(daemon: &mut Daemon) -> Result<Option<u32>, Failure> {
    Ok(daemon.nfs()?.iter().find(|nf| nf.role == STARVED_NF).and_then(|nf| nf.pid))
}

/// Gives all threads of a process the lowest priority.
fn lower_priority(pid: u32) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let id = task.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        // A thread may have ended.
        let _ = id.map(|id| setpriority_process(Some(id), NICE));
    }
}

/// A part of a run: takes a core from a process, until this process is killed, or for [`CONTENTION`].
pub fn take_core(pid: u32, core: usize) -> ExitCode {
    let mut only = CpuSet::new();
    only.set(core);
    if let Err(error) = sched_setaffinity(None, &only) {
        eprintln!("hogs: cannot run on core {core}: {error}");
        return ExitCode::FAILURE;
    }
    enter_cgroups_of(pid);
    let start = Instant::now();
    let spin = move || {
        while start.elapsed() < CONTENTION {
            std::hint::spin_loop();
        }
    };
    for _ in 1..HOGS {
        thread::spawn(spin);
    }
    spin();
    ExitCode::SUCCESS
}

/// Enters the cgroups that share out the cores to a process.
fn enter_cgroups_of(pid: u32) {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    // "4:cpu,cpuacct:/path"; version 2 names no controllers.
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "cpu") => VERSION_1,
            _ => continue,
        };
        for mount in mounts {
            let file = OpenOptions::new().write(true).open(format!("{mount}{path}/cgroup.procs"));
            // The hierarchy is elsewhere, or NFs have no cgroups here: then the nice values alone decide.
            let _ = file.and_then(|mut file| file.write_all(b"0"));
        }
    }
}
