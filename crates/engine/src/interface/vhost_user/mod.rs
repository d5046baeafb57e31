//! vhost-user ports.

mod device;

pub(crate) use device::VhostDevice;
