//! Eventfds that thousands wait for.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use netvm_notify::cpu_nanos;
use rustix::event::epoll;

/// Has so many wait for an eventfd that to signal it takes as long; returns how long that is.
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
    // An entry goes with the last descriptor of its own that is open.
    (0..watchers).map(watch).collect::<Vec<_>>().into_iter().chain(others).collect()
}

/// As a rule.
fn cost_of_signal(eventfd: BorrowedFd<'_>) -> Duration {
    let mut times = [(); 5].map(|()| {
        let time = cost(|| netvm_notify::write(&eventfd));
        rustix::io::read(eventfd, &mut [0; 8]).unwrap();
        time
    });
    times.sort_unstable();
    times[2]
}

/// CPU time that this thread takes for something.
pub fn cost(of: impl FnOnce()) -> Duration {
    let start = cpu_nanos();
    of();
    Duration::from_nanos(cpu_nanos() - start)
}
