//! What a router must see in a header before it forwards a packet: RFC 1812 for IPv4, RFC 8200 and RFC 4291 for IPv6.
//!
//! Three things can come of it: the packet is looked up, the kernel gets it, or it is refused. What is for the kernel alone
//! to answer (an expired time to live, options, groups) it gets whole; what no router may pass on is dropped here, so that
//! nobody can keep the kernel busy with it.

mod v4;
mod v6;

use thiserror::Error;

pub use v4::check_v4;
pub use v6::check_v6;

/// A packet that is well-formed; `A` is `u32` for IPv4 and `u128` for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked<A> {
    /// Its route is to be looked up.
    Route {
        /// Where it is to go.
        destination: A,
        /// Bytes of the packet from its IP header on, as the header says; what the frame has behind them is padding.
        length: u32,
    },
    /// It is for the kernel.
    Punt(Punted),
}

/// Why the kernel gets a packet, whatever its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Punted {
    /// Its time to live ends here: its sender is due an ICMP message, or it is for the router itself (RFC 1812 section
    /// 5.3.1, RFC 8200 section 3).
    Expired,
    /// It has IPv4 options, or a hop-by-hop header of IPv6, which routers on the way look at (RFC 1812 section 5.2.4, RFC
    /// 8200 section 4.3).
    Options,
    /// It goes to a multicast group or to everybody.
    Group,
    /// One of its addresses holds on the link only (RFC 3927 section 2.7, RFC 4291 section 2.5.6).
    LinkLocal,
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum Refused {
    /// It ends in its header.
    #[error("ends in its IP header")]
    Truncated,
    /// It is of another version than its EtherType says.
    #[error("another IP version than the EtherType says")]
    Version,
    /// Its lengths contradict each other, or the frame (RFC 1812 section 5.2.2).
    #[error("bad length in the IP header")]
    Length,
    /// The checksum of its header is wrong (RFC 1812 section 5.2.2).
    #[error("wrong IPv4 header checksum")]
    Checksum,
    /// No host can have sent it: its source is a group, a loopback address or none (RFC 1812 section 5.3.7, RFC 4291 section
    /// 2.5 to 2.7), or an IPv4-mapped one (RFC 6890 table 20).
    #[error("source address that no packet can have")]
    Source,
    /// It can go nowhere: its destination is a loopback address or none, or an IPv4-mapped one.
    #[error("destination address that no packet can have")]
    Destination,
}
