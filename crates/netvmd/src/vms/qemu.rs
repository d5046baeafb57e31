//! Finds QEMU and checks its version.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use netvm_vm::{OLDEST, Version};

use crate::account::Account;
use crate::supervisor::program::{Program, ProgramError};

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
static KNOWN: LazyLock<Mutex<HashMap<Known, Version>>> = LazyLock::new(Mutex::default);

/// Finds QEMU for a user.
///
/// # Errors
/// [`QemuError`] names the remedy.
pub(super) fn find(name: &str, account: Option<Account>) -> Result<(PathBuf, Version), QemuError> {
    let program = match Program::find(name, account) {
        Err(ProgramError::Missing { name, .. }) => return Err(QemuError::Missing(name)),
        other => other?,
    };
    let path = program.path().to_owned();
    let changed = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
    let key = (path.clone(), changed);
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
    let version = match known {
        Some(version) => version,
        None => ask(&path).ok_or_else(|| QemuError::NotQemu(path.clone()))?,
    };
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(key, version);
    if version < OLDEST {
        return Err(QemuError::TooOld { path, version });
    }
    Ok((path, version))
}

fn ask(path: &Path) -> Option<Version> {
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
    Version::parse(&String::from_utf8_lossy(&output.stdout))
}
