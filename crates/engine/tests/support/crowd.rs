//! Eventfds that thousands wait for.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

/// Has so many wait for an eventfd that to signal it takes as long; returns how long that is.
pub fn crowd(bell: BorrowedFd<'_>, least: Duration) -> (Vec<OwnedFd>, Duration) {
    let mut all = Vec::new();
    loop {
        all.extend(more(bell, 100, 200));
        let cost = cost_of(bell);
        if cost >= least {
            return (all, cost);
        }
    }
}

fn more(bell: BorrowedFd<'_>, descriptors: usize, watchers: usize) -> Vec<OwnedFd> {
    let others: Vec<OwnedFd> = (0..descriptors).map(|_| bell.try_clone_to_owned().unwrap()).collect();
    let watch = |_| {
        let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for other in &others {
            epoll::add(&watcher, other, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        watcher
    };
    // An entry goes with the last descriptor of its own that is open.
    (0..watchers).map(watch).collect::<Vec<_>>().into_iter().chain(others).collect()
}

/// CPU time that this thread takes to signal an eventfd, as a rule.
fn cost_of(bell: BorrowedFd<'_>) -> Duration {
    let mut times = [(); 5].map(|()| {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
        let time = clock_gettime(ClockId::ThreadCPUTime) - start;
        rustix::io::read(bell, &mut [0; 8]).unwrap();
        Duration::try_from(time).unwrap()
    });
    times.sort_unstable();
    times[2]
}
