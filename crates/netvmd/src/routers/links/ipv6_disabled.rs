// SPDX-License-Identifier: Apache-2.0
//! The host's own IPv6 on interfaces of routers' ports.

use std::collections::BTreeSet;
use std::fs;

use super::ipv6_switch;

/// Interfaces of routers' ports on which netvmd turned off the host's own IPv6: AF_XDP takes received packets, but the
/// host would still send on these interfaces.
#[derive(Debug, Default)]
pub(in crate::routers) struct Ipv6Disabled(BTreeSet<String>);

impl Ipv6Disabled {
    /// Turns IPv6 off on these interfaces, if it is on. Skips an interface with addresses other than link-local ones,
    /// because they would be lost.
    pub(in crate::routers) fn add<'a>(&mut self, interfaces: impl IntoIterator<Item = &'a String>) {
        // A kernel without IPv6 has no such file.
        let addresses = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for interface in interfaces.into_iter().filter(|interface| !has_own_address(&addresses, interface)) {
            let file = ipv6_switch(interface);
            let is_on = fs::read_to_string(&file).is_ok_and(|value| value.trim() == "0");
            if is_on && fs::write(&file, "1").is_ok() {
                self.0.insert(interface.clone());
            }
        }
    }

    /// Turns IPv6 on again on all interfaces but these.
    pub(in crate::routers) fn keep_only(&mut self, interfaces: &BTreeSet<&String>) {
        for interface in self.0.extract_if(.., |interface| !interfaces.contains(interface)) {
            // The interface may be gone.
            let _ = fs::write(ipv6_switch(&interface), "0");
        }
    }
}

/// Whether `/proc/net/if_inet6` (address, index, length, scope, flags, name) has an address of this interface other
/// than the kernel's own, which have scope link.
fn has_own_address(addresses: &str, interface: &str) -> bool {
    const LINK: &str = "20";
    addresses.lines().any(|line| {
        let mut words = line.split_whitespace();
        let scope = words.nth(3);
        words.nth(1) == Some(interface) && scope != Some(LINK)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_somebody_gave_are_told_from_link_local_ones() {
        let addresses = "fe800000000000000000000000000001 02 40 20 80     eth0\n\
            20010db8000000000000000000000001 03 40 00 80   eth1\n";
        assert!(has_own_address(addresses, "eth1"));
        assert!(!has_own_address(addresses, "eth0") && !has_own_address(addresses, "eth"));
    }
}
