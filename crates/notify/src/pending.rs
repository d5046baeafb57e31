// SPDX-License-Identifier: Apache-2.0
//! Reads the pending events of an epoll instance.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};

/// Events that one read consumes.
pub(crate) const MAX_EVENTS: usize = 64;

/// Calls `each` for pending events. If there are more than [`MAX_EVENTS`], the next read begins with the others.
pub(crate) fn read_pending(epoll: impl AsFd, each: impl FnMut(&Event)) {
    let mut events = [const { MaybeUninit::<Event>::uninit() }; MAX_EVENTS];
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    // The only possible error is a signal. Events stay pending then, and the next sleep ends at once.
    if let Ok((events, _)) = epoll::wait(epoll, &mut events[..], Some(&no_wait)) {
        events.iter().for_each(each);
    }
}
