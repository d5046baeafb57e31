// SPDX-License-Identifier: Apache-2.0
//! RFC 6052: addresses in addresses.

use netvm_conntrack::nat64::{Prefix, PrefixError};
use netvm_wire::{Address, IpNet};
use proptest::prelude::*;

use super::address;

fn prefix(text: &str) -> Prefix {
    Prefix::new(text.parse::<IpNet>().unwrap()).unwrap()
}

/// The table of section 2.4.
#[test]
fn rfc6052_examples() {
    for (network, embedded) in [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
    ] {
        let prefix = prefix(network);
        assert_eq!(prefix.embed(address("192.0.2.33")), Some(address(embedded)), "{network}");
        assert_eq!(prefix.extract(address(embedded)), Some(address("192.0.2.33")), "{network}");
    }
}

#[test]
fn rfc6052_3_1_the_well_known_prefix_is_for_global_addresses() {
    let well_known = prefix("64:ff9b::/96");
    for private in ["10.1.2.3", "172.31.0.1", "192.168.0.1", "127.0.0.1", "169.254.1.1", "100.64.0.1"] {
        assert_eq!(well_known.embed(address(private)), None);
        assert_eq!(well_known.extract(address(&format!("64:ff9b::{private}"))), None);
        assert!(prefix("2001:db8::/96").embed(address(private)).is_some());
    }
    assert!(well_known.embed(address("172.32.0.1")).is_some());
}

#[test]
fn other_networks_are_no_prefix() {
    for (network, error) in [
        ("2001:db8::/33", PrefixError::Length),
        ("2001:db8::/128", PrefixError::Length),
        ("10.0.0.0/32", PrefixError::Length),
        ("2001:db8:0:0:100::/96", PrefixError::ReservedBits),
    ] {
        assert_eq!(Prefix::new(network.parse().unwrap()), Err(error), "{network}");
    }
}

proptest! {
    #[test]
    fn an_address_survives_the_round_trip(bits: u128, length in 0usize..6, v4: u32, suffix: u128) {
        let length = [32, 40, 48, 56, 64, 96][length];
        let bits = bits & !(0xff << 56) & (u128::MAX << (128 - length));
        let network = format!("{}/{length}", std::net::Ipv6Addr::from_bits(bits)).parse().unwrap();
        let (prefix, v4) = (Prefix::new(network).unwrap(), Address::from_v4_bits(v4));
        prop_assume!(!Address::from_v6_bits(bits).is_v4());
        let embedded = prefix.embed(v4).unwrap();
        prop_assert!(prefix.contains(embedded));
        prop_assert_eq!(prefix.extract(embedded), Some(v4));
        // What follows the address has no meaning.
        let used = if length == 96 { 128 } else { length + 40 };
        let suffix = if used >= 128 { 0 } else { suffix & (u128::MAX >> used) & !(0xff << 56) };
        let with_suffix = Address::from_v6_bits(embedded.v6_bits() | suffix);
        prop_assert_eq!(prefix.extract(with_suffix), Some(v4));
        let other = Address::from_v6_bits(embedded.v6_bits() ^ 1 << 127);
        prop_assert_eq!(prefix.extract(other), None);
    }
}
