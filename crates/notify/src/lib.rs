//! Waking NFs and guests by eventfds that they share: without ever waiting for them ([`Signaller`]), and at a cost that is
//! bounded, whatever they make of what they share ([`RateLimit`]); and hearing them in the same way ([`EpollWaiter`]).

mod rate_limit;
mod signaller;
mod waiter;

pub use rate_limit::{RateLimit, Wake, cpu_nanos};
pub use signaller::{Signaller, new_eventfd, write};
pub use waiter::EpollWaiter;
