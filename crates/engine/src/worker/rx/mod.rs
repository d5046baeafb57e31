//! From a port's rx queue to where packets go: receive, find the action, dispatch.

pub(crate) mod dispatch;
pub(crate) mod receive;
