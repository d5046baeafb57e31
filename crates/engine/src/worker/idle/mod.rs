//! When there is nothing to do: back off, sleep, and wake the NFs that sleep.

pub(crate) mod backoff;
pub(crate) mod notify;
