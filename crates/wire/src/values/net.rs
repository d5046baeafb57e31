// SPDX-License-Identifier: Apache-2.0
//! IP prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

use super::Address;

/// Why a prefix is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum NetError {
    /// The text is not an address with a length.
    #[error("`{0}` is not a prefix: write an address and a length, as in 10.0.0.0/8 or 2001:db8::/32")]
    Syntax(String),
    /// The text is a prefix of the wrong family.
    #[error("`{0}` is not an {1} prefix")]
    Family(String, &'static str),
    /// The length exceeds the address.
    #[error("/{length} is too long: an {family} prefix has at most {max} bits")]
    Length { length: u8, family: &'static str, max: u8 },
    /// Host bits are set.
    #[error("{0}/{1} has host bits set: write {2}/{1}")]
    HostBits(IpAddr, u8, IpAddr),
}

/// The methods common to both families.
macro_rules! prefix {
    ($name:ident, $address:ident, $bits:ident, $family:literal, $doc:literal) => {
        #[doc = $doc]
        ///
        /// Host bits are zero. Ordered by address, then shorter before longer.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            network: $address,
            length: u8,
        }

        impl $name {
            /// Bits of an address.
            pub const MAX_LENGTH: u8 = $bits::BITS as u8;
            /// The prefix of length 0: every address.
            pub const ALL: Self = Self { network: $address::UNSPECIFIED, length: 0 };

            /// Checks an address and a length.
            ///
            /// # Errors
            /// [`NetError::Length`] and [`NetError::HostBits`].
            pub fn new(address: $address, length: u8) -> Result<Self, NetError> {
                let net = Self::containing(address, length)?;
                if net.network == address {
                    Ok(net)
                } else {
                    Err(NetError::HostBits(address.into(), length, net.network.into()))
                }
            }

            /// The prefix of `length` that contains the address.
            ///
            /// # Errors
            /// [`NetError::Length`].
            pub fn containing(address: $address, length: u8) -> Result<Self, NetError> {
                if length > Self::MAX_LENGTH {
                    return Err(NetError::Length { length, family: $family, max: Self::MAX_LENGTH });
                }
                Ok(Self { network: $address::from_bits(address.to_bits() & mask_of(length)), length })
            }

            /// The prefix of a single address.
            #[must_use]
            pub const fn host(address: $address) -> Self {
                Self { network: address, length: Self::MAX_LENGTH }
            }

            /// The address with zero host bits.
            #[must_use]
            pub const fn network(self) -> $address {
                self.network
            }

            /// Number of network bits.
            #[must_use]
            pub const fn length(self) -> u8 {
                self.length
            }

            /// The network mask.
            #[inline]
            #[must_use]
            pub const fn mask(self) -> $address {
                $address::from_bits(mask_of(self.length))
            }

            /// The highest address of the prefix.
            #[must_use]
            pub const fn last(self) -> $address {
                $address::from_bits(self.network.to_bits() | !mask_of(self.length))
            }

            /// Whether the prefix contains the address.
            #[inline]
            #[must_use]
            pub const fn contains(self, address: $address) -> bool {
                (address.to_bits() ^ self.network.to_bits()) & mask_of(self.length) == 0
            }

            /// Whether the prefix contains all of `other`.
            #[must_use]
            pub const fn contains_net(self, other: Self) -> bool {
                self.length <= other.length && self.contains(other.network)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.network, self.length)
            }
        }
    };
}

mod v4 {
    use super::{Address, Ipv4Addr, NetError, fmt};

    const fn mask_of(length: u8) -> u32 {
        if length == 0 { 0 } else { u32::MAX << (32 - length as u32) }
    }

    prefix!(Ipv4Net, Ipv4Addr, u32, "IPv4", "An IPv4 prefix.");

    impl Ipv4Net {
        /// Whether the prefix contains an address of either family.
        #[inline]
        #[must_use]
        pub fn contains_address(self, address: Address) -> bool {
            address.v4_bits().is_some_and(|bits| self.contains(Ipv4Addr::from_bits(bits)))
        }
    }
}

mod v6 {
    use super::{Address, Ipv6Addr, NetError, fmt};

    const fn mask_of(length: u8) -> u128 {
        if length == 0 { 0 } else { u128::MAX << (128 - length as u32) }
    }

    prefix!(Ipv6Net, Ipv6Addr, u128, "IPv6", "An IPv6 prefix.");

    impl Ipv6Net {
        /// Whether the prefix contains an address of either family. No prefix contains an IPv4 address, not even
        /// `::/0`.
        #[inline]
        #[must_use]
        pub fn contains_address(self, address: Address) -> bool {
            !address.is_v4() && self.contains(Ipv6Addr::from_bits(address.v6_bits()))
        }
    }
}

pub use v4::Ipv4Net;
pub use v6::Ipv6Net;

/// A prefix of either family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpNet {
    /// Of IPv4.
    V4(Ipv4Net),
    /// Of IPv6.
    V6(Ipv6Net),
}

impl IpNet {
    /// Checks an address and a length.
    ///
    /// # Errors
    /// [`NetError::Length`] and [`NetError::HostBits`].
    pub fn new(address: IpAddr, length: u8) -> Result<Self, NetError> {
        match address {
            IpAddr::V4(address) => Ipv4Net::new(address, length).map(Self::V4),
            IpAddr::V6(address) => Ipv6Net::new(address, length).map(Self::V6),
        }
    }

    /// Whether the prefix contains the address; false for the other family.
    #[inline]
    #[must_use]
    pub fn contains(self, address: impl Into<Address>) -> bool {
        match self {
            Self::V4(net) => net.contains_address(address.into()),
            Self::V6(net) => net.contains_address(address.into()),
        }
    }

    /// Whether the prefix contains all of `other`.
    #[must_use]
    pub const fn contains_net(self, other: Self) -> bool {
        match (self, other) {
            (Self::V4(net), Self::V4(other)) => net.contains_net(other),
            (Self::V6(net), Self::V6(other)) => net.contains_net(other),
            _ => false,
        }
    }

    /// The address with zero host bits.
    #[must_use]
    pub const fn network(self) -> IpAddr {
        match self {
            Self::V4(net) => IpAddr::V4(net.network()),
            Self::V6(net) => IpAddr::V6(net.network()),
        }
    }

    /// Number of network bits.
    #[must_use]
    pub const fn length(self) -> u8 {
        match self {
            Self::V4(net) => net.length(),
            Self::V6(net) => net.length(),
        }
    }

    /// Whether it is an IPv4 prefix.
    #[must_use]
    pub const fn is_v4(self) -> bool {
        matches!(self, Self::V4(_))
    }
}

impl From<Ipv4Net> for IpNet {
    fn from(net: Ipv4Net) -> Self {
        Self::V4(net)
    }
}

impl From<Ipv6Net> for IpNet {
    fn from(net: Ipv6Net) -> Self {
        Self::V6(net)
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(net) => net.fmt(f),
            Self::V6(net) => net.fmt(f),
        }
    }
}

impl FromStr for IpNet {
    type Err = NetError;

    /// Parses `10.0.0.0/8` or `2001:db8::/32`; an address alone is a host prefix.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || NetError::Syntax(text.to_owned());
        let Some((address, length)) = text.split_once('/') else {
            return Ok(match text.parse().map_err(|_| syntax())? {
                IpAddr::V4(address) => Self::V4(Ipv4Net::host(address)),
                IpAddr::V6(address) => Self::V6(Ipv6Net::host(address)),
            });
        };
        if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(syntax());
        }
        let length = length.parse().map_err(|_| syntax())?;
        Self::new(address.parse().map_err(|_| syntax())?, length)
    }
}

impl FromStr for Ipv4Net {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse()? {
            IpNet::V4(net) => Ok(net),
            IpNet::V6(_) => Err(NetError::Family(text.to_owned(), "IPv4")),
        }
    }
}

impl FromStr for Ipv6Net {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse()? {
            IpNet::V6(net) => Ok(net),
            IpNet::V4(_) => Err(NetError::Family(text.to_owned(), "IPv6")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_survive_the_text_round_trip() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "::1/128"] {
            assert_eq!(net(text).to_string(), text);
        }
        assert_eq!(net("192.0.2.1").to_string(), "192.0.2.1/32");
        assert_eq!(net("::1").to_string(), "::1/128");
        for wrong in
            ["", "/8", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "10.0.0.0/8/8", "10.0.0.0/256", "host/8"]
        {
            assert_eq!(wrong.parse::<IpNet>(), Err(NetError::Syntax(wrong.to_owned())));
        }
    }

    #[test]
    fn errors_suggest_the_fix() {
        let text = |text: &str| text.parse::<IpNet>().unwrap_err().to_string();
        assert_eq!(text("10.0.0.1/8"), "10.0.0.1/8 has host bits set: write 10.0.0.0/8");
        assert_eq!(text("10.0.0.0/33"), "/33 is too long: an IPv4 prefix has at most 32 bits");
        assert_eq!(text("2001:db8::/129"), "/129 is too long: an IPv6 prefix has at most 128 bits");
        assert_eq!("::/0".parse::<Ipv4Net>().unwrap_err().to_string(), "`::/0` is not an IPv4 prefix");
        assert_eq!(
            "0.0.0.0/0".parse::<Ipv6Net>().unwrap_err().to_string(),
            "`0.0.0.0/0` is not an IPv6 prefix"
        );
    }

    #[test]
    fn a_prefix_contains_no_address_of_the_other_family() {
        assert!(net("0.0.0.0/0").contains(ip("255.255.255.255")));
        assert!(!net("0.0.0.0/0").contains(ip("::")));
        assert!(net("::/0").contains(ip("2001:db8::1")));
        assert!(!net("::/0").contains(ip("10.0.0.1")));
        assert!(!net("::/0").contains_net(net("10.0.0.0/8")));
    }

    #[test]
    fn masks_and_last_addresses() {
        let net: Ipv4Net = "192.0.2.0/23".parse().unwrap();
        assert_eq!(net.mask().to_string(), "255.255.254.0");
        assert_eq!(net.last().to_string(), "192.0.3.255");
        assert!(net.contains_net("192.0.3.0/24".parse().unwrap()));
        assert!(!net.contains_net("192.0.2.0/22".parse::<Ipv4Net>().unwrap_or(Ipv4Net::ALL)));
        let net: Ipv6Net = "2001:db8::/32".parse().unwrap();
        assert_eq!(net.mask().to_string(), "ffff:ffff::");
        assert_eq!(net.last().to_string(), "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff");
    }

    proptest! {
        /// Compares with a bit-by-bit check.
        #[test]
        fn contains_compares_the_leading_bits(network: u128, address: u128, flip in 0u32..128, length in 0u8..=128) {
            for address in [address, network ^ (1 << flip)] {
                let same = (0..u32::from(length)).all(|bit| (network >> (127 - bit)) & 1 == (address >> (127 - bit)) & 1);
                let net = Ipv6Net::containing(Ipv6Addr::from_bits(network), length).unwrap();
                prop_assert_eq!(net.contains(Ipv6Addr::from_bits(address)), same);
            }
            let length = length.min(32);
            let (network, address) = (network as u32, network as u32 ^ (1 << (flip % 32)));
            let same = (0..u32::from(length)).all(|bit| (network >> (31 - bit)) & 1 == (address >> (31 - bit)) & 1);
            let net = Ipv4Net::containing(Ipv4Addr::from_bits(network), length).unwrap();
            prop_assert_eq!(net.contains(Ipv4Addr::from_bits(address)), same);
            prop_assert_eq!(net.to_string().parse(), Ok(net));
        }
    }
}
