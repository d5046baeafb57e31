//! QEMU's program, and whether it is new enough.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use netvm_vm::{OLDEST, Version};

use crate::supervisor::Account;
use crate::supervisor::program::{Program, ProgramError};

/// Why there is no QEMU to start VMs with.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// It is not there.
    #[error("there is no QEMU `{0}`: apt install qemu-system-x86, or name another program in `qemu`")]
    Missing(String),
    /// It is there, and cannot be used.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// It does not say which version it is.
    #[error("{} is no QEMU: it does not say its version; correct `qemu`", .0.display())]
    NotQemu(PathBuf),
    /// It is too old.
    #[error("{} is QEMU {version}, and netvm needs {OLDEST} or newer: upgrade qemu-system-x86, or name another program in `qemu`", path.display())]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
}

/// A program as it was when it was last changed.
type Known = (PathBuf, Option<SystemTime>);

/// Versions that were asked for already: asking takes tens of milliseconds.
static KNOWN: LazyLock<Mutex<HashMap<Known, Version>>> = LazyLock::new(Mutex::default);

/// Finds QEMU for a user.
///
/// # Errors
/// [`QemuError`] says what to install.
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
