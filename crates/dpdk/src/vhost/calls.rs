//! What guests are told of packets by.
//!
//! A peer that shares an eventfd can make its writers wait, and make each write expensive (`netvm_notify`). So the
//! library does not get those of guests, but one of netvm's in place of each, which nobody reads:
//!
//! ```text
//!   guest ── SET_VRING_CALL, eventfd ──▶ relay ── SET_VRING_CALL, another ──▶ library
//!                                          │                                    │ before it handles the message
//!                                          └── in the order of messages ──▶ list by device and vring
//!
//!   owner of a queue: burst; does the guest want to be told of it? ──▶ the kernel signals the eventfd in the list
//! ```
//!
//! The library, or netvm's own code for rings (`vring.h`), says after a burst that the guest wants to be told. A descriptor
//! in the list keeps its number for as long as its device is there, so that owners, who are inside of their gate, never
//! use one that is just being closed.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use dpdk_sys as sys;
use netvm_notify::{RateLimit, Signaller, Wake};

use super::guests::lock;

const DEVICES: usize = sys::NETVM_VHOST_MAX_DEVICES as usize;
const VRINGS: usize = 2 * sys::NETVM_VHOST_MAX_PAIRS as usize;

/// By device and vring: the descriptor, plus one; 0: none.
static LIST: [[AtomicI32; VRINGS]; DEVICES] = [const { [const { AtomicI32::new(0) }; VRINGS] }; DEVICES];

fn place(device: i32, vring: usize) -> Option<&'static AtomicI32> {
    LIST.get(usize::try_from(device).ok()?)?.get(vring)
}

/// The eventfds of messages that the library has not handled yet, with their vrings.
#[derive(Debug, Default)]
pub(super) struct PendingCalls(Mutex<VecDeque<(usize, OwnedFd)>>);

impl PendingCalls {
    /// The guest is to be told of a vring by this, from the next message on that the library handles.
    pub(super) fn add(&self, vring: usize, fd: OwnedFd) {
        lock(&self.0).push_back((vring, fd));
    }

    /// The library is about to handle that message.
    pub(super) fn install(&self, device: i32) {
        if let Some((vring, fd)) = lock(&self.0).pop_front()
            && let Some(place) = place(device, vring)
        {
            match place.load(Ordering::Relaxed) {
                0 => place.store(fd.into_raw_fd() + 1, Ordering::Release),
                // SAFETY: takes no pointer. The number is this list's; a concurrent user sees the old or the new descriptor.
                known => drop(unsafe { libc::dup3(fd.as_raw_fd(), known - 1, libc::O_CLOEXEC) }),
            }
        }
    }
}

/// The device has gone, and nobody uses it any more.
pub(super) fn forget(device: i32) {
    for place in (0..VRINGS).filter_map(|vring| place(device, vring)) {
        let known = place.swap(0, Ordering::Relaxed);
        if known != 0 {
            // SAFETY: a descriptor that only this list had.
            drop(unsafe { OwnedFd::from_raw_fd(known - 1) });
        }
    }
}

/// What a vring's guest is told by.
fn of<'a>(device: i32, vring: u16) -> Option<BorrowedFd<'a>> {
    let known = place(device, vring.into())?.load(Ordering::Acquire);
    // SAFETY: open until the device has gone, which is for longer than the caller uses it.
    (known != 0).then(|| unsafe { BorrowedFd::borrow_raw(known - 1) })
}

/// Tells a guest of a vring, by a thread that may take its time; while the device is there.
pub(super) fn tell(signaller: &Signaller, device: i32, vring: u16) {
    if let Some(call) = of(device, vring) {
        signaller.signal(&call);
    }
}

/// Tells guests for one queue, and no more often than it has the time for.
#[derive(Debug)]
pub(super) struct Caller {
    signaller: Signaller,
    rate_limit: RateLimit,
    /// Who has not been told yet, by pair: of its receive ring, and of its transmit ring.
    owed: [u64; 2],
}

impl Caller {
    pub(super) fn new() -> Self {
        Self { signaller: Signaller::new(), rate_limit: RateLimit::new(), owed: [0; 2] }
    }

    /// After each burst, inside of the gate: the guest is told if it wants to be.
    #[inline(always)]
    pub(super) fn after_burst(&mut self, device: i32, vring: u16) {
        // SAFETY: takes no pointer.
        if unsafe { sys::netvm_vring_takes_told() } != 0 {
            self.tell(device, vring);
        }
    }

    #[cold]
    fn tell(&mut self, device: i32, vring: u16) {
        let Some(call) = of(device, vring) else { return };
        let wake = self.rate_limit.signal(&self.signaller, &call);
        let owed = &mut self.owed[usize::from(vring % 2)];
        let pair = 1u64.checked_shl((vring / 2).into()).unwrap_or(0);
        if matches!(wake, Wake::Later | Wake::Omitted) { *owed |= pair } else { *owed &= !pair }
    }

    #[inline(always)]
    pub(super) const fn owes(&self) -> bool {
        self.owed[0] | self.owed[1] != 0
    }

    /// Tells those who have not been told yet, if there is time for it. Inside of the gate.
    #[cold]
    pub(super) fn pay(&mut self, device: i32) {
        for (kind, pairs) in (0..).zip(self.owed) {
            for pair in (0..64).filter(|pair| pairs >> pair & 1 == 1) {
                self.tell(device, 2 * pair + kind);
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
    fn a_guest_is_told_by_what_it_said_last() {
        // The library never has as many.
        let device = DEVICES as i32 - 1;
        let (pending_calls, fds) = (PendingCalls::default(), [(); 3].map(|()| new_eventfd().unwrap()));
        let mut caller = Caller::new();
        for (fd, vring) in fds.iter().zip([3, 3, 4]) {
            pending_calls.add(vring, fd.try_clone().unwrap());
        }
        assert!(of(device, 3).is_none());
        let numbers = [0, 1].map(|n| {
            pending_calls.install(device);
            caller.tell(device, 3);
            assert_eq!(count(&fds[n]), 1);
            of(device, 3).unwrap().as_raw_fd()
        });
        pending_calls.install(device);
        caller.tell(device, 4);
        assert_eq!(count(&fds[2]), 1);
        assert_eq!(numbers[0], numbers[1]);
        // More than there are messages, and vrings that no device has.
        pending_calls.install(device);
        pending_calls.add(VRINGS, new_eventfd().unwrap());
        pending_calls.install(device);
        forget(device);
        assert!(of(device, 3).is_none() && of(device, 4).is_none());
        assert!(!caller.owes());
    }
}
