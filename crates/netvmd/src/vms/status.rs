//! What is known of a VM.

use std::time::Instant;

use netvm_engine::InstanceId;
use tokio::sync::watch;

/// Where a VM is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmPhase {
    /// QEMU was started, and does not answer yet.
    Starting,
    /// It runs.
    Running,
    /// Its processors stand still.
    Paused,
    /// It is to end.
    Stopping,
    /// It has ended; started again after a pause.
    Backoff,
    /// It does not run.
    Stopped,
    /// Others start it, and have not.
    Awaited,
}

/// An NF in a VM that has attached.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Its number in the engine.
    pub id: InstanceId,
    /// Its role.
    pub role: String,
    /// Since when.
    pub at: Instant,
}

/// What is known of a VM.
#[derive(Clone, Debug)]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub phase: VmPhase,
    /// QEMU's process, while there is one.
    pub pid: Option<u32>,
    /// How often it was started again by itself.
    pub restarts: u64,
    /// How often the guest has reset.
    pub resets: u64,
    /// How it ended last.
    pub last_exit: Option<String>,
    /// Since when this netvmd knows that it runs.
    pub since: Option<Instant>,
    /// Whether an earlier netvmd has started what runs.
    pub is_adopted: bool,
    /// Whether what runs was started as it is configured.
    pub is_outdated: bool,
    /// What is wrong with what runs, and what helps.
    pub trouble: Option<String>,
    /// The network function that it is, once it has attached.
    pub instance: Option<Attached>,
    /// Moves each time that it is report to start or to stop.
    pub(super) generation: u64,
    /// Whether it has ended, or could not start, since then.
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

/// A VM that has just been report to start, or to stop.
#[derive(Debug)]
pub struct VmNews {
    pub(super) status: watch::Receiver<VmStatus>,
    pub(super) generation: u64,
}

impl VmNews {
    /// Its name.
    #[must_use]
    pub fn vm(&self) -> String {
        self.status.borrow().name.clone()
    }

    /// Returns when it runs.
    ///
    /// # Errors
    /// Its first failure, in words.
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
            // It runs; or was report otherwise meanwhile, which is somebody else's to wait for.
            _ => Ok(()),
        }
    }

    /// Returns when it does not run.
    pub async fn stopped(&mut self) {
        let generation = self.generation;
        let decided = |status: &VmStatus| {
            let is_down = matches!(status.phase, VmPhase::Stopped | VmPhase::Awaited);
            status.generation >= generation && is_down
        };
        // An error is the end of the daemon.
        let _ = self.status.wait_for(decided).await;
    }
}
