//! Keeps descriptors that DPDK opens out of the programs that this process starts.
//!
//! DPDK's drivers open packet sockets, /dev/net/tun and VFIO groups without `O_CLOEXEC`, so every child would inherit
//! them. An NF must not, so this module sets the flag as soon as the call that opens them returns. A program that
//! another thread starts during the call still inherits them: code that starts untrusted programs closes the
//! descriptors that it does not pass on.

use std::collections::BTreeSet;
use std::fs;

/// Marks, when it is dropped, the descriptors that were opened since it was made.
pub(crate) struct Opened {
    before: Option<BTreeSet<i32>>,
}

impl Opened {
    pub(crate) fn from_here() -> Self {
        Self { before: descriptors() }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (Some(before), Some(now)) = (&self.before, descriptors()) else { return };
        for &fd in now.difference(before) {
            // Another thread may have closed it meanwhile, or opened it for itself; Rust opens all with the mark.
            // SAFETY: sets a flag of a descriptor by number; a number without a descriptor gives an error.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// This process's open descriptors; none if /proc cannot be read.
fn descriptors() -> Option<BTreeSet<i32>> {
    let mut all: BTreeSet<i32> = fs::read_dir("/proc/self/fd")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // Without the one that listed them, which is closed now.
    // SAFETY: asks for a flag of a descriptor by number; a number without a descriptor gives an error.
    all.retain(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
    Some(all)
}
