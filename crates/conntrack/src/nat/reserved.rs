// SPDX-License-Identifier: Apache-2.0
//! Ends that lead to services, such as published ports: no pool gives them away, since packets from outside to them go
//! to the service.

use netvm_wire::{Address, IpProto, PortRange};

use super::pool::Offer;

/// Ports of addresses that lead to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePorts {
    /// The first address.
    pub first: Address,
    /// The last one.
    pub last: Address,
    /// Their protocol.
    pub protocol: IpProto,
    /// The ports.
    pub ports: PortRange,
}

/// Ends that no pool gives away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    of: Vec<ReservedPorts>,
}

/// The ports of some addresses, in order, and apart from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReservedPorts {
    first: Address,
    last: Address,
    protocol: IpProto,
    ports: Vec<PortRange>,
}

impl Reserved {
    /// Whether an end is one of them.
    ///
    /// Cost: a step for each set of addresses with a service, of which there are few, and a binary search.
    #[must_use]
    pub fn has(&self, address: Address, protocol: IpProto, port: u16) -> bool {
        self.covers(&Offer { address, ports: PortRange::single(port) }, protocol)
    }

    /// Whether all ports at an address are.
    pub(crate) fn covers(&self, at: &Offer, protocol: IpProto) -> bool {
        let is_of =
            |of: &&ReservedPorts| of.protocol == protocol && (of.first..=of.last).contains(&at.address);
        self.of.iter().filter(is_of).any(|of| {
            let n = of.ports.partition_point(|ports| ports.last() < at.ports.first());
            of.ports
                .get(n)
                .is_some_and(|ports| ports.contains(at.ports.first()) && ports.contains(at.ports.last()))
        })
    }
}

impl FromIterator<ServicePorts> for Reserved {
    fn from_iter<I: IntoIterator<Item = ServicePorts>>(all: I) -> Self {
        let mut all: Vec<ServicePorts> = all.into_iter().collect();
        all.sort_by_key(|it| (it.first, it.last, it.protocol.0, it.ports.first()));
        let mut of: Vec<ReservedPorts> = Vec::new();
        for ServicePorts { first, last, protocol, ports } in all {
            match of.last_mut().filter(|it| (it.first, it.last, it.protocol) == (first, last, protocol)) {
                Some(same) => add(&mut same.ports, ports),
                None => of.push(ReservedPorts { first, last, protocol, ports: vec![ports] }),
            }
        }
        Self { of }
    }
}

/// Adds ports that begin no earlier than the others; joins those without a gap between.
fn add(ports: &mut Vec<PortRange>, new: PortRange) {
    let joined = ports.last_mut().and_then(|last| {
        let is_next = new.first() <= last.last().saturating_add(1);
        let joined = PortRange::new(last.first(), last.last().max(new.last()))?;
        is_next.then(|| *last = joined)
    });
    if joined.is_none() {
        ports.push(new);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn ports(first: u16, last: u16) -> PortRange {
        PortRange::new(first, last).unwrap()
    }

    #[test]
    fn ends_of_services_are_reserved_by_address_protocol_and_port() {
        let of = |last: &str, protocol, ports| {
            let (first, last) = (address("192.0.2.1"), address(last));
            ServicePorts { first, last, protocol, ports }
        };
        let reserved = Reserved::from_iter([
            of("192.0.2.1", IpProto::TCP, ports(9000, 9010)),
            of("192.0.2.1", IpProto::TCP, ports(8000, 8005)),
            of("192.0.2.1", IpProto::TCP, ports(8006, 8010)),
            of("192.0.2.1", IpProto::TCP, ports(8002, 8003)),
            of("192.0.2.9", IpProto::UDP, ports(53, 53)),
        ]);
        let is_in = |text: &str, protocol, first, last| {
            reserved.covers(&Offer { address: address(text), ports: ports(first, last) }, protocol)
        };
        assert!(is_in("192.0.2.1", IpProto::TCP, 8000, 8010), "joined");
        assert!(
            !is_in("192.0.2.1", IpProto::TCP, 8010, 8011) && !is_in("192.0.2.1", IpProto::TCP, 8000, 9000)
        );
        assert!(
            is_in("192.0.2.1", IpProto::TCP, 9010, 9010) && !is_in("192.0.2.1", IpProto::TCP, 7999, 8000)
        );
        assert!(is_in("192.0.2.9", IpProto::UDP, 53, 53) && !is_in("192.0.2.9", IpProto::TCP, 8000, 8000));
        assert!(!is_in("192.0.2.10", IpProto::UDP, 53, 53) && !is_in("::1", IpProto::UDP, 53, 53));
        assert!(reserved.has(address("192.0.2.1"), IpProto::TCP, 8002));
        assert!(!Reserved::default().has(address("192.0.2.1"), IpProto::TCP, 8002));
    }
}
