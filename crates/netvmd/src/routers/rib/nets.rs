// SPDX-License-Identifier: Apache-2.0
//! Prefix arithmetic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use netvm_wire::{IpNet, Ipv4Net, Ipv6Net};

/// The prefix of a single address.
pub const fn host(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(address) => IpNet::V4(Ipv4Net::host(address)),
        IpAddr::V6(address) => IpNet::V6(Ipv6Net::host(address)),
    }
}

/// The prefix of all addresses.
pub fn default(v4: bool) -> IpNet {
    let none = if v4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    containing(none, 0)
}

/// The address of a host prefix.
pub const fn as_host(net: IpNet) -> Option<IpAddr> {
    let most = if net.is_v4() { Ipv4Net::MAX_LENGTH } else { Ipv6Net::MAX_LENGTH };
    if net.length() == most { Some(net.network()) } else { None }
}

/// The prefix of an address; the length is capped at the family's.
pub fn containing(address: IpAddr, length: u8) -> IpNet {
    let whole = host(address);
    let net = match address {
        IpAddr::V4(address) => Ipv4Net::containing(address, length).map(IpNet::V4),
        IpAddr::V6(address) => Ipv6Net::containing(address, length).map(IpNet::V6),
    };
    net.unwrap_or(whole)
}

/// All addresses of a prefix.
pub const fn range(net: IpNet) -> RangeInclusive<IpAddr> {
    match net {
        IpNet::V4(net) => IpAddr::V4(net.network())..=IpAddr::V4(net.last()),
        IpNet::V6(net) => IpAddr::V6(net.network())..=IpAddr::V6(net.last()),
    }
}

/// The prefixes that hold an address, longest first.
pub fn ancestry(address: IpAddr) -> impl Iterator<Item = IpNet> {
    (0..=host(address).length()).rev().map(move |length| containing(address, length))
}

const fn v4(a: u8, b: u8, length: u8) -> (IpAddr, u8) {
    (IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)), length)
}

const fn v6(first: u16, last: u16, length: u8) -> (IpAddr, u8) {
    (IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last)), length)
}

/// Prefixes that are always punted, because they are not forwarded as plain unicast (RFC 6890; RFC 1812 5.3.7; RFC 4291
/// 2.5.6 and 2.7).
pub fn not_forwarded() -> impl Iterator<Item = IpNet> {
    let v4 = [v4(0, 0, 8), v4(127, 0, 8), v4(224, 0, 4), v4(240, 0, 4)];
    let v6 = [v6(0, 0, 128), v6(0, 1, 128), v6(0xfe80, 0, 10), v6(0xff00, 0, 8)];
    v4.into_iter().chain(v6).map(|(address, length)| containing(address, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestry_goes_from_the_host_to_the_default() {
        let all: Vec<String> = ancestry([192, 0, 2, 1].into()).map(|net| net.to_string()).collect();
        assert_eq!(
            (all.len(), &*all[0], &*all[8], &*all[32]),
            (33, "192.0.2.1/32", "192.0.2.0/24", "0.0.0.0/0")
        );
        assert_eq!(ancestry("2001:db8::1".parse().unwrap()).count(), 129);
        let range = range("10.0.0.0/30".parse().unwrap());
        assert_eq!(*range.end(), IpAddr::from([10, 0, 0, 3]));
        assert_eq!(as_host("10.0.0.1/32".parse().unwrap()), Some([10, 0, 0, 1].into()));
        assert_eq!(as_host("::/32".parse().unwrap()), None);
        assert!(not_forwarded().any(|net| net == "fe80::/10".parse().unwrap()));
    }
}
