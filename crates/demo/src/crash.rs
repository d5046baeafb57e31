//! An NF dies while packets flow.

use std::path::Path;
use std::time::{Duration, Instant};

use netvm_api::NfState;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::daemon::{Daemon, nf};
use crate::failure::{Failure, io};
use crate::interrupt::Interrupt;
use crate::names::Names;
use crate::story::Story;
use crate::traffic::{Ping, Pings};

/// Who dies.
pub const VICTIM: &str = "monitor";
/// Requests of the ping that it happens in, and the time between two of them.
const REQUESTS: u32 = 300;
const INTERVAL: Duration = Duration::from_millis(10);
/// Replies before it happens.
const BEFORE: usize = 50;
/// For so long the victim is stopped before it is killed, so that it dies with packets in its hands.
const FREEZE: Duration = Duration::from_millis(150);
/// How long netvmd may take to have another.
const RESTART_LIMIT: Duration = Duration::from_secs(5);

/// What a crash cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Crash {
    /// The process that was killed.
    pub pid_before: u32,
    /// The process that has its place.
    pub pid_after: u32,
    /// How often netvmd started it again.
    pub restarts: u64,
    /// How netvmd says that it ended.
    pub last_exit: Option<String>,
    /// From the kill until the new process takes packets.
    pub restart_ms: f64,
    /// The ping that went on meanwhile.
    pub pings: Pings,
    /// Replies that came after the restart.
    pub replies_after: usize,
    /// Buffers that the dead process had.
    pub reclaimed: u64,
    /// Time until they were taken back.
    pub reclaim_ms: f64,
}

/// Kills the victim in the middle of a ping, and waits until all is well again.
///
/// # Errors
/// [`Failure::TooLate`] when netvmd does not start another.
pub fn crash(
    names: Names,
    daemon: &Daemon,
    folder: &Path,
    story: &Story,
    interrupt: &Interrupt,
) -> Result<Crash, Failure> {
    let before = daemon.stats()?;
    let reclaimed_before: u64 = before.groups.iter().map(|group| group.reclaimed_total).sum();
    let pid_before = nf(&before, VICTIM).and_then(|nf| nf.pid).ok_or_else(no_process)?;
    let victim = i32::try_from(pid_before).ok().and_then(Pid::from_raw).ok_or_else(no_process)?;
    let ping = Ping::start(names, folder, REQUESTS, INTERVAL)?;
    interrupt.wait_for("the first replies to a ping", Duration::from_secs(10), || {
        Ok((ping.replies()? >= BEFORE).then_some(()))
    })?;
    let send = |signal| {
        kill_process(victim, signal).map_err(|error| io(format!("killing the {VICTIM}"))(error.into()))
    };
    send(Signal::STOP)?;
    interrupt.sleep(FREEZE)?;
    send(Signal::KILL)?;
    let killed = Instant::now();
    story.say(&format!(
        "kill -9 {pid_before}, the {VICTIM}, in the middle of a ping, with packets in its hands"
    ));
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
    io(format!("asking netvmd for the process of the {VICTIM}"))(std::io::ErrorKind::NotFound.into())
}
