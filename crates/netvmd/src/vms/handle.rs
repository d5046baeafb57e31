//! A VM that is cared for: what is wished of it, and how it fares.

use std::sync::Arc;
use std::time::Duration;

use netvm_config::model::Restart;
use tokio::sync::watch;

use super::recipe::VmRecipe;
use super::status::{VmNews, VmPhase, VmStatus};

/// What a VM is to be.
#[derive(Clone, Debug)]
pub(super) struct DesiredState {
    /// What to start; `None`: it is not configured any more.
    pub(super) recipe: Option<Arc<VmRecipe>>,
    /// When to start it again.
    pub(super) restart: Restart,
    /// How long it has for booting.
    pub(super) boot_timeout: Duration,
    /// Whether the configuration says that it is to run.
    pub(super) is_started: bool,
    /// Whether it should run.
    pub(super) is_up: bool,
    /// Whether to do without asking the guest when it is to end.
    pub(super) is_forced: bool,
    /// Moves when what runs is to end, or what has ended is to start.
    pub(super) generation: u64,
}

/// A VM of the configuration, checked and found.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) recipe: Arc<VmRecipe>,
    pub(super) restart: Restart,
    pub(super) boot_timeout: Duration,
    pub(super) is_up: bool,
}

/// A VM and the task that cares for it, which ends with this.
#[derive(Debug)]
pub(super) struct VmHandle {
    pub(super) desired: watch::Sender<DesiredState>,
    pub(super) status: watch::Receiver<VmStatus>,
}

impl Prepared {
    pub(super) fn desired(&self) -> DesiredState {
        DesiredState {
            recipe: Some(Arc::clone(&self.recipe)),
            restart: self.restart,
            boot_timeout: self.boot_timeout,
            is_started: self.is_up,
            is_up: self.is_up,
            is_forced: false,
            generation: 0,
        }
    }
}

impl VmHandle {
    /// What it is to be from now on; news when it starts for that.
    pub(super) fn change(&self, wanted: &Prepared) -> Option<VmNews> {
        let mut starts = false;
        self.desired.send_modify(|desired| {
            let before = desired.recipe.replace(Arc::clone(&wanted.recipe));
            desired.restart = wanted.restart;
            desired.boot_timeout = wanted.boot_timeout;
            let was_started = std::mem::replace(&mut desired.is_started, wanted.is_up);
            let is_to_start = wanted.is_up && !was_started;
            match before {
                // It has come back.
                None => {
                    desired.is_up = wanted.is_up;
                    desired.is_forced = false;
                    desired.generation += 1;
                    starts = desired.is_up;
                }
                Some(before) if before != wanted.recipe || is_to_start && !desired.is_up => {
                    let is_manual = before.is_manual || wanted.recipe.is_manual;
                    desired.is_up = (desired.is_up || is_to_start) && !wanted.recipe.is_manual;
                    desired.is_forced = false;
                    desired.generation += u64::from(desired.is_up || is_manual);
                    starts = desired.is_up;
                }
                Some(_) => {}
            }
        });
        starts.then(|| self.news())
    }

    pub(super) fn dismiss(&self) {
        self.desired.send_if_modified(|desired| {
            let is_news = desired.recipe.take().is_some() || desired.is_up;
            desired.generation += u64::from(is_news);
            desired.is_up = false;
            is_news
        });
    }

    pub(super) fn start(&self) -> VmNews {
        let runs =
            matches!(self.status.borrow().phase, VmPhase::Running | VmPhase::Paused | VmPhase::Starting);
        self.desired.send_modify(|desired| {
            desired.is_forced = false;
            desired.generation += u64::from(!(runs && desired.is_up));
            desired.is_up = true;
        });
        self.news()
    }

    pub(super) fn stop(&self, is_forced: bool) -> VmNews {
        self.desired.send_modify(|desired| {
            desired.is_forced = is_forced;
            desired.generation += 1;
            desired.is_up = false;
        });
        self.news()
    }

    pub(super) fn news(&self) -> VmNews {
        VmNews { status: self.status.clone(), generation: self.desired.borrow().generation }
    }

    pub(super) fn recipe_of_running(&self) -> Option<Arc<VmRecipe>> {
        let desired = self.desired.borrow();
        desired.recipe.clone().filter(|recipe| desired.is_up || recipe.is_manual)
    }
}
