// SPDX-License-Identifier: Apache-2.0
//! The control channel of an externally started QEMU, which connects and reconnects to netvmd.

use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use netvm_vm::{Event, Qmp, QmpError};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time limit for the QMP capabilities negotiation: QEMU may connect long before it serves QMP.
const QMP_TIMEOUT: Duration = Duration::from_secs(20);

type Handshake = Pin<Box<dyn Future<Output = Result<Qmp, QmpError>> + Send>>;

/// A control channel.
pub(in crate::vms) enum Monitor {
    /// Not connected.
    Absent,
    /// QEMU has connected; the QMP capabilities negotiation is not finished.
    Handshake(u32, Handshake),
    /// QEMU answers.
    Open(u32, Qmp),
}

/// An event of a control channel.
pub(in crate::vms) enum MonitorEvent {
    /// QEMU answers now.
    Opened,
    /// QEMU sent an event.
    Event(Event),
    /// The channel was closed, or is not QMP.
    Closed,
}

impl Monitor {
    /// Starts the handshake on a connection of process `pid`.
    pub(in crate::vms) fn handshake(&mut self, pid: u32, stream: UnixStream) {
        let handshake = async {
            match timeout(QMP_TIMEOUT, Qmp::negotiate(stream)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(QmpError::Closed),
            }
        };
        *self = Self::Handshake(pid, Box::pin(handshake));
    }

    /// The peer's process.
    pub(in crate::vms) const fn pid(&self) -> Option<u32> {
        match self {
            Self::Absent => None,
            Self::Handshake(pid, _) | Self::Open(pid, _) => Some(*pid),
        }
    }

    /// The open channel.
    pub(in crate::vms) const fn open(&mut self) -> Option<&mut Qmp> {
        match self {
            Self::Open(_, qmp) => Some(qmp),
            Self::Absent | Self::Handshake(..) => None,
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub(in crate::vms) async fn next(&mut self) -> MonitorEvent {
        let event = match self {
            Self::Absent => pending().await,
            Self::Handshake(pid, handshake) => {
                let pid = *pid;
                match handshake.await {
                    Ok(qmp) => {
                        *self = Self::Open(pid, qmp);
                        MonitorEvent::Opened
                    }
                    Err(_) => MonitorEvent::Closed,
                }
            }
            Self::Open(_, qmp) => qmp.event().await.map_or(MonitorEvent::Closed, MonitorEvent::Event),
        };
        if matches!(event, MonitorEvent::Closed) {
            *self = Self::Absent;
        }
        event
    }
}
