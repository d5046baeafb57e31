// SPDX-License-Identifier: Apache-2.0
//! The process of a QEMU: a child of this netvmd, or adopted from an earlier one.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process::Process;
use crate::runtime::{Watched, watch};
use crate::vms::qemu::folder::{Record, started};

/// A QEMU process.
pub(in crate::vms) enum Machine {
    /// A child.
    Child(Process),
    /// Started by an earlier netvmd.
    Adopted {
        pid: u32,
        /// A pidfd; readable when the process has ended.
        watched: Watched,
    },
}

impl Machine {
    /// Takes over a process of an earlier netvmd.
    pub(in crate::vms) fn adopt(record: &Record) -> io::Result<Self> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let pid = i32::try_from(record.pid).ok().and_then(rustix::process::Pid::from_raw).ok_or_else(gone)?;
        let pidfd: OwnedFd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // The process id may have been reused before the pidfd was opened, but not after.
        if started(record.pid) != Some(record.started) {
            return Err(gone());
        }
        Ok(Self::Adopted { pid: record.pid, watched: watch(pidfd)? })
    }

    pub(in crate::vms) fn pid(&self) -> Option<u32> {
        match self {
            Self::Child(process) => process.child.id(),
            Self::Adopted { pid, .. } => Some(*pid),
        }
    }

    /// Waits for its end; returns the exit reason.
    pub(in crate::vms) async fn ended(&mut self) -> String {
        match self {
            Self::Child(process) => match process.child.wait().await {
                Ok(status) => process.exit_reason(status).await,
                Err(error) => format!("cannot wait for it: {error}"),
            },
            Self::Adopted { watched, .. } => {
                // An error means that the runtime is shutting down.
                let _ = watched.readable().await;
                "ended".to_owned()
            }
        }
    }

    /// Kills it and waits for its end.
    pub(in crate::vms) async fn kill(&mut self) {
        match self {
            Self::Child(process) => process.kill().await,
            Self::Adopted { watched, .. } => {
                // It may have ended already.
                let _ = pidfd_send_signal(watched.get_ref(), Signal::KILL);
                let _ = watched.readable().await;
            }
        }
    }
}
