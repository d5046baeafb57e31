//! What others watch netvmd by: metrics and events.

pub(super) mod events;
pub(super) mod metrics;
