// SPDX-License-Identifier: Apache-2.0
//! Watches a VM boot: within `boot_timeout`, its NF must attach, or a driver must come up at one of its ports. A late
//! VM keeps running, and its status reports the problem.

use std::time::Duration;

use netvm_vm::{GuestMemory, Qmp};
use tokio::time::{Instant, sleep_until};

use super::instance::Instance;
use super::links::has_driver;
use super::qemu::console::Console;
use super::qemu::process::Machine;
use super::spec::VmSpec;
use crate::engine_thread::EngineHandle;

/// Interval of checks of a late VM.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A VM's boot.
#[derive(Debug)]
pub(super) struct Boot {
    /// The next check; `None`: it has booted, or its boot cannot be observed.
    due: Option<Instant>,
    limit: Duration,
    is_late: bool,
    /// The VM's console; `None` if netvmd does not have it.
    console: Option<Console>,
}

/// A VM that runs.
pub(super) struct RunningVm<'a> {
    pub(super) qmp: Qmp,
    pub(super) machine: Machine,
    /// Its NF, if it is one.
    pub(super) instance: Option<&'a Instance<GuestMemory>>,
    pub(super) boot: Boot,
}

/// Progress of a boot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BootEvent {
    /// The timeout has passed; the text has the likely reason.
    Late(String),
    /// It has booted after the timeout.
    Up,
}

impl Boot {
    /// A boot that begins now.
    pub(super) fn begin(limit: Duration, console: Option<Console>) -> Self {
        Self { due: Some(Instant::now() + limit), limit, is_late: false, console }
    }

    /// A finished boot.
    pub(super) const fn over() -> Self {
        Self { due: None, limit: Duration::ZERO, is_late: false, console: None }
    }

    /// The VM's console, if netvmd has it.
    pub(super) const fn console(&self) -> Option<&Console> {
        self.console.as_ref()
    }

    /// Waits for the next check.
    pub(super) async fn due(&self) {
        at(self.due).await;
    }

    /// Ends the boot; true if it had been reported late.
    pub(super) const fn finish(&mut self) -> bool {
        self.due = None;
        std::mem::replace(&mut self.is_late, false)
    }

    /// Checks an ordinary guest's ports. An NF reports by attaching.
    pub(super) async fn check(&mut self, engine: &EngineHandle, spec: &VmSpec) -> Option<BootEvent> {
        if spec.nf.is_none() && has_driver(engine, spec).await {
            return self.finish().then_some(BootEvent::Up);
        }
        self.due = Some(Instant::now() + CHECK_INTERVAL);
        if std::mem::replace(&mut self.is_late, true) {
            return None;
        }
        let (seconds, name) = (self.limit.as_secs(), &spec.machine.name);
        let what = match &spec.nf {
            Some(nf) => format!("its NF {} did not attach within {seconds} s", nf.role),
            None => format!("no driver came up at its ports within {seconds} s"),
        };
        let (output, remedy) = match &self.console {
            Some(console) => (console.last_output(), format!("see `netvm vm console {name}`")),
            None => (
                "its console is not netvmd's".to_owned(),
                "see the console where the VM was started".to_owned(),
            ),
        };
        Some(BootEvent::Late(format!(
            "{what}; {output}; {remedy}, correct its image, or raise `boot_timeout` if it is slow"
        )))
    }
}

/// Waits until `due`; forever without it.
pub(super) async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
