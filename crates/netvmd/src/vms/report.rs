// SPDX-License-Identifier: Apache-2.0
//! QEMU's events: what they say of the guest, and, with the process's exit reason, of its end.

use std::time::Instant;

use netvm_vm::Event;
use serde_json::Value;

use tokio::sync::watch;

use super::qemu::console::Console;
use super::status::{VmPhase, VmStatus};
use crate::events::LogLimit;

/// The reason of an unrequested shutdown.
pub(super) const SHUT_DOWN: &str = "the guest shut down";

/// The end of a run.
pub(super) enum End {
    /// Requested.
    Requested,
    /// The guest shut itself down.
    ShutDown,
    /// A failure.
    Failed(String),
}

/// QEMU's events about its end.
#[derive(Default)]
pub(super) struct QemuReport {
    has_panicked: bool,
    has_shut_down: bool,
    by_host: bool,
    is_nf: bool,
}

impl QemuReport {
    /// No events yet.
    pub(super) fn of(is_nf: bool) -> Self {
        Self { is_nf, ..Self::default() }
    }

    /// Records an event.
    pub(super) fn handle_event(&mut self, event: &Event) {
        let says = |key: &str, value: &str| event.data.get(key).and_then(Value::as_str) == Some(value);
        match event.name.as_str() {
            "GUEST_PANICKED" => self.has_panicked = true,
            "SHUTDOWN" => {
                self.has_panicked |= says("reason", "guest-panic");
                let reasons = ["guest-shutdown", "guest-reset", "host-qmp-system-reset"];
                self.has_shut_down |= reasons.iter().any(|reason| says("reason", reason));
                self.by_host |= says("reason", "host-signal") || says("reason", "host-qmp-quit");
            }
            _ => {}
        }
    }

    /// The reason for the end of an externally started QEMU.
    pub(super) fn reason(&self) -> String {
        match self.end("ended".to_owned()) {
            End::Requested => "stopped on request".to_owned(),
            End::ShutDown => SHUT_DOWN.to_owned(),
            End::Failed(how) => how,
        }
    }

    /// The end of a run, given the process's exit reason.
    pub(super) fn end(&self, how: String) -> End {
        if self.has_panicked {
            End::Failed("the guest panicked".to_owned())
        } else if self.has_shut_down && self.is_nf {
            End::Failed("its NF ended, or the guest reset".to_owned())
        } else if self.has_shut_down {
            End::ShutDown
        } else if self.by_host {
            End::Failed("QEMU was told to quit by another client".to_owned())
        } else {
            End::Failed(how)
        }
    }
}

/// Where events go.
pub(super) struct EventTarget<'a> {
    pub(super) status: &'a watch::Sender<VmStatus>,
    /// Lines about resets and panics.
    pub(super) log: &'a LogLimit,
    /// The guest's console, if netvmd has it.
    pub(super) console: Option<&'a Console>,
}

impl EventTarget<'_> {
    /// Handles an event of QEMU.
    pub(super) fn handle_event(&self, event: &Event, report: &mut QemuReport) {
        report.handle_event(event);
        let label = format!("vm {}", self.status.borrow().name);
        match event.name.as_str() {
            "STOP" => self.status.send_modify(|status| status.phase = VmPhase::Paused),
            "RESUME" => self.status.send_modify(|status| status.phase = VmPhase::Running),
            "RESET" => {
                let mut is_new = false;
                self.status.send_modify(|status| {
                    is_new = status.resets.note(Instant::now());
                    status.last_output = self.console.map(Console::last_output);
                });
                if is_new {
                    self.log.log(|more| tracing::info!("{label}: the guest has reset{more}"));
                }
            }
            "GUEST_PANICKED" => self.log.log(|more| tracing::warn!("{label}: the guest has panicked{more}")),
            "SHUTDOWN" => {}
            _ => tracing::debug!("{label}: {} {}", event.name, event.data),
        }
    }
}
