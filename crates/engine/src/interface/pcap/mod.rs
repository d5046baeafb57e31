//! Ports that read and write captures.

mod device;

pub(crate) use device::{Capture, Progress};
