//! e1000 ports.

mod device;

pub(crate) use device::E1000Device;
