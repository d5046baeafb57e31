// SPDX-License-Identifier: Apache-2.0
//! IPv4 addresses in IPv6 addresses (RFC 6052).

use std::fmt;

use netvm_wire::{Address, IpNet};

/// A prefix whose addresses stand for IPv4 addresses.
///
/// ```text
///  length   bits of the IPv4 address, by byte of the IPv6 address      (byte 8 is zero)
///    32     4 5 6 7
///    40     5 6 7   9
///    48     6 7     9 10
///    56     7       9 10 11
///    64             9 10 11 12
///    96     12 13 14 15
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bits: u128,
    length: u8,
}

/// A network is not a prefix for IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// It is an IPv4 network, or one of another length than 32, 40, 48, 56, 64 or 96 bits.
    Length,
    /// Bits 64 to 71 are not zero.
    ReservedBits,
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a NAT64 prefix is an IPv6 network of 32, 40, 48, 56, 64 or 96 bits",
            Self::ReservedBits => "bits 64 to 71 of a NAT64 prefix are zero",
        })
    }
}

impl std::error::Error for PrefixError {}

/// Bits 64 to 71.
const RESERVED: u128 = 0xff << 56;
/// Bits 64 to 127: what would be in them moves on by the reserved byte.
const LOW: u128 = (1 << 64) - 1;

/// `64:ff9b::/96`.
const WELL_KNOWN: Prefix = Prefix { bits: 0x0064_ff9b << 96, length: 96 };

/// Networks whose addresses are not global (RFC 6890; those that are in use by hosts).
const NOT_GLOBAL: [(u32, u32); 9] = [
    (0x0000_0000, 8),  // 0.0.0.0
    (0x0a00_0000, 8),  // 10.0.0.0
    (0x6440_0000, 10), // 100.64.0.0
    (0x7f00_0000, 8),  // 127.0.0.0
    (0xa9fe_0000, 16), // 169.254.0.0
    (0xac10_0000, 12), // 172.16.0.0
    (0xc0a8_0000, 16), // 192.168.0.0
    (0xc612_0000, 15), // 198.18.0.0
    (0xf000_0000, 4),  // 240.0.0.0
];

fn is_global(bits: u32) -> bool {
    NOT_GLOBAL.iter().all(|(network, length)| (bits ^ network) >> (32 - length) != 0)
}

impl Prefix {
    /// The prefix of this network.
    ///
    /// # Errors
    /// [`PrefixError`].
    pub fn new(network: IpNet) -> Result<Self, PrefixError> {
        let (address, length) = (Address::from(network.network()), network.length());
        if address.is_v4() || !matches!(length, 32 | 40 | 48 | 56 | 64 | 96) {
            return Err(PrefixError::Length);
        }
        let bits = address.v6_bits();
        if bits & RESERVED != 0 {
            return Err(PrefixError::ReservedBits);
        }
        Ok(Self { bits, length })
    }

    /// Whether the address has this prefix.
    #[must_use]
    pub fn contains(&self, address: Address) -> bool {
        !address.is_v4() && (address.v6_bits() ^ self.bits) >> (128 - self.length) == 0
    }

    /// The address that stands for an IPv4 address. `None`: it is none, or one that is not global and must not have the
    /// well-known prefix (section 3.1).
    #[must_use]
    pub fn embed(&self, address: Address) -> Option<Address> {
        let bits = address.v4_bits()?;
        if *self == WELL_KNOWN && !is_global(bits) {
            return None;
        }
        let plain = u128::from(bits) << (96 - self.length);
        let embedded = if self.length == 96 { plain } else { plain & !LOW | (plain & LOW) >> 8 };
        Some(Address::from_v6_bits(self.bits | embedded))
    }

    /// The IPv4 address that an address stands for. `None`: it does not have this prefix, its reserved bits are not
    /// zero, or the address is not global and must not have the well-known prefix.
    #[must_use]
    pub fn extract(&self, address: Address) -> Option<Address> {
        let bits = address.v6_bits();
        if !self.contains(address) || self.length < 96 && bits & RESERVED != 0 {
            return None;
        }
        let plain = if self.length == 96 { bits } else { bits & !LOW | (bits & LOW) << 8 };
        let bits = (plain >> (96 - self.length)) as u32;
        (*self != WELL_KNOWN || is_global(bits)).then(|| Address::from_v4_bits(bits))
    }
}
