//! The control channel of a QEMU that others have started, and that connects to it, again and again.

use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use netvm_vm::{Event, Qmp, QmpError};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long QEMU may take until it speaks: it may have connected long before it has time for that.
const PATIENCE: Duration = Duration::from_secs(20);

type Handshake = Pin<Box<dyn Future<Output = Result<Qmp, QmpError>> + Send>>;

/// A control channel.
pub(super) enum Monitor {
    /// There is none.
    Absent,
    /// QEMU has connected, and said nothing yet.
    Handshake(u32, Handshake),
    /// It answers.
    Open(u32, Qmp),
}

/// What became of a control channel.
pub(super) enum MonitorEvent {
    /// It answers now.
    Opened,
    /// QEMU tells something.
    Event(Event),
    /// It has been closed, or is not QMP.
    Closed,
}

impl Monitor {
    /// Takes a connection from a process.
    pub(super) fn handshake(&mut self, pid: u32, stream: UnixStream) {
        let handshake = async {
            match timeout(PATIENCE, Qmp::greet(stream)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(QmpError::Closed),
            }
        };
        *self = Self::Handshake(pid, Box::pin(handshake));
    }

    /// The process at its other end.
    pub(super) const fn pid(&self) -> Option<u32> {
        match self {
            Self::Absent => None,
            Self::Handshake(pid, _) | Self::Open(pid, _) => Some(*pid),
        }
    }

    /// The channel, when it answers.
    pub(super) const fn open(&mut self) -> Option<&mut Qmp> {
        match self {
            Self::Open(_, qmp) => Some(qmp),
            Self::Absent | Self::Handshake(..) => None,
        }
    }

    /// Waits until something is event. May be given up and called again: nothing is lost.
    pub(super) async fn next(&mut self) -> MonitorEvent {
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
