// SPDX-License-Identifier: Apache-2.0
//! Finds QEMU and checks its version.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use netvm_vm::{OLDEST, OLDEST_WITH_E1000, Version};

use crate::account::Account;
use crate::process::program::{Program, ProgramError};

/// QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// It does not exist.
    #[error("no QEMU `{0}`: install qemu-system-x86, or name another program in `qemu`")]
    Missing(String),
    /// It cannot be executed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// It does not print its version.
    #[error("{} is not QEMU: `--version` does not print a version; correct `qemu`", .0.display())]
    NotQemu(PathBuf),
    /// It has no vfio-user client, which an e1000 card needs.
    #[error("port {port} is an e1000, but {} is QEMU {version}, which has no vfio-user-pci: install QEMU {OLDEST_WITH_E1000} or newer (in a checkout, `./dev setup --guests` unpacks one) and name it in `qemu`", path.display())]
    NoE1000 {
        /// The port.
        port: String,
        /// The program.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
    /// It is too old.
    #[error("{} is QEMU {version}, but netvm needs {OLDEST} or newer: upgrade qemu-system-x86, or name another program in `qemu`", path.display())]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
}

/// A program and its modification time.
type Known = (PathBuf, Option<SystemTime>);

/// Cached versions: `--version` takes tens of milliseconds.
static VERSIONS: LazyLock<Mutex<HashMap<Known, Version>>> = LazyLock::new(Mutex::default);
/// Cached: whether a program is a vfio-user client.
static CLIENTS: LazyLock<Mutex<HashMap<Known, bool>>> = LazyLock::new(Mutex::default);
/// Cached outcomes of [`check_kvm`].
static ON_KVM: LazyLock<Mutex<HashMap<Known, Result<(), String>>>> = LazyLock::new(Mutex::default);

/// Finds QEMU for a user.
///
/// # Errors
/// [`QemuError`] names the remedy.
pub(in crate::vms) fn find(name: &str, account: Option<Account>) -> Result<(PathBuf, Version), QemuError> {
    let program = match Program::find(name, account) {
        Err(ProgramError::Missing { name, .. }) => return Err(QemuError::Missing(name)),
        other => other?,
    };
    let path = program.path().to_owned();
    let version = cached(&VERSIONS, &path, || ask(&path).ok_or_else(|| QemuError::NotQemu(path.clone())))?;
    if version < OLDEST {
        return Err(QemuError::TooOld { path, version });
    }
    Ok((path, version))
}

/// Finds a QEMU that supports the e1000 card of a port: the given one, or, if that is the default, one that
/// `./dev setup` unpacked.
///
/// # Errors
/// [`QemuError`] names the remedy.
pub(in crate::vms) fn find_with_e1000(
    name: &str,
    account: Option<Account>,
    port: &str,
) -> Result<(PathBuf, Version), QemuError> {
    let is_client = |path: &Path| {
        let Ok(is_client) =
            cached(&CLIENTS, path, || Ok::<_, Infallible>(netvm_vm::is_vfio_user_client(path)));
        is_client
    };
    let (path, version) = find(name, account)?;
    if is_client(&path) {
        return Ok((path, version));
    }
    if name == netvm_vm::QEMU
        && let Some(other) = netvm_vm::find_vfio_user_client(&path)
        && let Some(other) = other.to_str()
    {
        return find(other, account);
    }
    Err(QemuError::NoE1000 { port: port.to_owned(), path, version })
}

/// Runs a small guest on KVM, once per program.
///
/// # Errors
/// Why guests do not run on KVM, and the remedy.
pub(in crate::vms) fn check_kvm(path: &Path) -> Result<(), String> {
    let Ok(outcome) = cached(&ON_KVM, path, || {
        Ok::<_, Infallible>(netvm_vm::check_kvm(path).map_err(|error| error.to_string()))
    });
    outcome
}

/// Whether a program can be started at all.
pub(in crate::vms) fn starts(path: &Path) -> bool {
    cached(&VERSIONS, path, || ask(path).ok_or(())).is_ok()
}

/// The cached result for a program; `find` computes it the first time, and again if the file changes.
fn cached<T: Clone, E>(
    known: &Mutex<HashMap<Known, T>>,
    path: &Path,
    find: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let changed = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let key = (path.to_owned(), changed);
    let before = known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    let found = match before {
        Some(found) => return Ok(found),
        None => find()?,
    };
    known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
    Ok(found)
}

fn ask(path: &Path) -> Option<Version> {
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
    Version::parse(&String::from_utf8_lossy(&output.stdout))
}
