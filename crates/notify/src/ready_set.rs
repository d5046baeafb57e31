// SPDX-License-Identifier: Apache-2.0
//! Reports which of many descriptors are readable. In: descriptors, each with a number. Out: the numbers of the
//! readable ones.
//!
//! The kernel keeps a list of the readable descriptors (epoll), so a wait costs the same with two descriptors as with a
//! thousand. poll(2) looks at each of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use crate::pending::read_pending;

/// A descriptor of a [`ReadySet`] that is readable, or has an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that it was added with.
    pub number: u64,
    /// It has data.
    pub is_readable: bool,
    /// It has an error. A socket's error stays until it is read.
    pub has_error: bool,
}

/// A set of descriptors, itself readable while one of them is.
#[derive(Debug)]
pub struct ReadySet(OwnedFd);

impl ReadySet {
    /// An empty set.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> Result<Self, Errno> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// The kernel's error: too many watches, or a descriptor that epoll does not accept.
    pub fn add(&self, fd: impl AsFd, number: u64) -> Result<(), Errno> {
        epoll::add(&self.0, fd, EventData::new_u64(number), EventFlags::IN)
    }

    /// Removes a descriptor. Call this before closing it: the set reports it for as long as any descriptor of the same
    /// file is open.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Calls `each` for descriptors that are readable now; for 64 at most, the next call begins with the others.
    pub fn read(&self, mut each: impl FnMut(Ready)) {
        read_pending(&self.0, |event| {
            // The structure is packed.
            let (flags, data) = (event.flags, event.data);
            let (is_readable, has_error) = (flags.contains(EventFlags::IN), flags.contains(EventFlags::ERR));
            each(Ready { number: data.u64(), is_readable, has_error });
        });
    }
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::pending::MAX_EVENTS;

    fn numbers(set: &ReadySet) -> Vec<u64> {
        let mut numbers = Vec::new();
        set.read(|ready| {
            assert!(ready.is_readable && !ready.has_error, "{ready:?}");
            numbers.push(ready.number);
        });
        numbers
    }

    fn is_readable(set: &ReadySet) -> bool {
        poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn reports_readable_descriptors_until_they_are_read() {
        let set = ReadySet::new().unwrap();
        let pairs: Vec<_> = (0..300).map(|_| UnixDatagram::pair().unwrap()).collect();
        (0..).zip(&pairs).for_each(|(n, (receiver, _))| set.add(receiver, n).unwrap());
        assert!(!is_readable(&set) && numbers(&set).is_empty());
        for n in [7, 299] {
            pairs[n].1.send(&[0]).unwrap();
        }
        for _ in 0..2 {
            let mut numbers = numbers(&set);
            numbers.sort_unstable();
            assert_eq!(numbers, [7, 299]);
        }
        pairs[7].0.recv(&mut [0]).unwrap();
        assert_eq!(numbers(&set), [299]);
        pairs[299].0.recv(&mut [0]).unwrap();
        assert!(!is_readable(&set) && numbers(&set).is_empty());
    }

    #[test]
    fn more_than_it_reports_at_once_come_in_turn() {
        let set = ReadySet::new().unwrap();
        let pairs: Vec<_> = (0..300).map(|_| UnixDatagram::pair().unwrap()).collect();
        for (n, (receiver, sender)) in (0..).zip(&pairs) {
            set.add(receiver, n).unwrap();
            sender.send(&[0]).unwrap();
        }
        let mut seen = [false; 300];
        for _ in 0..pairs.len().div_ceil(MAX_EVENTS) {
            numbers(&set).into_iter().for_each(|n| seen[n as usize] = true);
        }
        assert!(seen.iter().all(|seen| *seen), "{seen:?}");
    }

    #[test]
    fn a_removed_descriptor_is_not_reported() {
        let set = ReadySet::new().unwrap();
        let (receiver, sender) = UnixDatagram::pair().unwrap();
        set.add(&receiver, 1).unwrap();
        sender.send(&[0]).unwrap();
        assert!(is_readable(&set));
        set.remove(&receiver);
        assert!(!is_readable(&set) && numbers(&set).is_empty());
    }
}
