// SPDX-License-Identifier: Apache-2.0
//! The kick by which the port's thread wakes a worker that sleeps. In: a request that gave the worker something to do.
//! Out: a readable eventfd, if the worker waits for it.
//!
//! A driver that rings doorbells by requests wakes the port's thread anyway, so that the worker need not poll the card.
//! No peer shares the eventfd.
//!
//! ```text
//!   worker: is_awaited = true;  fence;  look at the card;  sleep
//!   thread: write to the card;  fence;  if is_awaited: signal
//! ```
//!
//! So either the worker sees what was written, or the thread sees that it waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::io::Errno;

#[derive(Debug)]
pub(crate) struct Kick {
    eventfd: OwnedFd,
    /// The worker waits, and was not kicked since it began to.
    is_awaited: AtomicBool,
}

impl Kick {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { eventfd: netvm_notify::new_eventfd()?, is_awaited: AtomicBool::new(false) })
    }

    /// The worker is about to look at the card for the last time before it sleeps.
    pub(super) fn begin_wait(&self) {
        // There may be no kick to take back.
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        self.is_awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Wakes the worker, if it waits.
    pub(super) fn send(&self) {
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed) {
            netvm_notify::write(&self.eventfd);
        }
    }

    /// Readable after a kick.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
