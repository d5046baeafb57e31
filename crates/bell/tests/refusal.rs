//! What is done where the kernel does not signal eventfds for this process. Alone in its process, which has too few descriptors.
#![allow(clippy::unwrap_used, reason = "tests")]

use netvm_bell::{Ringer, new_bell};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_ringer_that_cannot_signal_writes_and_says_why() {
    let bell = new_bell().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let ringer = Ringer::new();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(Ringer::refusal(), Some(Errno::MFILE));
    ringer.ring(&bell);
    let mut count = [0; 8];
    rustix::io::read(&bell, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}
