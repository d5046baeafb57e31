// SPDX-License-Identifier: Apache-2.0
//! Makes thousands of waiters wait for an eventfd.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use netvm_notify::cpu_nanos;
use rustix::event::epoll;

/// Adds waiters to an eventfd until a signal takes at least `least`. Returns the waiters, and the time that a signal
/// takes.
pub fn crowd(eventfd: BorrowedFd<'_>, least: Duration) -> (Vec<OwnedFd>, Duration) {
    let mut all = Vec::new();
    loop {
        all.extend(more(eventfd, 100, 200));
        let cost = cost_of_signal(eventfd);
        if cost >= least {
            return (all, cost);
        }
    }
}

fn more(eventfd: BorrowedFd<'_>, descriptors: usize, watchers: usize) -> Vec<OwnedFd> {
    let others: Vec<OwnedFd> = (0..descriptors).map(|_| eventfd.try_clone_to_owned().unwrap()).collect();
    let watch = |_| {
        let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for other in &others {
            epoll::add(&watcher, other, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        watcher
    };
    // A watch lives as long as its descriptor is open.
    (0..watchers).map(watch).collect::<Vec<_>>().into_iter().chain(others).collect()
}

/// The median of five.
fn cost_of_signal(eventfd: BorrowedFd<'_>) -> Duration {
    let mut times = [(); 5].map(|()| {
        let time = cost(|| netvm_notify::write(&eventfd));
        rustix::io::read(eventfd, &mut [0; 8]).unwrap();
        time
    });
    times.sort_unstable();
    times[2]
}

/// CPU time that this thread takes for `act`.
pub fn cost(act: impl FnOnce()) -> Duration {
    let start = cpu_nanos();
    act();
    Duration::from_nanos(cpu_nanos() - start)
}
