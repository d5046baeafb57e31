//! Values of header fields, with their text forms.

mod address;
mod ether;
mod net;
mod port_range;
mod proto;

pub use address::Address;
pub use ether::{EtherType, InvalidVlanId, MacAddr, ParseEtherTypeError, ParseMacError, VlanId};
pub use net::{IpNet, Ipv4Net, Ipv6Net, NetError};
pub use port_range::{ParsePortRangeError, PortRange};
pub use proto::{IpProto, ParseIpProtoError, TcpFlags};
