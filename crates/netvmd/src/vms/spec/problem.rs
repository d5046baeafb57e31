// SPDX-License-Identifier: Apache-2.0
//! The reasons why a VM cannot be started, and their remedies.

use std::io;
use std::path::PathBuf;

use crate::account::AccountError;
use crate::process::cores::CoresError;
use crate::vms::spec::find::QemuError;

/// A VM cannot be started as configured.
#[derive(Debug, thiserror::Error)]
#[error("vm {vm}: {}", sentence(problems))]
pub struct VmSpecError {
    /// Its name.
    pub vm: String,
    /// The reasons and the remedies.
    pub problems: Vec<VmProblem>,
}

fn sentence(problems: &[VmProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A reason why a VM cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum VmProblem {
    /// Its QEMU.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// Its user.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// Its cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// A file cannot be used.
    #[error("{}: {source} (named by `{key}`)", path.display())]
    File {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// QEMU's user may not access a file.
    #[error("{} is not {right} for QEMU's user (uid {uid}): change the mode or owner of it or of a folder above it, or name another `user`", path.display())]
    Denied {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The missing right.
        right: &'static str,
        /// QEMU's user.
        uid: u32,
    },
    /// QEMU's user cannot create the socket of a port.
    #[error("port {port}: QEMU listens at {}, but its user (uid {uid}) cannot create files in that folder: use a folder of that user (netvmd creates a missing one so), or set `mode = \"server\"`", path.display())]
    Folder {
        /// The port.
        port: String,
        /// Its socket.
        path: PathBuf,
        /// QEMU's user.
        uid: u32,
    },
    /// KVM is required but unusable.
    #[error("`accel = \"kvm\"`, but {reason}; or set `accel = \"kvm:tcg\"`")]
    NoKvm {
        /// The reason and the remedy.
        reason: String,
    },
    /// It needs more memory than the machine has.
    #[error("the VM needs {required} MiB of memory, but this machine has {available}: lower its `memory`")]
    Memory {
        /// Configured MiB.
        required: u32,
        /// The machine's MiB.
        available: u64,
    },
    /// The NUMA node does not exist.
    #[error("no NUMA node {0} on this machine: omit `node`, or see `lscpu`")]
    Node(u32),
}

impl VmProblem {
    /// The key of `[[vm]]` that names what is missing.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Qemu(_) => "qemu",
            Self::Account(_) => "user",
            Self::Cores(_) => "cores",
            Self::File { key, .. } | Self::Denied { key, .. } => key,
            Self::Folder { .. } => "ports",
            Self::NoKvm { .. } => "accel",
            Self::Memory { .. } => "memory",
            Self::Node(_) => "node",
        }
    }
}

/// Collects the problems of a VM, so that all of them are reported at once.
#[derive(Debug, Default)]
pub(in crate::vms) struct Problems(Vec<VmProblem>);

impl Problems {
    /// Returns the value; on failure, stores the problem and returns `None`.
    pub(in crate::vms) fn keep<T>(&mut self, outcome: Result<T, impl Into<VmProblem>>) -> Option<T> {
        outcome.map_err(|problem| self.0.push(problem.into())).ok()
    }

    /// The stored problems.
    pub(in crate::vms) fn into_inner(self) -> Vec<VmProblem> {
        self.0
    }
}
