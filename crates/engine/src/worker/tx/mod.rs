//! The tx stage: packets into a port's tx queue.

pub(crate) mod copy;
pub(crate) mod handoff;
pub(crate) mod offload;
pub(crate) mod transmit;
