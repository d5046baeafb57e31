// SPDX-License-Identifier: Apache-2.0
//! The eventfds by which guests are notified (call descriptors).
//!
//! A peer that shares an eventfd can block its writers and make each write expensive (`netvm_notify`). So calls are
//! sent by the kernel (a [`Signaller`]), within a rate limit.
//!
//! ```text
//!   guest ── SET_VRING_CALL, eventfd ──▶ list by device and vring
//!   owner of a queue: burst; does the guest want a call? ──▶ the kernel signals the eventfd in the list
//! ```
//!
//! The ring code says after a burst whether the guest wants a call. A descriptor in the list keeps its number while its
//! device exists, so owners in a read section never use one that is being closed.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use dpdk_sys as sys;
use netvm_notify::{RateLimit, Signaller, Wake, new_eventfd};

const DEVICES: usize = sys::NETVM_VHOST_MAX_DEVICES as usize;
const VRINGS: usize = 2 * sys::NETVM_VHOST_MAX_PAIRS as usize;

/// By device and vring: the descriptor plus one; 0 means none.
static LIST: [[AtomicI32; VRINGS]; DEVICES] = [const { [const { AtomicI32::new(0) }; VRINGS] }; DEVICES];

fn place(device: i32, vring: usize) -> Option<&'static AtomicI32> {
    LIST.get(usize::try_from(device).ok()?)?.get(vring)
}

/// Makes this the call descriptor of a vring; without one, calls go nowhere. Only the device's connection calls this.
pub(super) fn install(device: i32, vring: u16, fd: Option<OwnedFd>) {
    let Some(place) = place(device, vring.into()) else { return };
    match (place.load(Ordering::Relaxed), fd.or_else(|| new_eventfd().ok())) {
        (_, None) => {}
        (0, Some(fd)) => place.store(fd.into_raw_fd() + 1, Ordering::Release),
        // SAFETY: takes no pointer. The number is this list's; a concurrent user sees the old or the new descriptor.
        (known, Some(fd)) => drop(unsafe { libc::dup3(fd.as_raw_fd(), known - 1, libc::O_CLOEXEC) }),
    }
}

/// Closes the descriptors of a removed device, which no thread uses any more.
pub(super) fn forget(device: i32) {
    for place in (0..VRINGS).filter_map(|vring| place(device, vring)) {
        let known = place.swap(0, Ordering::Relaxed);
        if known != 0 {
            // SAFETY: only this list owned the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(known - 1) });
        }
    }
}

/// The call descriptor of a vring.
fn of<'a>(device: i32, vring: u16) -> Option<BorrowedFd<'a>> {
    let known = place(device, vring.into())?.load(Ordering::Acquire);
    // SAFETY: open until the device is gone, which is longer than the caller uses it.
    (known != 0).then(|| unsafe { BorrowedFd::borrow_raw(known - 1) })
}

/// Signals a vring's call descriptor without a rate limit, while the device exists.
pub(super) fn signal(signaller: &Signaller, device: i32, vring: u16) {
    if let Some(call) = of(device, vring) {
        signaller.signal(&call);
    }
}

/// Sends the calls of one queue, within a rate limit.
#[derive(Debug)]
pub(super) struct CallSignaller {
    signaller: Signaller,
    rate_limit: RateLimit,
    /// Pairs with a pending call: for the receive ring, and for the transmit ring.
    pending: [u64; 2],
}

impl CallSignaller {
    pub(super) fn new() -> Self {
        Self { signaller: Signaller::new(), rate_limit: RateLimit::new(), pending: [0; 2] }
    }

    /// Call this after each burst, in the read section: sends a call if the guest wants one.
    #[inline(always)]
    pub(super) fn after_burst(&mut self, device: i32, vring: u16) {
        // SAFETY: takes no pointer.
        if unsafe { sys::netvm_vhost_take_call() } != 0 {
            self.signal(device, vring);
        }
    }

    #[cold]
    fn signal(&mut self, device: i32, vring: u16) {
        let Some(call) = of(device, vring) else { return };
        let wake = self.rate_limit.signal(&self.signaller, &call);
        let pending = &mut self.pending[usize::from(vring % 2)];
        let pair = 1u64.checked_shl((vring / 2).into()).unwrap_or(0);
        if matches!(wake, Wake::Later | Wake::Omitted) { *pending |= pair } else { *pending &= !pair }
    }

    #[inline(always)]
    pub(super) const fn has_pending(&self) -> bool {
        self.pending[0] | self.pending[1] != 0
    }

    /// Sends pending calls as far as the rate limit allows. In a read section.
    #[cold]
    pub(super) fn send_pending(&mut self, device: i32) {
        for (kind, pairs) in (0..).zip(self.pending) {
            for pair in (0..64).filter(|pair| pairs >> pair & 1 == 1) {
                self.signal(device, 2 * pair + kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_notify::new_eventfd;

    use super::*;

    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn calls_use_the_last_descriptor_of_the_guest() {
        // There never are that many devices.
        let device = DEVICES as i32 - 1;
        let fds = [(); 3].map(|()| new_eventfd().unwrap());
        let mut calls = CallSignaller::new();
        assert!(of(device, 3).is_none());
        let numbers = [0, 1].map(|n| {
            install(device, 3, fds[n].try_clone().ok());
            calls.signal(device, 3);
            assert_eq!(count(&fds[n]), 1);
            of(device, 3).unwrap().as_raw_fd()
        });
        install(device, 4, fds[2].try_clone().ok());
        calls.signal(device, 4);
        assert_eq!(count(&fds[2]), 1);
        assert_eq!(numbers[0], numbers[1]);
        // The guest polls.
        install(device, 4, None);
        calls.signal(device, 4);
        assert!(rustix::io::read(&fds[2], &mut [0; 8]).is_err());
        // Out of range.
        install(device, VRINGS as u16, new_eventfd().ok());
        forget(device);
        assert!(of(device, 3).is_none() && of(device, 4).is_none());
        assert!(!calls.has_pending());
    }
}
