// SPDX-License-Identifier: Apache-2.0
//! Which netvmd has a network namespace. In: an open namespace. Out: a claim, until dropped.
//!
//! Every user may open a namespace's file and lock it (flock(2)), so the lock is elsewhere: on one byte of [`CLAIMS`],
//! which only root may open. The byte's position is the namespace's inode number. Locks of open file descriptions
//! (fcntl(2), `F_OFD_SETLK`) end with the last descriptor, also when netvmd is killed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// The file of the locks.
const CLAIMS: &str = "/run/netvm-netns.lock";

/// Claims a namespace; `None` if another netvmd, or another part of this one, has it.
///
/// # Errors
/// The file cannot be opened or locked.
pub(super) fn claim(namespace: &File) -> io::Result<Option<File>> {
    let claims = open()?;
    let mut range = byte_of(namespace)?;
    Ok(control(&claims, libc::F_OFD_SETLK, &mut range)?.then_some(claims))
}

/// Whether a netvmd has the namespace. Who may not open the file does not know, and gets `false`.
///
/// # Errors
/// As of [`claim`].
pub(super) fn is_claimed(namespace: &File) -> io::Result<bool> {
    let claims = match open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
        claims => claims?,
    };
    let mut range = byte_of(namespace)?;
    control(&claims, libc::F_OFD_GETLK, &mut range)?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

fn open() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(CLAIMS)
}

/// A write lock on the byte of a namespace.
fn byte_of(namespace: &File) -> io::Result<libc::flock> {
    let start = i64::try_from(namespace.metadata()?.ino()).map_err(io::Error::other)?;
    Ok(libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    })
}

/// `false`: another open file description has locked the byte.
fn control(claims: &File, command: i32, range: &mut libc::flock) -> io::Result<bool> {
    let range: *mut libc::flock = range;
    // SAFETY: the descriptor is open, and the call reads and writes one `flock` at the pointer, which is a unique
    // reference's.
    if unsafe { libc::fcntl(claims.as_raw_fd(), command, range) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        error => Err(error),
    }
}
