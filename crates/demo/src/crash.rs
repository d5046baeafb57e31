// SPDX-License-Identifier: Apache-2.0
//! Kills an NF under traffic and measures the recovery.

use std::path::Path;
use std::time::{Duration, Instant};

use netvm_api::NfState;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::daemon::{Daemon, nf};
use crate::failure::{Failure, io};
use crate::host::interrupt::Interrupt;
use crate::host::names::Names;
use crate::log::ProgressLog;
use crate::traffic::{Ping, Pings};

/// The NF to kill.
pub const VICTIM: &str = "monitor";
/// Requests of the ping in progress, and their interval.
const REQUESTS: u32 = 300;
const INTERVAL: Duration = Duration::from_millis(10);
/// Replies before the kill.
const BEFORE: usize = 50;
/// The NF is stopped for this long before the kill, so that it holds packets.
const FREEZE: Duration = Duration::from_millis(150);
/// Limit for the restart.
const RESTART_LIMIT: Duration = Duration::from_secs(5);

/// The result of a crash.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Crash {
    /// The killed process.
    pub pid_before: u32,
    /// Its replacement.
    pub pid_after: u32,
    /// Restarts by netvmd.
    pub restarts: u64,
    /// netvmd's exit reason.
    pub last_exit: Option<String>,
    /// From the kill until the new process receives packets.
    pub restart_ms: f64,
    /// The ping in progress.
    pub pings: Pings,
    /// Replies after the restart.
    pub replies_after: usize,
    /// Buffers reclaimed from the killed process.
    pub reclaimed: u64,
    /// Time until they were reclaimed.
    pub reclaim_ms: f64,
}

/// Where the NF runs.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The namespaces.
    pub names: Names,
    /// The netvmd that started it.
    pub daemon: &'a Daemon,
    /// The folder of the ping's output.
    pub folder: &'a Path,
}

/// Kills the NF during a ping and waits for the recovery.
///
/// # Errors
/// [`Failure::TooLate`] if netvmd does not restart it.
pub fn crash(setup: Setup<'_>, log: &ProgressLog, interrupt: &Interrupt) -> Result<Crash, Failure> {
    let Setup { names, daemon, folder } = setup;
    let before = daemon.stats()?;
    let reclaimed_before: u64 = before.groups.iter().map(|group| group.reclaimed_total).sum();
    let pid_before = nf(&before, VICTIM).and_then(|nf| nf.pid).ok_or_else(no_process)?;
    let victim = i32::try_from(pid_before).ok().and_then(Pid::from_raw).ok_or_else(no_process)?;
    let ping = Ping::start(names, folder, REQUESTS, INTERVAL)?;
    interrupt.wait_for("the first replies to a ping", Duration::from_secs(10), || {
        Ok((ping.replies()? >= BEFORE).then_some(()))
    })?;
    let send = |signal| {
        kill_process(victim, signal).map_err(|error| io(format!("cannot kill the {VICTIM}"))(error.into()))
    };
    send(Signal::STOP)?;
    interrupt.sleep(FREEZE)?;
    send(Signal::KILL)?;
    let killed = Instant::now();
    log.say(&format!("kill -9 {pid_before}: the {VICTIM}, during a ping, while it holds packets"));
    let (pid_after, restarts, last_exit) = interrupt.wait_for("the restart", RESTART_LIMIT, || {
        let stats = daemon.stats()?;
        let Some(nf) = nf(&stats, VICTIM) else { return Ok(None) };
        let runs = nf.state == NfState::Running;
        Ok(nf
            .pid
            .filter(|pid| runs && *pid != pid_before)
            .map(|pid| (pid, nf.restarts, nf.last_exit.clone())))
    })?;
    let restart_ms = killed.elapsed().as_secs_f64() * 1e3;
    let replies = ping.replies()?;
    let pings = ping.finish(interrupt)?;
    let after = daemon.stats_at_rest(interrupt)?;
    let reclaimed_after: u64 = after.groups.iter().map(|group| group.reclaimed_total).sum();
    Ok(Crash {
        pid_before,
        pid_after,
        restarts,
        last_exit,
        restart_ms,
        replies_after: (pings.received as usize).saturating_sub(replies),
        pings,
        reclaimed: reclaimed_after - reclaimed_before,
        reclaim_ms: after.groups.iter().map(|group| group.longest_reclaim_ms).fold(0.0, f64::max),
    })
}

fn no_process() -> Failure {
    io(format!("cannot find the process of the {VICTIM}"))(std::io::ErrorKind::NotFound.into())
}
