// SPDX-License-Identifier: Apache-2.0
//! Private mount and network namespaces. They and everything in them disappear with this process.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use crate::error::BenchError;

/// A folder for temporary mounts, which every system has (Filesystem Hierarchy Standard 3.0, 3.12). Other processes do
/// not see the mount.
const MOUNT_POINT: &str = "/mnt";

/// Moves this thread, and threads and processes that it starts later, into new namespaces. Returns a folder in memory
/// that only they see.
///
/// # Errors
/// This process may not create namespaces.
pub fn enter() -> Result<PathBuf, BenchError> {
    let what = "cannot create namespaces for peers (run as root)";
    // SAFETY: only this thread's mount and network namespaces change; no descriptor table is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) }
        .map_err(BenchError::system(what))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(BenchError::system("cannot make mounts private"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    // DPDK refuses plug-ins below a world-writable folder.
    mount("tmpfs", MOUNT_POINT, "tmpfs", flags, Some(c"mode=0755"))
        .map_err(BenchError::system(format!("cannot mount a tmpfs on {MOUNT_POINT}")))?;
    Ok(Path::new(MOUNT_POINT).to_owned())
}
