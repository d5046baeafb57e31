// SPDX-License-Identifier: Apache-2.0
//! A VM's folder in the run directory. It belongs to netvmd's user, and QEMU inherits the sockets as descriptors. So
//! netvmd can trust the contents even if a guest has compromised QEMU.
//!
//! ```text
//!  vm/NAME/qmp.sock      QEMU's control channel
//!          serial.sock   the guest's serial console
//!          record.json   QEMU's process, for the next netvmd
//! ```
//!
//! For an externally started VM, netvmd listens and QEMU connects. These sockets belong to QEMU's user, and only that
//! user may connect:
//!
//! ```text
//!  vm/NAME/qmp.sock      QEMU's control channel
//!          control.sock, table.sock, region0.sock …, wake.sock   an NF's memory, see `netvm_vm::NfDevices`
//! ```

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::account::Account;

/// File name of the control channel.
pub(in crate::vms) const QMP: &str = "qmp.sock";
/// Mode of the console: netvmd's user and group, as for the API.
const CONSOLE_MODE: u32 = 0o660;
/// Mode of the control channel.
const CONTROL_MODE: u32 = 0o600;

/// A folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct FolderError {
    /// The file or folder.
    pub path: PathBuf,
    /// The kernel's error.
    pub source: io::Error,
}

/// A QEMU process, recorded for the next netvmd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::vms) struct Record {
    /// The process id.
    pub(in crate::vms) pid: u32,
    /// The start time in kernel ticks, which identifies the process if its id is reused.
    pub(in crate::vms) started: u64,
    /// Its arguments; empty if started externally.
    pub(in crate::vms) arguments: Vec<String>,
    /// Whether it was started externally.
    #[serde(default)]
    pub(in crate::vms) is_foreign: bool,
}

/// The folder of a VM.
#[derive(Clone, Debug)]
pub(in crate::vms) struct Folder(PathBuf);

impl Folder {
    pub(in crate::vms) fn of(run_dir: &Path, vm: &str) -> Self {
        Self(run_dir.join("vm").join(vm))
    }

    /// The names of all VMs with a folder.
    pub(in crate::vms) fn names(run_dir: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(run_dir.join("vm")) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    pub(in crate::vms) fn path(&self) -> &Path {
        &self.0
    }

    pub(in crate::vms) fn qmp(&self) -> PathBuf {
        self.0.join(QMP)
    }

    pub(in crate::vms) fn serial(&self) -> PathBuf {
        self.0.join("serial.sock")
    }

    fn record(&self) -> PathBuf {
        self.0.join("record.json")
    }

    /// Creates it and listens on both sockets.
    pub(in crate::vms) fn listen(&self) -> Result<(UnixListener, UnixListener), FolderError> {
        self.make()?;
        Ok((listen(&self.qmp(), CONTROL_MODE)?, listen(&self.serial(), CONSOLE_MODE)?))
    }

    /// Creates it and listens on a socket for `user` only.
    pub(in crate::vms) fn listen_for(
        &self,
        file: &str,
        user: Option<Account>,
    ) -> Result<UnixListener, FolderError> {
        self.make()?;
        let path = self.0.join(file);
        let listener = listen(&path, CONTROL_MODE)?;
        listener.set_nonblocking(true).map_err(at(&path))?;
        if let Some(Account { uid, gid }) = user {
            std::os::unix::fs::lchown(&path, Some(uid), Some(gid)).map_err(at(&path))?;
        }
        Ok(listener)
    }

    fn make(&self) -> Result<(), FolderError> {
        fs::create_dir_all(&self.0).map_err(at(&self.0))?;
        fs::set_permissions(&self.0, Permissions::from_mode(0o755)).map_err(at(&self.0))
    }

    pub(in crate::vms) fn write(&self, record: &Record) -> Result<(), FolderError> {
        let path = self.record();
        let text = serde_json::to_vec(record).map_err(io::Error::from);
        text.and_then(|text| fs::write(&path, text)).map_err(at(&path))
    }

    /// The record of the last netvmd, if its QEMU still runs.
    pub(in crate::vms) fn read(&self) -> Option<Record> {
        let record: Record = serde_json::from_slice(&fs::read(self.record()).ok()?).ok()?;
        (started(record.pid)? == record.started).then_some(record)
    }

    /// Removes it with its contents.
    pub(in crate::vms) fn clear(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            // If this fails, the file is replaced when needed.
            let _ = fs::remove_file(entry.path());
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// Listens on a path in a folder of netvmd's, replacing a stale socket.
fn listen(path: &Path, mode: u32) -> Result<UnixListener, FolderError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(path)(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(at(path))?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at(path))?;
    Ok(listener)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError { path: path.to_owned(), source }
}

/// A process's start time in ticks since boot (proc(5): field 22 of stat); `None` if it does not exist or is a zombie.
pub(in crate::vms) fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name in parentheses may contain any characters.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_only_for_the_same_process() {
        let run_dir = std::env::temp_dir().join(format!("netvmd-vm-folder-{}", std::process::id()));
        let folder = Folder::of(&run_dir, "a");
        drop(folder.listen().unwrap());
        // Stale sockets are replaced.
        drop(folder.listen().unwrap());
        assert_eq!(Folder::names(&run_dir), ["a"]);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let started = started(child.id()).unwrap();
        let record = Record { pid: child.id(), started, arguments: vec!["-x".to_owned()], is_foreign: false };
        folder.write(&record).unwrap();
        assert_eq!(folder.read(), Some(record.clone()));
        folder.write(&Record { started: started + 1, ..record.clone() }).unwrap();
        assert_eq!(folder.read(), None, "the process id was reused");
        folder.write(&record).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(folder.read(), None);
        folder.clear();
        assert!(Folder::names(&run_dir).is_empty());
        fs::remove_dir_all(&run_dir).unwrap();
    }
}
