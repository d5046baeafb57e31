//! How a thread that sleeps hears those who share eventfds with it.
//!
//! They can have thousands wait for one. The kernel then takes as long to read it, and its lock is kept for as long by whoever
//! writes to it; poll(2) takes that lock twice. So a worker has epoll instances, to which others add eventfds, and which tell
//! of each write, whatever the count is (`EPOLLET`). To ask one takes neither, and nobody but the worker has it.
//!
//! Who keeps a count full so that writes to it fail is not heard, nor are others who share it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Eventfds that are taken note of at a time; of others the next time.
const MOST: usize = 64;

/// What a thread hears others with: readable once one has called.
#[derive(Clone, Debug)]
pub struct Ear(Arc<OwnedFd>);

impl Ear {
    /// Hears nobody yet.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// Hears those who write to an eventfd, from now on, or if something is in it now.
    ///
    /// # Errors
    /// The kernel's answer where there are too many, or this is none.
    pub fn open_to(&self, fd: &impl AsFd) -> Result<(), Errno> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.0, fd, epoll::EventData::new_u64(0), edges)
    }

    /// Hears them no more. To be said before the descriptor is closed, as others have it.
    pub fn close_to(&self, fd: &impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Takes note of those who have called until now.
    pub fn heed(&self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; MOST];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // No error is possible but a signal, after which the next sleep is short.
        let _ = epoll::wait(&self.0, &mut events[..], Some(&at_once));
    }
}

impl AsFd for Ear {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::{new_bell, write};

    fn call(ear: &Ear) -> OwnedFd {
        let fd = new_bell().unwrap();
        ear.open_to(&fd).unwrap();
        fd
    }

    fn is_called(ear: &Ear) -> bool {
        let mut fds = [PollFd::new(ear, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn every_call_is_heard_once_though_nobody_reads_it() {
        let ear = Ear::new().unwrap();
        let calls: Vec<OwnedFd> = (0..MOST).map(|_| call(&ear)).collect();
        for round in 0..3 {
            assert!(!is_called(&ear), "{round}");
            calls.iter().for_each(write);
            assert!(is_called(&ear), "{round}");
            ear.heed();
        }
        assert!(!is_called(&ear));
        write(&calls[7]);
        assert!(is_called(&ear));
    }

    #[test]
    fn who_keeps_an_eventfd_that_is_not_heard_any_more_is_not() {
        let ear = Ear::new().unwrap();
        let call = call(&ear);
        let kept = call.as_fd().try_clone_to_owned().unwrap();
        ear.close_to(&call);
        drop(call);
        write(&kept);
        assert!(!is_called(&ear));
    }
}
