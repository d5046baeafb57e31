// SPDX-License-Identifier: Apache-2.0
//! Handle of a VM's controller. In: the desired state. Out: the status.

use std::sync::Arc;
use std::time::Duration;

use netvm_model::Restart;
use tokio::sync::watch;

use super::spec::VmSpec;
use super::status::{VmPhase, VmStartup, VmStatus};

/// The desired state of a VM.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredState {
    /// How to start it; `None`: it was removed from the configuration.
    pub(super) spec: Option<Arc<VmSpec>>,
    /// The restart policy.
    pub(super) restart: Restart,
    /// Time limit for booting.
    pub(super) boot_timeout: Duration,
    /// Whether the configuration starts it.
    pub(super) is_started: bool,
    /// Whether it should run.
    pub(super) is_up: bool,
    /// Whether to stop it without asking the guest.
    pub(super) is_forced: bool,
    /// Increases to request a stop or start.
    pub(super) generation: u64,
}

/// A VM of the configuration, checked.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) spec: Arc<VmSpec>,
    pub(super) restart: Restart,
    pub(super) boot_timeout: Duration,
    pub(super) is_up: bool,
}

/// A VM and the task that controls it, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct VmHandle {
    pub(super) desired: watch::Sender<DesiredState>,
    pub(super) status: watch::Receiver<VmStatus>,
}

impl Prepared {
    pub(super) fn desired(&self) -> DesiredState {
        DesiredState {
            spec: Some(Arc::clone(&self.spec)),
            restart: self.restart,
            boot_timeout: self.boot_timeout,
            is_started: self.is_up,
            is_up: self.is_up,
            ..DesiredState::default()
        }
    }
}

impl VmHandle {
    /// Sets the desired state; returns the startup if this starts the VM.
    pub(super) fn change(&self, wanted: &Prepared) -> Option<VmStartup> {
        let mut starts = false;
        let pid = self.status.borrow().pid;
        self.desired.send_modify(|desired| {
            let before = desired.spec.replace(Arc::clone(&wanted.spec));
            desired.restart = wanted.restart;
            desired.boot_timeout = wanted.boot_timeout;
            let was_started = std::mem::replace(&mut desired.is_started, wanted.is_up);
            let is_to_start = wanted.is_up && !was_started;
            match before {
                // The VM was removed from the configuration, which now has it again.
                None => {
                    desired.is_up = wanted.is_up;
                    desired.is_forced = false;
                    desired.generation += 1;
                    starts = desired.is_up;
                }
                Some(before) if !before.runs_as(&wanted.spec) || is_to_start && !desired.is_up => {
                    let is_manual = before.is_manual || wanted.spec.is_manual;
                    desired.is_up = (desired.is_up || is_to_start) && !wanted.spec.is_manual;
                    desired.is_forced = false;
                    desired.generation += u64::from(desired.is_up || is_manual);
                    starts = desired.is_up;
                }
                Some(before) => before.follow_cores(&wanted.spec, pid),
            }
        });
        starts.then(|| self.startup())
    }

    pub(super) fn dismiss(&self) {
        self.desired.send_if_modified(|desired| {
            let is_news = desired.spec.take().is_some() || desired.is_up;
            desired.generation += u64::from(is_news);
            desired.is_up = false;
            is_news
        });
    }

    pub(super) fn start(&self) -> VmStartup {
        let runs =
            matches!(self.status.borrow().phase, VmPhase::Running | VmPhase::Paused | VmPhase::Starting);
        self.desired.send_modify(|desired| {
            desired.is_forced = false;
            desired.generation += u64::from(!(runs && desired.is_up));
            desired.is_up = true;
        });
        self.startup()
    }

    pub(super) fn stop(&self, is_forced: bool) -> VmStartup {
        self.desired.send_modify(|desired| {
            desired.is_forced = is_forced;
            desired.generation += 1;
            desired.is_up = false;
        });
        self.startup()
    }

    /// Whether the configuration has it, or it still runs.
    pub(super) fn is_known(&self) -> bool {
        self.desired.borrow().spec.is_some() || self.status.borrow().pid.is_some()
    }

    pub(super) fn startup(&self) -> VmStartup {
        VmStartup { status: self.status.clone(), generation: self.desired.borrow().generation }
    }

    pub(super) fn running_spec(&self) -> Option<Arc<VmSpec>> {
        let desired = self.desired.borrow();
        desired.spec.clone().filter(|spec| desired.is_up || spec.is_manual)
    }
}
