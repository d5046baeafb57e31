//! The process of a QEMU: a child of this netvmd, or one that an earlier netvmd has started.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::folder::{Record, started};
use crate::readiness::{Watched, watch};
use crate::supervisor::process::Process;

/// A QEMU.
pub(super) enum Machine {
    /// Of ours.
    Child(Process),
    /// Of another netvmd that is no more.
    Adopted {
        pid: u32,
        /// Readable when the process has ended.
        watched: Watched,
    },
}

impl Machine {
    /// Takes over what an earlier netvmd has started.
    pub(super) fn adopt(record: &Record) -> io::Result<Self> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let pid = i32::try_from(record.pid).ok().and_then(rustix::process::Pid::from_raw).ok_or_else(gone)?;
        let pidfd: OwnedFd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // Its number may have gone to another since the record was read: from here on it cannot.
        if started(record.pid) != Some(record.started) {
            return Err(gone());
        }
        Ok(Self::Adopted { pid: record.pid, watched: watch(pidfd)? })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Child(process) => process.child.id(),
            Self::Adopted { pid, .. } => Some(*pid),
        }
    }

    /// Returns when it has ended: how, in words.
    pub(super) async fn ended(&mut self) -> String {
        match self {
            Self::Child(process) => match process.child.wait().await {
                Ok(status) => process.obituary(status).await,
                Err(error) => format!("cannot be waited for: {error}"),
            },
            Self::Adopted { watched, .. } => {
                // An error of readiness is one of the runtime, which is then ending.
                let _ = watched.readable().await;
                "ended".to_owned()
            }
        }
    }

    /// Ends it at once and waits until it has gone.
    pub(super) async fn kill(&mut self) {
        match self {
            Self::Child(process) => process.kill().await,
            Self::Adopted { watched, .. } => {
                // It has ended already, then.
                let _ = pidfd_send_signal(watched.get_ref(), Signal::KILL);
                let _ = watched.readable().await;
            }
        }
    }
}
