//! L2 switching with nothing of DPDK.

#![forbid(unsafe_code)]

mod fdb;
mod flood;
mod police;
mod port_set;
mod sync;
mod vlan;
mod vlan_set;

pub use fdb::{
    Binding, Fdb, FdbError, FdbKey, FdbOptions, Learned, MAX_PORTS, StaticError, TICKS_PER_SECOND,
};
pub use flood::{Bridge, BridgeError, BridgePort, Forward, NotForwarded};
pub use police::{Meter, Policer, PolicerError};
pub use port_set::PortSet;
pub use vlan::{NO_VLAN, TagChange, Tagging, VlanError, VlanPort};
pub use vlan_set::VlanSet;
