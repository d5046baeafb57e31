//! What others watch netvmd by: metrics, events and latencies.

pub(super) mod events;
pub(super) mod latency;
pub(super) mod metrics;
