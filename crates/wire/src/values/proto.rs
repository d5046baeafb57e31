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

impl IpProto {
    /// Hop-by-hop options of IPv6.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP of IPv4.
    pub const ICMP: Self = Self(1);
    /// IGMP.
    pub const IGMP: Self = Self(2);
    /// IPv4 in IP.
    pub const IPIP: Self = Self(4);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// IPv6 in IP.
    pub const IPV6: Self = Self(41);
    /// Routing header of IPv6.
    pub const ROUTING: Self = Self(43);
    /// Fragment header of IPv6.
    pub const FRAGMENT: Self = Self(44);
    /// GRE.
    pub const GRE: Self = Self(47);
    /// Encapsulating security payload.
    pub const ESP: Self = Self(50);
    /// Authentication header.
    pub const AH: Self = Self(51);
    /// ICMP of IPv6.
    pub const ICMPV6: Self = Self(58);
    /// No next header (IPv6).
    pub const NO_NEXT: Self = Self(59);
    /// Destination options of IPv6.
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// OSPF.
    pub const OSPF: Self = Self(89);
    /// VRRP.
    pub const VRRP: Self = Self(112);
    /// SCTP.
    pub const SCTP: Self = Self(132);

    const NAMES: [(Self, &'static str); 18] = [
        (Self::HOP_BY_HOP, "hopopt"),
        (Self::ICMP, "icmp"),
        (Self::IGMP, "igmp"),
        (Self::IPIP, "ipip"),
        (Self::TCP, "tcp"),
        (Self::UDP, "udp"),
        (Self::IPV6, "ipv6"),
        (Self::ROUTING, "ipv6-route"),
        (Self::FRAGMENT, "ipv6-frag"),
        (Self::GRE, "gre"),
        (Self::ESP, "esp"),
        (Self::AH, "ah"),
        (Self::ICMPV6, "icmpv6"),
        (Self::NO_NEXT, "ipv6-nonxt"),
        (Self::DESTINATION_OPTIONS, "ipv6-opts"),
        (Self::OSPF, "ospf"),
        (Self::VRRP, "vrrp"),
        (Self::SCTP, "sctp"),
    ];

    /// Whether [`crate::parse`] reads ports from its header.
    #[inline]
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP)
    }
}

impl fmt::Display for IpProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(value, _)| value == self) {
            Some((_, name)) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl fmt::Debug for IpProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for IpProto {
    type Err = ParseIpProtoError;

    /// Parses a name or a number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
        match named {
            Some((value, _)) => Ok(*value),
            None => text.parse().map(Self).map_err(|_| ParseIpProtoError(text.to_owned())),
        }
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
