//! TAP devices and packet sockets.

mod device;

pub(crate) use device::{KernelDevice, SentOffloads};
