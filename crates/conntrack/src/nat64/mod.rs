// SPDX-License-Identifier: Apache-2.0
//! NAT64: translates packets between IPv6 and IPv4 (RFC 7915).
//!
//! ```text
//!  packet ──▶ its first bytes ──▶ translate ──▶ other first bytes ──▶ packet: the rest of its bytes follows them
//!                  new ends ─────────┘
//! ```
//!
//! [`translate`] keeps no state: it is told which ends the packet gets, for an ICMP error also those of the packet that
//! it is about. It reads and writes headers alone. Checksums are adjusted, not computed (RFC 1624), so the payload is
//! neither needed nor touched. Connections with an end in each family are the sessions of RFC 6146:
//! [`Connections::confirm_nat64`](crate::Connections::confirm_nat64) begins them, and
//! [`Connections::translate_family`](crate::Connections::translate_family) translates their packets.
//!
//! - Traffic class, hop limit and payload stay. The router that forwards the packet decrements the hop limit.
//! - IPv4 options and IPv6 extension headers are left out. A fragment header becomes the fields of IPv4, and back.
//! - Without a fragment header, an IPv4 packet of more than 1260 bytes may not be fragmented; a shorter one may, so
//!   that links with a small MTU stay usable (section 5.1).
//! - An IPv4 packet that may be fragmented is not, whatever its length: if it is too long for a link, the router there
//!   says so.
//! - Fragments of ICMP messages are refused, as their checksum covers all of them (section 1.2).
//! - UDP without a checksum gets one in IPv6, which the device computes; in a fragment, it is refused (section 4.5).
//! - An MTU in an error changes by the length of the headers (sections 4.2, 5.2). The MTUs of the next hops are not
//!   looked at: the router says so itself if a packet does not fit.
//! - An extension of an error (RFC 4884) stays, unless it would have to move and is not in the bytes at hand; then it
//!   is the end of the packet that the error is about.

mod error;
mod front;
mod icmp;
mod ip;
mod packet;
mod prefix;
mod translate;
mod transport;

pub use front::Front;
pub(crate) use ip::counterpart;
pub use packet::{Counterpart, Ends, Original, Translated};
pub use prefix::{Prefix, PrefixError};
pub use translate::translate;

/// Why a packet is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untranslatable {
    /// It is not IP in Ethernet, a length in it is wrong, or a header is not in the bytes at hand.
    Malformed,
    /// It has a source route that it has not reached the end of: "source route failed" is due (RFC 7915 section 4.1).
    SourceRoute,
    /// It has a routing header with segments left: "erroneous header field" is due, with this pointer (section 5.1).
    RoutingHeader {
        /// Bytes from the IPv6 header to the number of segments.
        pointer: u32,
    },
    /// Its protocol cannot be translated: it belongs to one family, or its checksum covers what changes.
    Protocol,
    /// It has an ICMP message that the other family does not have.
    IcmpType,
    /// It is a fragment of an ICMP message.
    FragmentedIcmp,
    /// It is the first fragment of UDP without a checksum.
    NoChecksum,
    /// It is an error about an error.
    ErrorAboutError,
    /// It is too long for IPv4, or its headers are for [`Front`].
    TooLong,
    /// An end has no address of the other family.
    Address,
    /// Its connection has ended, or is none of NAT64.
    NoConnection,
}
