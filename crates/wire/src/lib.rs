// SPDX-License-Identifier: Apache-2.0
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
//! - [`fragment`] cuts IPv4 packets into fragments.
//! - [`segment`] splits TCP segments that are longer than packets; [`gro`] makes such segments of packets.
//! - [`neighbour`] reads and answers ARP and neighbour discovery.
//! - [`reply`] writes TCP resets and ICMP errors.
//! - [`vxlan`] writes and reads the headers of tunnels.
//! - [`checksum`] and [`rewrite`] change headers in place; [`FrameBuilder`] builds frames.
//!
//! Addresses, lengths and numbers are in host byte order everywhere except in the bytes of a frame.

#![forbid(unsafe_code)]

mod build;
pub mod checksum;
mod flow;
pub mod fragment;
pub mod gro;
pub mod neighbour;
mod parse;
pub mod partial;
pub mod reply;
pub mod rewrite;
pub mod segment;
mod values;
pub mod vxlan;

pub use build::{BuildError, FrameBuilder};
pub use flow::{ConnState, FiveTuple, FlowHasher, FlowKey, Fragment};
pub use parse::{
    Headers, MAX_IPV6_EXTENSIONS, MAX_VLAN_TAGS, Malformed, Network, Transport, parse, parse_prefix,
};
pub use values::{
    Address, EtherType, InvalidVlanId, IpNet, IpProto, Ipv4Net, Ipv6Net, MacAddr, NetError,
    ParseEtherTypeError, ParseIpProtoError, ParseMacError, ParsePortRangeError, PortRange, TcpFlags, VlanId,
};
