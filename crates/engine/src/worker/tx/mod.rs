//! The tx stage: packets into a port's tx queue.

pub(crate) mod copy;
pub(crate) mod offload;
