//! The built-in traffic source.

mod device;

pub(crate) use device::{Common, Source};
