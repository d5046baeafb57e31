//! Packet headers as the engine and network functions need them, with nothing of DPDK.
//!
//! - [`parse`] reads the headers of an Ethernet frame into [`Headers`]: a [`FlowKey`] and the offsets of the layers. It
//!   never panics, allocates nothing, and looks at no byte outside the slice. What is not well-formed is [`Malformed`],
//!   with the reason.
//! - [`FlowKey::of_frame`] reads only the key, faster where headers are of the common kinds.
//! - [`FiveTuple`] and [`FlowKey`] name flows; [`FlowHasher`] hashes them with a random key, for one direction or for
//!   both.
//! - [`MacAddr`], [`EtherType`], [`VlanId`], [`IpProto`], [`Address`], [`IpNet`], [`PortRange`]: the values of fields,
//!   checked, and the way people write them.
//! - [`segment`] cuts TCP segments that are longer than packets.
//! - [`checksum`] and [`rewrite`] change headers in place; [`FrameBuilder`] makes frames.
//!
//! Addresses, lengths and numbers are in host order everywhere but in the bytes of a frame.

#![forbid(unsafe_code)]

mod address;
mod build;
pub mod checksum;
mod ether;
mod fast;
mod flow;
mod hash;
mod headers;
mod malformed;
mod net;
mod parse;
mod port_range;
mod proto;
pub mod rewrite;
pub mod segment;

pub use address::Address;
pub use build::{BuildError, FrameBuilder};
pub use ether::{EtherType, InvalidVlanId, MacAddr, ParseEtherTypeError, ParseMacError, VlanId};
pub use flow::{FiveTuple, FlowKey, Fragment};
pub use hash::FlowHasher;
pub use headers::{Headers, Network, Transport};
pub use malformed::Malformed;
pub use net::{IpNet, Ipv4Net, Ipv6Net, NetError};
pub use parse::{MAX_IPV6_EXTENSIONS, MAX_VLAN_TAGS, parse, parse_prefix};
pub use port_range::{ParsePortRangeError, PortRange};
pub use proto::{IpProto, ParseIpProtoError, TcpFlags};
