// SPDX-License-Identifier: Apache-2.0
//! IP addresses of both families in 16 bytes, for keys that the packet path compares and hashes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 or IPv6 address.
///
/// An IPv4 address is stored as its IPv4-mapped IPv6 address (`::ffff:a.b.c.d`, RFC 4291 section 2.5.5.2), so either
/// family is two words and comparing takes no branch. Packets cannot confuse the two: mapped addresses are barred from
/// the wire (RFC 6890, table 20), and [`crate::parse`] refuses IPv6 packets that carry them.
///
/// Addresses are ordered by number; IPv4 addresses sort together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Address {
    high: u64,
    low: u64,
}

/// The bits above an IPv4 address in `low`.
const MAPPED: u64 = 0xffff << 32;

impl Address {
    /// `::`, which also stands for "no address" in the key of a packet that is not IP.
    pub const UNSPECIFIED: Self = Self { high: 0, low: 0 };

    /// An IPv4 address from its integer value.
    #[inline]
    #[must_use]
    pub const fn from_v4_bits(bits: u32) -> Self {
        Self { high: 0, low: MAPPED | bits as u64 }
    }

    /// An IPv6 address from its integer value.
    #[inline]
    #[must_use]
    pub const fn from_v6_bits(bits: u128) -> Self {
        Self { high: (bits >> 64) as u64, low: bits as u64 }
    }

    /// An IPv4 address from its bytes on the wire.
    #[inline]
    #[must_use]
    pub const fn from_v4_octets(octets: [u8; 4]) -> Self {
        Self::from_v4_bits(u32::from_be_bytes(octets))
    }

    /// An IPv6 address from its bytes on the wire.
    #[inline]
    #[must_use]
    pub const fn from_v6_octets(octets: [u8; 16]) -> Self {
        Self::from_v6_bits(u128::from_be_bytes(octets))
    }

    /// Whether it is a multicast group whose packets may leave their link: not of 224.0.0.0/24 (RFC 5771 section 4),
    /// nor of ff00::/16 to ff02::/16 with any flags (RFC 4291 section 2.7).
    #[inline]
    #[must_use]
    pub const fn is_group_beyond_link(self) -> bool {
        match self.v4_bits() {
            Some(bits) => bits >> 28 == 0xe && bits >> 8 != 0x00e0_0000,
            None => {
                let first = self.v6_bits() >> 112;
                first >> 8 == 0xff && first & 0xf > 2
            }
        }
    }

    /// Whether it is an IPv4 address.
    #[inline]
    #[must_use]
    pub const fn is_v4(self) -> bool {
        self.high == 0 && self.low >> 32 == 0xffff
    }

    /// The integer value of an IPv4 address; `None` for IPv6.
    #[inline]
    #[must_use]
    pub const fn v4_bits(self) -> Option<u32> {
        if self.is_v4() { Some(self.low as u32) } else { None }
    }

    /// The integer value of the IPv6 address, or of the IPv4-mapped one.
    #[inline]
    #[must_use]
    pub const fn v6_bits(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    /// The two words, most significant first.
    #[inline]
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.high, self.low]
    }

    /// Converts to the standard library's type.
    #[must_use]
    pub const fn to_ip(self) -> IpAddr {
        match self.v4_bits() {
            Some(bits) => IpAddr::V4(Ipv4Addr::from_bits(bits)),
            None => IpAddr::V6(Ipv6Addr::from_bits(self.v6_bits())),
        }
    }
}

impl From<Ipv4Addr> for Address {
    fn from(address: Ipv4Addr) -> Self {
        Self::from_v4_bits(address.to_bits())
    }
}

impl From<Ipv6Addr> for Address {
    fn from(address: Ipv6Addr) -> Self {
        Self::from_v6_bits(address.to_bits())
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        address.to_ip()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_survive_the_round_trip() {
        for text in
            ["0.0.0.0", "10.1.2.3", "255.255.255.255", "::", "::1", "2001:db8::ffff:0:1", "::fffe:1.2.3.4"]
        {
            let ip: IpAddr = text.parse().unwrap();
            let address = Address::from(ip);
            assert_eq!(address.to_ip(), ip);
            assert_eq!(address.is_v4(), ip.is_ipv4());
            assert_eq!(address.to_string(), ip.to_string());
        }
    }

    #[test]
    fn addresses_sort_by_number() {
        let of = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        assert!(of("9.255.255.255") < of("10.0.0.0"));
        assert!(of("255.255.255.255") < of("2000::"));
        assert!(of("2001:db8::") < of("2001:db8::1"));
    }
}
