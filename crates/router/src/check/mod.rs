// SPDX-License-Identifier: Apache-2.0
//! Checks of an IP header before a packet is routed: RFC 1812 for IPv4, RFC 8200 and RFC 4291 for IPv6.
//!
//! A checked packet is looked up, punted to the kernel, or refused. Packets that only the kernel can answer (expired
//! TTL, options, groups) are punted whole. Packets that no router may forward are dropped here, so that they cannot
//! load the kernel.

mod v4;
mod v6;

use thiserror::Error;

pub use v4::check_v4;
pub use v6::check_v6;

/// A well-formed packet; `A` is `u32` for IPv4 and `[u8; 16]`, as on the wire, for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked<A> {
    /// The worker looks up its route.
    Route {
        /// Destination address.
        destination: A,
        /// Bytes from the IP header on, by the header's length field. The rest of the frame is padding.
        length: u32,
    },
    /// The kernel handles it.
    Punt(HeaderReason),
}

/// Why the kernel handles a packet whatever its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeaderReason {
    /// The TTL or hop limit expires here: the sender is due an ICMP message, or the packet is for the router itself
    /// (RFC 1812 section 5.3.1, RFC 8200 section 3).
    Expired,
    /// The packet has IPv4 options or an IPv6 hop-by-hop header, which every router examines (RFC 1812 section 5.2.4,
    /// RFC 8200 section 4.3).
    Options,
    /// The destination is a multicast group or the broadcast address.
    Group,
    /// An address is valid on the link only (RFC 3927 section 2.7, RFC 4291 section 2.5.6).
    LinkLocal,
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum HeaderError {
    /// The packet ends within its header.
    #[error("ends within its IP header")]
    Truncated,
    /// The IP version contradicts the EtherType.
    #[error("IP version contradicts the EtherType")]
    Version,
    /// The lengths contradict each other or the frame (RFC 1812 section 5.2.2).
    #[error("bad length in the IP header")]
    Length,
    /// The header checksum is wrong (RFC 1812 section 5.2.2).
    #[error("wrong IPv4 header checksum")]
    Checksum,
    /// No host may send from the source: a group, loopback or unspecified address (RFC 1812 section 5.3.7, RFC 4291
    /// section 2.5 to 2.7), or an IPv4-mapped one (RFC 6890 table 20).
    #[error("invalid source address")]
    Source,
    /// The destination is a loopback, unspecified or IPv4-mapped address.
    #[error("invalid destination address")]
    Destination,
}
