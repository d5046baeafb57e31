//! Packet headers for the engine and network functions, without DPDK.
//!
//! - [`parse`] reads the headers of an Ethernet frame into [`Headers`]: a [`FlowKey`] and the offsets of the layers. It
//!   never panics, allocates nothing, and reads no byte outside the slice. It refuses bad frames with a [`Malformed`]
//!   reason.
//! - [`FlowKey::of_frame`] reads only the key, faster for common kinds of headers.
//! - [`FiveTuple`] and [`FlowKey`] identify flows. [`FlowHasher`] hashes them with a random key, per direction or
//!   symmetrically.
//! - [`MacAddr`], [`EtherType`], [`VlanId`], [`IpProto`], [`Address`], [`IpNet`], [`PortRange`]: checked header values
//!   and their text forms.
//! - [`segment`] splits TCP segments that are longer than packets.
//! - [`checksum`] and [`rewrite`] change headers in place; [`FrameBuilder`] builds frames.
//!
//! Addresses, lengths and numbers are in host byte order everywhere except in the bytes of a frame.

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
