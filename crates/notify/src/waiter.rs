// SPDX-License-Identifier: Apache-2.0
//! Waits for eventfds that peers share. In: eventfds. Out: one readable epoll descriptor for all of them.
//!
//! A peer can make thousands of threads wait for an eventfd. A read then takes the kernel as long as waking them all, a
//! writer holds the eventfd's lock for as long, and poll(2) takes that lock twice. Each worker therefore sleeps on an
//! epoll instance of its own. The instance reports every write, whatever the count is (`EPOLLET`). Polling it takes no
//! eventfd's lock, and no peer holds its descriptor.
//!
//! A peer that keeps an eventfd's count full makes writes fail, and so silences it for every process that shares it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;

use crate::pending::read_pending;

/// An epoll instance that becomes readable when one of its eventfds is written.
#[derive(Clone, Debug)]
pub struct EpollWaiter(Arc<OwnedFd>);

impl EpollWaiter {
    /// A waiter without eventfds.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// Adds an eventfd: reports every later write, and at once if its count is not zero.
    ///
    /// # Errors
    /// The kernel's error: too many watches, or a descriptor that epoll does not accept.
    pub fn add(&self, fd: &impl AsFd) -> Result<(), Errno> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.0, fd, epoll::EventData::new_u64(0), edges)
    }

    /// Removes an eventfd. Call this before closing the descriptor: the watch lives as long as a peer holds the
    /// eventfd.
    pub fn remove(&self, fd: &impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Consumes pending events.
    pub fn drain(&self) {
        read_pending(&self.0, |_| ());
    }
}

impl AsFd for EpollWaiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::pending::MAX_EVENTS;
    use crate::{new_eventfd, write};

    fn added(waiter: &EpollWaiter) -> OwnedFd {
        let fd = new_eventfd().unwrap();
        waiter.add(&fd).unwrap();
        fd
    }

    fn is_readable(waiter: &EpollWaiter) -> bool {
        let mut fds = [PollFd::new(waiter, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn every_write_is_reported_once_without_a_read() {
        let waiter = EpollWaiter::new().unwrap();
        let eventfds: Vec<OwnedFd> = (0..MAX_EVENTS).map(|_| added(&waiter)).collect();
        for round in 0..3 {
            assert!(!is_readable(&waiter), "{round}");
            eventfds.iter().for_each(write);
            assert!(is_readable(&waiter), "{round}");
            waiter.drain();
        }
        assert!(!is_readable(&waiter));
        write(&eventfds[7]);
        assert!(is_readable(&waiter));
    }

    #[test]
    fn a_removed_eventfd_that_a_peer_still_holds_is_not_reported() {
        let waiter = EpollWaiter::new().unwrap();
        let eventfd = added(&waiter);
        let kept = eventfd.as_fd().try_clone_to_owned().unwrap();
        waiter.remove(&eventfd);
        drop(eventfd);
        write(&kept);
        assert!(!is_readable(&waiter));
    }
}
