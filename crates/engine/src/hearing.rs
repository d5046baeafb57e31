//! How a worker that sleeps hears NFs.
//!
//! NFs share the eventfds by which they wake a worker, and can have thousands wait for one. The kernel then takes as long to
//! read it, and its lock is kept for as long by whoever writes to it; poll(2) takes that lock twice. So a worker has an
//! epoll instance for all of them, added by the manager before any NF has them, which tells of each write, whatever the count
//! is (`EPOLLET`). To ask it takes neither, and nobody but the worker has it.
//!
//! Who keeps a count full so that writes to it fail has NFs of its own group unheard, until the worker looks by itself.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use netvm_config::model::MAX_GROUPS;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// What one worker hears NFs with: readable once one has called.
#[derive(Clone, Debug)]
pub(crate) struct Ear(Arc<OwnedFd>);

impl Ear {
    pub(crate) fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// Takes note of those who have called until now.
    pub(crate) fn heed(&self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; MAX_GROUPS];
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

/// An eventfd by which the NFs of a group wake a worker.
#[derive(Debug)]
pub(crate) struct Call {
    fd: OwnedFd,
    ear: Ear,
}

impl Call {
    pub(crate) fn new(ear: &Ear) -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(ear, &fd, epoll::EventData::new_u64(0), edges)?;
        Ok(Self { fd, ear: ear.clone() })
    }
}

impl AsFd for Call {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Processes that live on may have it still.
        let _ = epoll::delete(&self.ear, &self.fd);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use netvm_bell::write;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    fn is_called(ear: &Ear) -> bool {
        let mut fds = [PollFd::new(ear, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn every_call_is_heard_once_though_nobody_reads_it() {
        let ear = Ear::new().unwrap();
        let calls: Vec<Call> = (0..MAX_GROUPS).map(|_| Call::new(&ear).unwrap()).collect();
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

    /// CPU time that this thread takes for something.
    fn cost(of: impl FnOnce()) -> Duration {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        of();
        (clock_gettime(ClockId::ThreadCPUTime) - start).try_into().unwrap()
    }

    #[test]
    fn hearing_takes_no_longer_where_thousands_wait() {
        let ear = Ear::new().unwrap();
        let call = Call::new(&ear).unwrap();
        let copies: Vec<OwnedFd> = (0..100).map(|_| call.as_fd().try_clone_to_owned().unwrap()).collect();
        let crowd: Vec<Ear> = (0..100).map(|_| Ear::new().unwrap()).collect();
        for (copy, ear) in copies.iter().flat_map(|copy| crowd.iter().map(move |ear| (copy, ear))) {
            epoll::add(ear, copy, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        let mut times = [(); 5].map(|()| {
            let told = cost(|| write(&call));
            let heard = cost(|| {
                assert!(is_called(&ear));
                ear.heed();
                assert!(!is_called(&ear));
            });
            (heard, told)
        });
        times.sort_unstable();
        println!("{times:?}");
        assert!(times[0].0 < times[0].1 / 5, "{times:?}");
    }

    #[test]
    fn who_keeps_the_eventfd_of_a_group_that_has_gone_is_not_heard() {
        let ear = Ear::new().unwrap();
        let call = Call::new(&ear).unwrap();
        let kept = call.as_fd().try_clone_to_owned().unwrap();
        drop(call);
        write(&kept);
        assert!(!is_called(&ear));
    }
}
