// SPDX-License-Identifier: Apache-2.0
//! Thousands of threads that wait for an eventfd do not delay the epoll waiter.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/crowd.rs"]
mod crowd;

use std::os::fd::AsFd;
use std::time::Duration;

use crowd::{cost, crowd};
use netvm_notify::{EpollWaiter, new_eventfd, write};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn is_readable(waiter: &EpollWaiter) -> bool {
    let mut fds = [PollFd::new(waiter, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn draining_takes_no_longer_when_thousands_wait() {
    let (waiter, eventfd) = (EpollWaiter::new().unwrap(), new_eventfd().unwrap());
    waiter.add(&eventfd).unwrap();
    let (_crowd, _) = crowd(eventfd.as_fd(), Duration::from_millis(1));
    waiter.drain();
    let mut times = [(); 5].map(|()| {
        let written = cost(|| write(&eventfd));
        let drained = cost(|| {
            assert!(is_readable(&waiter));
            waiter.drain();
            assert!(!is_readable(&waiter));
        });
        (drained, written)
    });
    times.sort_unstable();
    println!("{times:?}");
    assert!(times[0].0 < times[0].1 / 5, "{times:?}");
}
