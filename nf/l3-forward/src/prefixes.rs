// SPDX-License-Identifier: Apache-2.0
//! Longest prefix match.
//!
//! A hash table for each prefix length, probed from the longest to the shortest. A lookup costs a probe per length
//! (some 20 for a full IPv4 table), which is acceptable behind a flow cache, and simple.

use netvm_nf_common::FastMap;
use netvm_wire::{Address, IpNet};

/// A map from prefixes to values.
#[derive(Clone, Debug, Default)]
pub struct Prefixes<T> {
    v4: Family<T>,
    v6: Family<T>,
}

#[derive(Clone, Debug)]
struct Family<T> {
    /// Longest first. Bits count from the most significant one in both families.
    lengths: Vec<Length<T>>,
}

#[derive(Clone, Debug)]
struct Length<T> {
    mask: u128,
    values: FastMap<u128, T>,
}

impl<T> Default for Family<T> {
    fn default() -> Self {
        Self { lengths: Vec::new() }
    }
}

impl<T: Copy> Prefixes<T> {
    /// Inserts a prefix; returns its previous value.
    pub fn insert(&mut self, net: IpNet, value: T) -> Option<T> {
        let family = if net.is_v4() { &mut self.v4 } else { &mut self.v6 };
        let mask = u128::MAX.checked_shl(128 - u32::from(net.length())).unwrap_or(0);
        let at = match family.lengths.binary_search_by(|length| mask.cmp(&length.mask)) {
            Ok(at) => at,
            Err(at) => {
                family.lengths.insert(at, Length { mask, values: FastMap::default() });
                at
            }
        };
        family.lengths[at].values.insert(bits(net.network().into()), value)
    }

    /// The value of the longest prefix that contains the address.
    #[inline]
    #[must_use]
    pub fn longest(&self, address: Address) -> Option<T> {
        let family = if address.is_v4() { &self.v4 } else { &self.v6 };
        let bits = bits(address);
        family.lengths.iter().find_map(|length| length.values.get(&(bits & length.mask)).copied())
    }

    /// Number of prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.v4.lengths.iter().chain(&self.v6.lengths).map(|length| length.values.len()).sum()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The address, left-aligned.
#[inline]
fn bits(address: Address) -> u128 {
    match address.v4_bits() {
        Some(bits) => u128::from(bits) << 96,
        None => address.v6_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    /// Addresses that often share leading bits.
    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            prop::sample::select(vec![0x0a00_0000u32, 0x0a01_0000, 0x0aff_ff00, 0, u32::MAX]).prop_flat_map(
                |base| (0u32..1024).prop_map(move |low| Ipv4Addr::from_bits(base ^ low).into())
            ),
            prop::sample::select(vec![0xfd00u128 << 112, 0xfd00u128 << 112 | 1 << 64, 0, u128::MAX])
                .prop_flat_map(
                    |base| (0u128..1024).prop_map(move |low| Ipv6Addr::from_bits(base ^ low).into())
                ),
        ]
    }

    fn net() -> impl Strategy<Value = IpNet> {
        (address(), 0u8..=128).prop_map(|(address, length)| {
            let length = if address.is_ipv4() { length % 33 } else { length };
            let most = if address.is_ipv4() { 32 } else { 128 };
            let masked: IpAddr = match address {
                IpAddr::V4(a) => Ipv4Addr::from_bits(
                    a.to_bits() & u32::MAX.checked_shl(most - u32::from(length)).unwrap_or(0),
                )
                .into(),
                IpAddr::V6(a) => {
                    let mask = u128::MAX.checked_shl(most - u32::from(length)).unwrap_or(0);
                    Ipv6Addr::from_bits(a.to_bits() & mask).into()
                }
            };
            IpNet::new(masked, length).unwrap()
        })
    }

    proptest! {
        /// Compares with a scan of all prefixes.
        #[test]
        fn agrees_with_a_linear_scan(
            nets in prop::collection::vec(net(), 0..80),
            addresses in prop::collection::vec(address(), 1..40),
        ) {
            let mut prefixes = Prefixes::default();
            let mut list: Vec<(IpNet, usize)> = Vec::new();
            for (value, net) in nets.into_iter().enumerate() {
                let known = list.iter_mut().find(|(other, _)| *other == net);
                prop_assert_eq!(prefixes.insert(net, value), known.as_ref().map(|(_, value)| *value));
                match known {
                    Some(known) => known.1 = value,
                    None => list.push((net, value)),
                }
            }
            prop_assert_eq!((prefixes.len(), prefixes.is_empty()), (list.len(), list.is_empty()));
            for address in addresses {
                let matching = list.iter().filter(|(net, _)| net.contains(address));
                let expected = matching.max_by_key(|(net, _)| net.length()).map(|(_, value)| *value);
                prop_assert_eq!(prefixes.longest(address.into()), expected, "{}", address);
            }
        }
    }
}
