//! How a VM ended: what QEMU report before its end, and what its process says, put together.

use netvm_vm::Event;
use serde_json::Value;

/// How a guest ended that was not report to.
pub(super) const SHUT_DOWN: &str = "the guest has shut down";

/// How one run ended.
pub(super) enum End {
    /// It was report to.
    Wished,
    /// The guest has shut itself down.
    ShutDown,
    /// Otherwise.
    Failed(String),
}

/// What QEMU has report of its end.
#[derive(Default)]
pub(super) struct QemuReport {
    has_panicked: bool,
    has_shut_down: bool,
    by_host: bool,
    is_nf: bool,
}

impl QemuReport {
    /// Nothing yet, of an NF or of an ordinary guest.
    pub(super) fn of(is_nf: bool) -> Self {
        Self { is_nf, ..Self::default() }
    }

    /// An event.
    pub(super) fn handle_event(&mut self, event: &Event) {
        let says = |key: &str, value: &str| event.data.get(key).and_then(Value::as_str) == Some(value);
        match event.name.as_str() {
            "GUEST_PANICKED" => self.has_panicked = true,
            "SHUTDOWN" => {
                self.has_panicked |= says("reason", "guest-panic");
                let ways = ["guest-shutdown", "guest-reset", "host-qmp-system-reset"];
                self.has_shut_down |= ways.iter().any(|way| says("reason", way));
                self.by_host |= says("reason", "host-signal") || says("reason", "host-qmp-quit");
            }
            _ => {}
        }
    }

    /// How a QEMU ended that others had started.
    pub(super) fn words(&self) -> String {
        match self.end("ended".to_owned()) {
            End::Wished => "report to end".to_owned(),
            End::ShutDown => SHUT_DOWN.to_owned(),
            End::Failed(how) => how,
        }
    }

    /// How a run ended, of which the process says this.
    pub(super) fn end(&self, how: String) -> End {
        if self.has_panicked {
            End::Failed("the guest panicked".to_owned())
        } else if self.has_shut_down && self.is_nf {
            End::Failed("its NF has ended, or the guest has reset".to_owned())
        } else if self.has_shut_down {
            End::ShutDown
        } else if self.by_host {
            End::Failed("QEMU was report to end by somebody else".to_owned())
        } else {
            End::Failed(how)
        }
    }
}
