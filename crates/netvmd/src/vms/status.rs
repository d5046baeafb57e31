// SPDX-License-Identifier: Apache-2.0
//! The status of a VM, for the API and for callers that wait for a start or stop.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netvm_engine::InstanceId;
use tokio::sync::watch;

/// Resets so soon after another one are one: a kernel tries several ways to reset its machine.
const ONE_RESET: Duration = Duration::from_secs(1);
/// So many resets within this time mean that the guest fails again and again.
const LOOP_RESETS: usize = 4;
const LOOP_TIME: Duration = Duration::from_mins(5);

/// The phase of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmPhase {
    /// QEMU was started but does not answer yet.
    Starting,
    /// It runs.
    Running,
    /// Its processors are paused.
    Paused,
    /// It is shutting down.
    Stopping,
    /// It ended and restarts after a pause.
    Backoff,
    /// It is stopped.
    Stopped,
    /// netvmd waits for somebody to start it externally.
    Awaited,
}

/// The attached NF of a VM.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Its instance id in the engine.
    pub id: InstanceId,
    /// Its role.
    pub role: String,
    /// When it attached.
    pub at: Instant,
}

/// The status of a VM.
#[derive(Clone, Debug)]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// The phase.
    pub phase: VmPhase,
    /// QEMU's process, if it runs.
    pub pid: Option<u32>,
    /// Number of automatic restarts.
    pub restarts: u64,
    /// Guest resets.
    pub resets: Resets,
    /// The last console output before the last reset, if netvmd has the console.
    pub(super) last_output: Option<String>,
    /// The last exit reason.
    pub last_exit: Option<String>,
    /// The time since which this netvmd has seen it running.
    pub since: Option<Instant>,
    /// Whether an earlier netvmd started it.
    pub is_adopted: bool,
    /// Whether it runs with an old configuration.
    pub is_outdated: bool,
    /// A problem and its remedy.
    pub trouble: Option<String>,
    /// Its NF, once attached.
    pub instance: Option<Attached>,
    /// Increases with each requested start or stop.
    pub(super) generation: u64,
    /// Whether it has failed since then.
    pub(super) has_failed: bool,
}

impl VmStatus {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            phase: VmPhase::Stopped,
            pid: None,
            restarts: 0,
            resets: Resets::default(),
            last_output: None,
            last_exit: None,
            since: None,
            is_adopted: false,
            is_outdated: false,
            trouble: None,
            instance: None,
            generation: 0,
            has_failed: false,
        }
    }
}

impl VmStatus {
    /// A problem and its remedy: the known one, or that its guest resets again and again.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let resets = || {
            let within = self.resets.looping(Instant::now()).filter(|_| self.pid.is_some())?;
            let output = self.last_output.as_ref().map_or_else(String::new, |output| format!("; {output}"));
            Some(format!(
                "its guest resets again and again: {} times, the last {LOOP_RESETS} within {} s{output}; see `netvm vm console {}`",
                self.resets.count,
                within.as_secs().max(1),
                self.name
            ))
        };
        self.trouble.clone().or_else(resets)
    }
}

/// Resets of a guest.
#[derive(Clone, Debug, Default)]
pub struct Resets {
    /// Their number.
    pub count: u64,
    /// The last event.
    last: Option<Instant>,
    /// When the last ones were, at most [`LOOP_RESETS`].
    recent: VecDeque<Instant>,
}

impl Resets {
    /// Records an event; whether it is a reset of its own.
    pub(super) fn note(&mut self, now: Instant) -> bool {
        let is_same = self.last.replace(now).is_some_and(|last| now.duration_since(last) < ONE_RESET);
        if is_same {
            return false;
        }
        self.count += 1;
        if self.recent.len() == LOOP_RESETS {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        true
    }

    /// If the guest resets again and again: the time of the last resets.
    fn looping(&self, now: Instant) -> Option<Duration> {
        let (first, last) = (*self.recent.front()?, *self.recent.back()?);
        let is_looping = self.recent.len() == LOOP_RESETS && now.duration_since(first) < LOOP_TIME;
        is_looping.then(|| last.duration_since(first))
    }
}

/// A requested start or stop of a VM, to wait for.
#[derive(Debug)]
pub struct VmStartup {
    pub(super) status: watch::Receiver<VmStatus>,
    pub(super) generation: u64,
}

impl VmStartup {
    /// Its name.
    #[must_use]
    pub fn vm(&self) -> String {
        self.status.borrow().name.clone()
    }

    /// Waits until it runs.
    ///
    /// # Errors
    /// A description of its first failure.
    pub async fn started(&mut self) -> Result<(), String> {
        let generation = self.generation;
        let decided = |status: &VmStatus| {
            let is_up = matches!(status.phase, VmPhase::Running | VmPhase::Paused);
            status.generation > generation || status.generation == generation && (is_up || status.has_failed)
        };
        match self.status.wait_for(decided).await {
            Ok(status)
                if status.generation == generation
                    && !matches!(status.phase, VmPhase::Running | VmPhase::Paused) =>
            {
                Err(status.last_exit.clone().unwrap_or_default())
            }
            // It runs, or a later request superseded this one.
            _ => Ok(()),
        }
    }

    /// Waits until it is stopped.
    pub async fn stopped(&mut self) {
        let generation = self.generation;
        let decided = |status: &VmStatus| {
            let is_down = matches!(status.phase, VmPhase::Stopped | VmPhase::Awaited);
            status.generation >= generation && is_down
        };
        // An error: the daemon is shutting down.
        let _ = self.status.wait_for(decided).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_resets_for_ever_has_a_problem_until_it_stays_up() {
        let (mut resets, start) = (Resets::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        // A kernel that panics every 20 s, and resets in three ways.
        for boot in 0..3 {
            let times = [0, 40, 80].map(|later| resets.note(at(boot * 20_000 + later)));
            assert_eq!(times, [true, false, false]);
        }
        assert_eq!((resets.count, resets.looping(at(41_000))), (3, None), "somebody may have rebooted it");
        assert!(resets.note(at(60_000)));
        assert_eq!(resets.looping(at(61_000)), Some(Duration::from_secs(60)));
        assert_eq!(resets.looping(at(400_000)), None);
        let mut status = VmStatus::new("a");
        status.pid = Some(7);
        status.last_output = Some("last console output: Kernel panic".to_owned());
        for now in 0..4 {
            status.resets.note(Instant::now() + Duration::from_secs(2 * now));
        }
        let problem = status.problem().unwrap();
        assert!(problem.contains("4 times") && problem.contains("Kernel panic"), "{problem}");
        status.pid = None;
        assert_eq!(status.problem(), None);
    }
}
