//! The status of a VM, for the API and for callers that wait for a start or stop.

use std::time::Instant;

use netvm_engine::InstanceId;
use tokio::sync::watch;

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
    /// Number of guest resets.
    pub resets: u64,
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
            resets: 0,
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
