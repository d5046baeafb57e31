//! Waits for eventfds that peers share.
//!
//! A peer can make thousands of threads wait for an eventfd. Reading it then takes the kernel as long as waking them, and a writer holds
//! its lock for as long; poll(2) takes that lock twice. So a worker has an epoll instance to which others add eventfds, and which
//! reports each write, whatever the count is (`EPOLLET`). Asking it takes no eventfd's lock, and no peer has it.
//!
//! A peer that keeps a count full, so that writes fail, silences that eventfd for all that share it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Eventfds that are taken note of at a time; of others the next time.
const MOST: usize = 64;

/// What a thread hears others with: readable once one has called.
#[derive(Clone, Debug)]
pub struct EpollWaiter(Arc<OwnedFd>);

impl EpollWaiter {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// Watches an eventfd: reports writes from now on, and a count that it has already.
    ///
    /// # Errors
    /// The kernel's answer where there are too many, or this is none.
    pub fn add(&self, fd: &impl AsFd) -> Result<(), Errno> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.0, fd, epoll::EventData::new_u64(0), edges)
    }

    /// Stops watching it. Call this before closing the descriptor, because peers have copies of it.
    pub fn remove(&self, fd: &impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Clears the notifications so far.
    pub fn drain(&self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; MOST];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // No error is possible but a signal, after which the next sleep is short.
        let _ = epoll::wait(&self.0, &mut events[..], Some(&at_once));
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
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::{new_eventfd, write};

    fn call(waiter: &EpollWaiter) -> OwnedFd {
        let fd = new_eventfd().unwrap();
        waiter.add(&fd).unwrap();
        fd
    }

    fn is_called(waiter: &EpollWaiter) -> bool {
        let mut fds = [PollFd::new(waiter, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn every_call_is_heard_once_though_nobody_reads_it() {
        let waiter = EpollWaiter::new().unwrap();
        let calls: Vec<OwnedFd> = (0..MOST).map(|_| call(&waiter)).collect();
        for round in 0..3 {
            assert!(!is_called(&waiter), "{round}");
            calls.iter().for_each(write);
            assert!(is_called(&waiter), "{round}");
            waiter.drain();
        }
        assert!(!is_called(&waiter));
        write(&calls[7]);
        assert!(is_called(&waiter));
    }

    #[test]
    fn who_keeps_an_eventfd_that_is_not_heard_any_more_is_not() {
        let waiter = EpollWaiter::new().unwrap();
        let call = call(&waiter);
        let kept = call.as_fd().try_clone_to_owned().unwrap();
        waiter.remove(&call);
        drop(call);
        write(&kept);
        assert!(!is_called(&waiter));
    }
}
