// SPDX-License-Identifier: Apache-2.0
//! Reasons to refuse a frame.

use thiserror::Error;

/// Why [`crate::parse`] refuses a frame. Each is a drop reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
#[repr(u8)]
pub enum Malformed {
    /// Fewer than the 14 bytes of an Ethernet header.
    #[error("shorter than an Ethernet header")]
    EthernetTruncated,
    /// The frame ends within a VLAN tag.
    #[error("ends within a VLAN tag")]
    VlanTruncated,
    /// VLAN id 4095, which must not be transmitted (IEEE 802.1Q table 9-2).
    #[error("VLAN id 4095 is reserved")]
    VlanReserved,
    /// More than [`crate::MAX_VLAN_TAGS`] VLAN tags, or a tag of a type that the parser does not read
    /// ([`crate::EtherType::may_be_tag`]).
    #[error("more VLAN tags than two, or one of a type older than 802.1ad")]
    TooManyTags,
    /// An 802.3 length beyond the frame, shorter than an LLC header, or above 1500 without being a type.
    #[error("the 802.3 length does not fit the frame")]
    LlcLength,
    /// The frame ends within an ARP packet.
    #[error("ends within an ARP packet")]
    ArpTruncated,
    /// ARP for Ethernet or IPv4 with wrong address lengths (RFC 826).
    #[error("ARP address lengths do not fit the address types")]
    ArpLengths,
    /// Fewer than the 20 bytes of an IPv4 header.
    #[error("ends within an IPv4 header")]
    Ipv4Truncated,
    /// The EtherType is IPv4 but the version is not 4.
    #[error("IPv4 with another version")]
    Ipv4Version,
    /// The header length is below 20 bytes or above the total length.
    #[error("bad IPv4 header length")]
    Ipv4HeaderLength,
    /// The total length exceeds the frame.
    #[error("the IPv4 total length exceeds the frame")]
    Ipv4BeyondFrame,
    /// Fewer than the 40 bytes of an IPv6 header.
    #[error("ends within an IPv6 header")]
    Ipv6Truncated,
    /// The EtherType is IPv6 but the version is not 6.
    #[error("IPv6 with another version")]
    Ipv6Version,
    /// The payload length exceeds the frame.
    #[error("the IPv6 payload length exceeds the frame")]
    Ipv6BeyondFrame,
    /// An IPv4-mapped address in an IPv6 header, which is barred from the wire (RFC 6890 table 20).
    #[error("IPv4-mapped address in an IPv6 header")]
    Ipv6MappedAddress,
    /// The packet ends within an extension header, or an extension header is too short for its type. Also refuses
    /// jumbograms (RFC 2675).
    #[error("bad length of an IPv6 extension header")]
    Ipv6ExtensionLength,
    /// Hop-by-hop options that do not directly follow the IPv6 header (RFC 8200 section 4.1).
    #[error("hop-by-hop options are not the first extension header")]
    Ipv6HopByHopOrder,
    /// More than [`crate::MAX_IPV6_EXTENSIONS`] extension headers.
    #[error("too many IPv6 extension headers")]
    Ipv6TooManyExtensions,
    /// A fragment ends beyond the 65,535 bytes of the longest datagram.
    #[error("a fragment ends beyond the longest datagram")]
    FragmentTooLong,
    /// A TCP fragment at offset 8, which would overwrite the flags of the first one (RFC 1858 section 3.2.2).
    #[error("a fragment would overwrite TCP flags")]
    FragmentOverTcpFlags,
    /// Fewer than the 20 bytes of a TCP header, also in a first fragment (RFC 1858, RFC 7112).
    #[error("ends within a TCP header")]
    TcpTruncated,
    /// The data offset is below 20 bytes or beyond the packet.
    #[error("bad TCP data offset")]
    TcpDataOffset,
    /// Fewer than the 8 bytes of a UDP header.
    #[error("ends within a UDP header")]
    UdpTruncated,
    /// The UDP length is below 8 bytes or beyond the packet.
    #[error("bad UDP length")]
    UdpLength,
    /// Fewer than the 12 bytes of the SCTP common header.
    #[error("ends within an SCTP header")]
    SctpTruncated,
    /// Fewer than the 8 bytes of an ICMP header.
    #[error("ends within an ICMP header")]
    IcmpTruncated,
    /// Fewer than the 8 bytes of an ICMPv6 header.
    #[error("ends within an ICMPv6 header")]
    Icmpv6Truncated,
    /// The headers continue beyond the bytes given to [`crate::parse_prefix`], and are correct so far.
    #[error("the headers exceed the captured bytes")]
    BeyondPrefix,
}

impl Malformed {
    /// Whether the frame may be correct, but has more headers than the parser reads. A receiver may read more.
    #[must_use]
    pub const fn is_too_many_headers(self) -> bool {
        matches!(self, Self::TooManyTags | Self::Ipv6TooManyExtensions | Self::BeyondPrefix)
    }

    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// All reasons by number: `ALL[reason as usize] == reason`.
    pub const ALL: [Self; 28] = [
        Self::EthernetTruncated,
        Self::VlanTruncated,
        Self::VlanReserved,
        Self::TooManyTags,
        Self::LlcLength,
        Self::ArpTruncated,
        Self::ArpLengths,
        Self::Ipv4Truncated,
        Self::Ipv4Version,
        Self::Ipv4HeaderLength,
        Self::Ipv4BeyondFrame,
        Self::Ipv6Truncated,
        Self::Ipv6Version,
        Self::Ipv6BeyondFrame,
        Self::Ipv6MappedAddress,
        Self::Ipv6ExtensionLength,
        Self::Ipv6HopByHopOrder,
        Self::Ipv6TooManyExtensions,
        Self::FragmentTooLong,
        Self::FragmentOverTcpFlags,
        Self::TcpTruncated,
        Self::TcpDataOffset,
        Self::UdpTruncated,
        Self::UdpLength,
        Self::SctpTruncated,
        Self::IcmpTruncated,
        Self::Icmpv6Truncated,
        Self::BeyondPrefix,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_ordered_by_number() {
        for (number, reason) in Malformed::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        assert_eq!(Malformed::BeyondPrefix as usize + 1, Malformed::ALL.len());
    }
}
