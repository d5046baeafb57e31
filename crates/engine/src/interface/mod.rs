//! Interfaces: what policy, FDB, routers and chains name. Each kind has a folder, or a file while it is small.

pub(crate) mod af_xdp;
mod device;
pub(crate) mod e1000;
pub(crate) mod ethdev;
pub(crate) mod kernel;
pub(crate) mod missed;
pub(crate) mod patch;
pub(crate) mod pcap;
mod queue;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod vhost_user;

pub(crate) use device::{Arrival, Device, Expects, PortContext};
pub(crate) use queue::{PortQueue, Shaper};
