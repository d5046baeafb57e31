// SPDX-License-Identifier: Apache-2.0
//! The fallback when the kernel gives the process no AIO context. The only test of its process, since it lowers the
//! limit of descriptors.
#![allow(clippy::unwrap_used, reason = "tests")]

use netvm_notify::{Signaller, new_eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_signaller_without_a_context_writes_and_keeps_the_reason() {
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
