//! A set of prefixes.

use std::net::IpAddr;

use netvm_wire::{Address, IpNet};

/// Prefixes as ranges that do not meet, in order, per family: a look-up is a binary search.
#[derive(Clone, Debug)]
pub(super) struct AddressSet {
    v4: Box<[(Address, Address)]>,
    v6: Box<[(Address, Address)]>,
}

impl AddressSet {
    pub fn new(nets: &[IpNet]) -> Self {
        Self { v4: ranges(nets, true), v6: ranges(nets, false) }
    }

    /// Whether an address is in one of the prefixes; one of IPv4 is in none of IPv6.
    #[inline]
    pub fn contains(&self, address: Address) -> bool {
        let ranges = if address.is_v4() { &self.v4 } else { &self.v6 };
        let behind = ranges.partition_point(|(first, _)| *first <= address);
        ranges[..behind].last().is_some_and(|(_, last)| address <= *last)
    }
}

fn ranges(nets: &[IpNet], v4: bool) -> Box<[(Address, Address)]> {
    let mut all: Vec<_> = nets.iter().filter(|net| net.is_v4() == v4).map(range).collect();
    all.sort_unstable();
    // Prefixes are apart or one is in the other, which comes earlier.
    all.dedup_by(|inner, outer| inner.1 <= outer.1);
    all.into()
}

fn range(net: &IpNet) -> (Address, Address) {
    let last = match net {
        IpNet::V4(net) => IpAddr::V4(net.last()),
        IpNet::V6(net) => IpAddr::V6(net.last()),
    };
    (net.network().into(), last.into())
}
