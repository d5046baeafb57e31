//! Eventfds that thousands wait for: whoever hears by them is not kept.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/crowd.rs"]
mod crowd;

use std::os::fd::AsFd;
use std::time::Duration;

use crowd::{cost, crowd};
use netvm_bell::{Ear, new_bell, write};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn is_called(ear: &Ear) -> bool {
    let mut fds = [PollFd::new(ear, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn hearing_takes_no_longer_where_thousands_wait() {
    let (ear, call) = (Ear::new().unwrap(), new_bell().unwrap());
    ear.open_to(&call).unwrap();
    let (_crowd, _) = crowd(call.as_fd(), Duration::from_millis(1));
    ear.heed();
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
