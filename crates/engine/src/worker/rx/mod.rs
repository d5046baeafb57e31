//! From a port's rx queue to the stage that a burst is for.

pub(crate) mod dispatch;
pub(crate) mod receive;
