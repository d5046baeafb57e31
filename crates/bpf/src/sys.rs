// SPDX-License-Identifier: Apache-2.0
//! The system calls.

use std::io;
use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_long};

/// A kernel object name: 15 bytes and a zero.
pub(crate) const NAME: [u8; 16] = *b"netvm\0\0\0\0\0\0\0\0\0\0\0";

/// `bpf(2)`.
///
/// # Safety
/// `attributes` must be the start of `union bpf_attr` for `command`, without padding, and every address in it must be
/// what the command expects there.
pub(crate) unsafe fn bpf<T>(command: c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes and takes the rest of the union as zero; the caller guarantees
    // the contents.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, c_long::from(command), ptr::from_ref(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Like [`bpf`], for commands that write into the attributes.
///
/// # Safety
/// Like [`bpf`].
pub(crate) unsafe fn bpf_write<T>(command: c_int, attributes: &mut T) -> io::Result<RawFd> {
    let attributes = ptr::from_mut(attributes);
    // SAFETY: as in `bpf`; the kernel writes within the attributes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, c_long::from(command), attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Like [`bpf`], for commands that return a new descriptor, which the kernel creates close-on-exec.
///
/// # Safety
/// Like [`bpf`], and `command` must return a descriptor.
pub(crate) unsafe fn bpf_fd<T>(command: c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller upholds the contract of `bpf`.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the descriptor is new, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
