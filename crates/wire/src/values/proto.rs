// SPDX-License-Identifier: Apache-2.0
//! Values of IP and TCP headers: protocol numbers and TCP flags.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use thiserror::Error;

/// The IP protocol: `protocol` of IPv4, or the next header after all IPv6 extension headers that the parser walks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IpProto(pub u8);

/// The text is not an IP protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not an IP protocol: write a name (tcp, udp, sctp, icmp, icmpv6, gre, esp, ...) or a number up to 255"
)]
pub struct ParseIpProtoError(String);

named_values!(IpProto {
    /// Hop-by-hop options of IPv6.
    HOP_BY_HOP = 0, "hopopt";
    /// ICMP of IPv4.
    ICMP = 1, "icmp";
    /// IGMP.
    IGMP = 2, "igmp";
    /// IPv4 in IP.
    IPIP = 4, "ipip";
    /// TCP.
    TCP = 6, "tcp";
    /// UDP.
    UDP = 17, "udp";
    /// IPv6 in IP.
    IPV6 = 41, "ipv6";
    /// Routing header of IPv6.
    ROUTING = 43, "ipv6-route";
    /// Fragment header of IPv6.
    FRAGMENT = 44, "ipv6-frag";
    /// GRE.
    GRE = 47, "gre";
    /// Encapsulating security payload.
    ESP = 50, "esp";
    /// Authentication header.
    AH = 51, "ah";
    /// ICMP of IPv6.
    ICMPV6 = 58, "icmpv6";
    /// No next header (IPv6).
    NO_NEXT = 59, "ipv6-nonxt";
    /// Destination options of IPv6.
    DESTINATION_OPTIONS = 60, "ipv6-opts";
    /// OSPF.
    OSPF = 89, "ospf";
    /// VRRP.
    VRRP = 112, "vrrp";
    /// SCTP.
    SCTP = 132, "sctp";
});

impl IpProto {
    /// Whether [`crate::parse`] reads ports from its header.
    #[inline]
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP)
    }
}

impl fmt::Display for IpProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl FromStr for IpProto {
    type Err = ParseIpProtoError;

    /// Parses a name or a number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = || text.parse().map(Self).map_err(|_| ParseIpProtoError(text.to_owned()));
        Self::from_name(text).map_or_else(number, Ok)
    }
}

bitflags! {
    /// The flags of a TCP header (RFC 9293 section 3.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct TcpFlags: u8 {
        /// No more data from the sender.
        const FIN = 1;
        /// Synchronise sequence numbers.
        const SYN = 1 << 1;
        /// Reset the connection.
        const RST = 1 << 2;
        /// Push.
        const PSH = 1 << 3;
        /// The acknowledgment number is valid.
        const ACK = 1 << 4;
        /// The urgent pointer is valid.
        const URG = 1 << 5;
        /// ECN echo (RFC 3168).
        const ECE = 1 << 6;
        /// The congestion window was reduced (RFC 3168).
        const CWR = 1 << 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_survive_the_text_round_trip() {
        for number in 0..=255 {
            let proto = IpProto(number);
            assert_eq!(proto.to_string().parse(), Ok(proto));
            assert_eq!(number.to_string().parse(), Ok(proto));
        }
        assert_eq!("TCP".parse(), Ok(IpProto::TCP));
        assert!("256".parse::<IpProto>().is_err());
        assert!("tcpp".parse::<IpProto>().unwrap_err().to_string().contains("`tcpp`"));
    }
}
