//! A mount and a network namespace of this process's own: whatever programs leave behind in them goes with the process,
//! however it ends.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use crate::error::BenchError;

/// A directory for mounts, which every system has (Filesystem Hierarchy Standard 3.0, 3.12). Others go on to see what is
/// in it.
const PLACE: &str = "/mnt";

/// Moves this thread, and threads and processes that it starts later, into new namespaces. Returns a directory in memory
/// that only they see.
///
/// # Errors
/// When this process may not do so.
pub fn enter() -> Result<PathBuf, BenchError> {
    let what = "making namespaces for programs to compare with (run as root)";
    // SAFETY: of the process's state only this thread's mounts and network change; no descriptor table is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) }
        .map_err(BenchError::system(what))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(BenchError::system("keeping mounts to this process"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    // DPDK loads no plug-in from below a directory that everybody may write to.
    mount("tmpfs", PLACE, "tmpfs", flags, Some(c"mode=0755"))
        .map_err(BenchError::system(format!("mounting memory on {PLACE}")))?;
    Ok(Path::new(PLACE).to_owned())
}
