//! What is done where the kernel does not signal eventfds for this process. Alone in its process, which has too few descriptors.
#![allow(clippy::unwrap_used, reason = "tests")]

use netvm_notify::{Signaller, new_eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_ringer_that_cannot_signal_writes_and_says_why() {
    let eventfd = new_eventfd().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let signaller = Signaller::new();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(Signaller::refusal(), Some(Errno::MFILE));
    signaller.signal(&eventfd);
    let mut count = [0; 8];
    rustix::io::read(&eventfd, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}
