//! Ports of routers: of several at once, and without a device.

mod shared;
mod without_device;
