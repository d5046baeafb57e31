//! AF_XDP ports.

mod device;
mod private;

pub(crate) use device::XskDevice;
pub(crate) use private::PrivateXskDevice;
