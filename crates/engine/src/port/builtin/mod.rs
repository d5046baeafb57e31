//! Ports without a device: capture files, patches, the traffic source and the sink.

pub(crate) mod capture;
pub(crate) mod patch;
pub(crate) mod sink;
pub(crate) mod source;
