// SPDX-License-Identifier: Apache-2.0
//! Prevents child processes from inheriting descriptors that DPDK opens.
//!
//! DPDK's drivers open packet sockets, /dev/net/tun and VFIO groups without `O_CLOEXEC`, so every child would inherit
//! them. NFs must not have them, so this module sets the flag as soon as the call that opens them returns. A program
//! that another thread starts during the call still inherits them, so code that starts untrusted programs must close
//! all descriptors that it does not pass on.

use std::collections::BTreeSet;
use std::fs;

/// On drop, sets close-on-exec on all descriptors that were opened since it was created.
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
            // Another thread may have closed the descriptor in the meantime, or opened it itself, which Rust does with
            // the flag. SAFETY: sets a flag of a descriptor by number; a number without a descriptor gives an error.
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
    // Without the descriptor that listed them, which is closed now.
    // SAFETY: asks for a flag of a descriptor by number; a number without a descriptor gives an error.
    all.retain(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
    Some(all)
}
