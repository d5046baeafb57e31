// SPDX-License-Identifier: Apache-2.0
//! Values of the Ethernet header: MAC addresses, EtherTypes, VLAN ids.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use thiserror::Error;

/// A 48-bit MAC address in wire order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

/// The text is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a MAC address: write six bytes in hexadecimal, as in 02:00:00:00:00:01")]
pub struct ParseMacError(String);

impl MacAddr {
    /// `00:00:00:00:00:00`.
    pub const ZERO: Self = Self([0; 6]);
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The bytes in wire order.
    #[must_use]
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether it is a group address; broadcast is one.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it is the broadcast address.
    #[must_use]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Whether it is locally administered (IEEE 802, U/L bit).
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Parses six pairs of hexadecimal digits separated by `:` or `-`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseMacError(text.to_owned());
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part =
                parts.next().filter(|part| part.len() == 2 && !part.starts_with('+')).ok_or_else(error)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Self(octets)) }
    }
}

/// An EtherType in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EtherType(pub u16);

/// The text is not an EtherType.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not an EtherType: write a name (ipv4, ipv6, arp, llc) or a number from 0x0600, as in 0x88cc"
)]
pub struct ParseEtherTypeError(String);

named_values!(EtherType {
    /// IPv4.
    IPV4 = 0x0800, "ipv4";
    /// ARP.
    ARP = 0x0806, "arp";
    /// 802.1Q VLAN tag; as the EtherType of a switched frame, a third tag.
    VLAN = 0x8100, "vlan";
    /// IPv6.
    IPV6 = 0x86dd, "ipv6";
    /// 802.1ad service VLAN tag.
    SERVICE_VLAN = 0x88a8, "svlan";
    /// Stands for an IEEE 802.3 frame, which has a length field and an LLC header without an EtherType of its own
    /// (SNAP). The number is neither a valid length nor a valid type; Open vSwitch has the same (`FLOW_DL_TYPE_NONE`).
    LLC = 0x05ff, "llc";
});

impl EtherType {
    /// Smallest EtherType; smaller values are lengths (IEEE 802.3 clause 3.2.6).
    pub const MIN: u16 = 0x0600;

    /// Whether a VLAN tag follows.
    #[inline]
    #[must_use]
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN)
    }

    /// Whether it announces a VLAN tag to some receiver: also 0x9100, 0x9200 and 0x9300, of equipment older than
    /// 802.1ad, which neither Linux nor this parser reads.
    #[inline]
    #[must_use]
    pub const fn may_be_tag(self) -> bool {
        self.is_vlan() || matches!(self.0, 0x9100 | 0x9200 | 0x9300)
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

impl FromStr for EtherType {
    type Err = ParseEtherTypeError;

    /// Parses a name, or a number from 0x0600 (or 0x05ff, [`EtherType::LLC`]) in decimal or, after `0x`, hexadecimal.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(value) = Self::from_name(text) {
            return Ok(value);
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) if digits.starts_with(|first: char| first.is_ascii_hexdigit()) => {
                u16::from_str_radix(digits, 16).ok()
            }
            Some(_) => None,
            None => text.parse().ok(),
        };
        let number = number.filter(|number| *number >= Self::MIN || *number == Self::LLC.0);
        number.map(Self).ok_or_else(|| ParseEtherTypeError(text.to_owned()))
    }
}

/// A VLAN id: 1 to 4094.
///
/// 0 marks a priority tag and 4095 is reserved (IEEE 802.1Q table 9-2); neither names a VLAN. An `Option<VlanId>` takes
/// two bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(NonZeroU16);

/// The number is not a VLAN id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is not a VLAN id: it must be 1 to 4094")]
pub struct InvalidVlanId(pub u16);

impl VlanId {
    /// Largest VLAN id.
    pub const MAX: u16 = 4094;

    /// The VLAN of a port that is in no other (IEEE 802.1Q table 9-2).
    pub const DEFAULT: Self = Self(NonZeroU16::MIN);

    /// Checks the range.
    ///
    /// # Errors
    /// [`InvalidVlanId`] for 0 and for numbers above [`VlanId::MAX`].
    #[inline]
    pub const fn new(id: u16) -> Result<Self, InvalidVlanId> {
        match NonZeroU16::new(id) {
            Some(number) if id <= Self::MAX => Ok(Self(number)),
            _ => Err(InvalidVlanId(id)),
        }
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl TryFrom<u16> for VlanId {
    type Error = InvalidVlanId;

    fn try_from(id: u16) -> Result<Self, Self::Error> {
        Self::new(id)
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_survive_the_text_round_trip() {
        let mac: MacAddr = "02:00:5e:10:FF:01".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 0, 0x5e, 0x10, 0xff, 1]));
        assert_eq!(mac.to_string(), "02:00:5e:10:ff:01");
        assert_eq!("02-00-5e-10-ff-01".parse(), Ok(mac));
        for wrong in [
            "",
            "02:00:5e:10:ff",
            "02:00:5e:10:ff:01:02",
            "2:0:5e:10:ff:1",
            "02:00:5e:10:ff:0g",
            "02005e10ff01",
            "+2:00:5e:10:ff:01",
        ] {
            assert!(wrong.parse::<MacAddr>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn mac_addresses_are_classified() {
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(MacAddr([1, 0, 0x5e, 0, 0, 1]).is_multicast());
        assert!(!MacAddr([1, 0, 0x5e, 0, 0, 1]).is_broadcast());
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_local() && !MacAddr([2, 0, 0, 0, 0, 1]).is_multicast());
    }

    #[test]
    fn ether_types_survive_the_text_round_trip() {
        for (value, text) in EtherType::NAMES.iter().copied() {
            assert_eq!(value.to_string(), text);
            assert_eq!(text.parse(), Ok(value));
        }
        assert_eq!(EtherType(0x88cc).to_string(), "0x88cc");
        assert_eq!("0x88CC".parse(), Ok(EtherType(0x88cc)));
        assert_eq!("2048".parse(), Ok(EtherType::IPV4));
        for wrong in ["", "0x", "0x+800", "0x05dc", "1500", "ip", "0x10000"] {
            assert!(wrong.parse::<EtherType>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn vlan_ids_range_from_1_to_4094() {
        assert_eq!(VlanId::new(0), Err(InvalidVlanId(0)));
        assert_eq!(VlanId::new(1).map(VlanId::get), Ok(1));
        assert_eq!(VlanId::new(4094).map(VlanId::get), Ok(4094));
        assert_eq!(VlanId::new(4095).unwrap_err().to_string(), "4095 is not a VLAN id: it must be 1 to 4094");
        assert_eq!(size_of::<Option<VlanId>>(), 2);
    }
}
