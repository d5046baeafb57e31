// SPDX-License-Identifier: Apache-2.0
//! Eventfd notifications between the engine and the NFs and guests that share the eventfds.
//!
//! A peer may do anything to an eventfd that it shares. [`Signaller`] wakes the peer without ever blocking on it,
//! [`RateLimit`] bounds the CPU time that wake-ups take, and [`EpollWaiter`] receives the peer's signals without taking
//! the eventfd's lock.

mod pending;
mod rate_limit;
mod ready_set;
mod signaller;
mod waiter;

pub use rate_limit::{RateLimit, Wake, cpu_nanos};
pub use ready_set::{Ready, ReadySet};
pub use signaller::{Signaller, is_eventfd, new_eventfd, write};
pub use waiter::EpollWaiter;
