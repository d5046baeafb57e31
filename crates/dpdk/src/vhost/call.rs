//! The descriptors by which guests are told of packets (call).
//!
//! The library writes to them, each time that a guest wants to be told. A guest may hand over anything that can be written
//! to; of what is no eventfd, nothing is known, so none is ever written to. What an eventfd can do is in `stall`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::{fs, io};

use dpdk_sys as sys;

/// An eventfd that nobody else has, and never blocks: it takes the place of what may not be written to.
static NOWHERE: OnceLock<Result<OwnedFd, i32>> = OnceLock::new();

/// To be called before guests come.
pub(super) fn prepare() -> Result<(), i32> {
    NOWHERE.get_or_init(nowhere).as_ref().map(|_| ()).map_err(|errno| *errno)
}

fn nowhere() -> Result<OwnedFd, i32> {
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
    }
    // SAFETY: a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn is_eventfd(fd: &impl AsRawFd) -> bool {
    let kind = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
}

/// Within the message that has brought a descriptor for a vring, while the library holds the locks of all: whether it may be
/// written to. If not, it is not the guest's any more.
pub(super) fn is_fit(device: i32, vring: u8) -> bool {
    // SAFETY: the device is there, as the library calls for it.
    let fd = unsafe { sys::netvm_vhost_call(device, vring.into()) };
    if fd < 0 || is_eventfd(&fd) {
        return true;
    }
    if let Some(Ok(nowhere)) = NOWHERE.get() {
        // SAFETY: takes no pointer. The number is the library's for this vring, which it gives back as it would the guest's.
        unsafe { libc::dup3(nowhere.as_raw_fd(), fd, libc::O_CLOEXEC) };
    }
    false
}
