// SPDX-License-Identifier: Apache-2.0
//! Virtual routers. A network namespace holds addresses, neighbours and routes; the engine forwards by them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netvm_ids::{PortId, RouterId};
use netvm_policy::Rate;
use netvm_wire::{IpNet, Ipv4Net, Ipv6Net, MacAddr, VlanId};

use crate::derived::{derived_mac, machine, names_of, stable_hash};
use crate::words::words;

pub(crate) mod nat;
pub(crate) mod publish;

use nat::{Nat64, SourceNat};

/// A virtual router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterConfig {
    /// Its number.
    pub id: RouterId,
    /// Its name.
    pub name: String,
    /// Its interfaces, at least one, in the order of the file.
    pub interfaces: Vec<RouterInterface>,
    /// Routes that netvmd adds; other routes in the namespace stay.
    pub routes: Vec<StaticRoute>,
    /// Whether the connections of packets of all its interfaces, and of packets from its kernel, are tracked.
    pub track: bool,
    /// NAT64 for the IPv6 hosts on its interfaces.
    pub nat64: Option<Nat64>,
    /// Its share, relative to the weights of others, of the workers' unreserved time. Its ports divide it.
    pub weight: u16,
    /// Percent of each worker's time reserved for this router.
    pub reserve: u8,
}

/// A static route in a router's main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRoute {
    /// Its destination.
    pub to: IpNet,
    /// Where its packets go.
    pub target: RouteTarget,
    /// Its metric; the route with the lowest is used. `None`: the kernel's default.
    pub metric: Option<u32>,
}

/// Where the packets of a route go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// Nowhere: they are dropped.
    Blackhole,
    /// To neighbours on an interface.
    Connected(String),
    /// To gateways of the destination's address family; flows are spread over several gateways.
    Gateways {
        /// At least one.
        via: Vec<IpAddr>,
        /// Their interface; `None`: the interface in their network.
        interface: Option<String>,
    },
}

impl RouterConfig {
    /// Name of its network namespace, for `ip netns`.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("netvm-{}", self.name)
    }

    /// Whether the router has its own share of workers, which its ports divide.
    #[must_use]
    pub const fn has_share(&self) -> bool {
        self.weight != 1 || self.reserve != 0
    }

    /// Whether the connections of its packets are tracked: it is configured so, or translates addresses.
    #[must_use]
    pub fn tracks(&self) -> bool {
        self.track || self.translates_sources() || self.nat64.is_some()
    }

    /// Whether it translates the sources of packets that leave by some of its interfaces.
    #[must_use]
    pub fn translates_sources(&self) -> bool {
        self.interfaces.iter().any(|interface| interface.snat.is_some())
    }

    /// The ports of its interfaces, and the punt ports. Several interfaces may share a port.
    pub fn ports(&self) -> impl Iterator<Item = PortId> {
        self.interfaces.iter().flat_map(|interface| [interface.port, interface.punt])
    }

    /// The interface that has this punt port.
    #[must_use]
    pub fn punted_by(&self, port: PortId) -> Option<&RouterInterface> {
        self.interfaces.iter().find(|interface| interface.punt == port)
    }
}

/// An interface of a virtual router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterInterface {
    /// Its name in the namespace; 1 to 15 bytes (`IFNAMSIZ`).
    pub name: String,
    /// The port that receives and sends its packets. The interface has the port's MTU.
    pub port: PortId,
    /// The outer tag of its packets on that port; `None`: untagged. Port and tag together are unique in the
    /// router.
    pub vlan: Option<VlanId>,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Addresses that netvmd adds; other addresses in the namespace stay.
    pub addresses: Vec<InterfaceAddress>,
    /// Most packets a second that the engine punts.
    pub punt_rate: u32,
    /// Unicast reverse path forwarding; `None`: any source is accepted.
    pub urpf: Option<Urpf>,
    /// What stands for the sources of connections that leave by it; `None`: the sources themselves.
    pub snat: Option<SourceNat>,
    /// The punt port, one of [`crate::Host::ports`] that is not in the file.
    pub punt: PortId,
    /// The host's end of the interface's veth pair, which is the punt port's device.
    pub host_end: String,
}

/// Unicast reverse path forwarding (RFC 3704): the accepted sources of packets to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urpf {
    /// Sources whose route leads out of the packet's ingress interface (section 2.2).
    Strict,
    /// Sources that have a route (section 2.4).
    Loose,
}
words!(Urpf: "strict" => Strict, "loose" => Loose);

/// Default of `punt_rate`: a kernel thread answers this many packets (ARP, ICMP) with about a tenth of a
/// core.
pub const PUNT_RATE: u32 = 10_000;

/// A burst is a tenth of a second of the rate,
const BURSTS_PER_SECOND: u32 = 10;
/// but at least this: two bursts of a worker.
const MIN_BURST: u32 = 64;

impl RouterInterface {
    /// The limit on punted packets.
    #[must_use]
    pub fn punt_limit(&self) -> Rate {
        let burst = (self.punt_rate / BURSTS_PER_SECOND).max(MIN_BURST);
        Rate { per_second: self.punt_rate.into(), burst: burst.into() }
    }

    /// Name of the punt port.
    #[must_use]
    pub fn punt_name(router: &str, interface: &str) -> String {
        format!("{router}.{interface}")
    }

    /// The address of an interface without a configured one: locally administered, and always the same for these names
    /// on this machine.
    #[must_use]
    pub fn own_mac(router: &str, interface: &str) -> MacAddr {
        Self::mac_on(machine(), router, interface)
    }

    /// The same on another machine. Routers of servers on one link may have the same names.
    fn mac_on(machine: &str, router: &str, interface: &str) -> MacAddr {
        derived_mac(machine.bytes().chain([0]).chain(names_of(router, interface)))
    }

    /// The name of the host's end, derived from the names of router and interface: 14 bytes, always the same.
    #[must_use]
    pub fn host_end_of(router: &str, interface: &str) -> String {
        format!("nv{:012x}", stable_hash(names_of(router, interface)) >> 16)
    }
}

/// An address of an interface, with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub length: u8,
}

impl InterfaceAddress {
    /// The network that it is in.
    #[must_use]
    pub fn network(self) -> IpNet {
        match self.address {
            IpAddr::V4(address) => {
                Ipv4Net::containing(address, self.length).unwrap_or(Ipv4Net::host(address)).into()
            }
            IpAddr::V6(address) => {
                Ipv6Net::containing(address, self.length).unwrap_or(Ipv6Net::host(address)).into()
            }
        }
    }

    /// Whether another address is in the network of this one.
    #[must_use]
    pub fn has_in_network(&self, other: IpAddr) -> bool {
        let differ = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(u32::from(a) ^ u32::from(b)) << 96,
            (IpAddr::V6(a), IpAddr::V6(b)) => u128::from(a) ^ u128::from(b),
            _ => return false,
        };
        differ.leading_zeros() >= self.length.into()
    }
}

/// Why a text is not an interface's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseInterfaceAddressError {
    /// Not an address and a length.
    #[error("write an address with the length of its prefix, such as \"10.0.0.1/24\" or \"2001:db8::1/64\"")]
    Syntax,
    /// More bits than the address has.
    #[error("the prefix must have at most {0} bits")]
    Length(u8),
    /// An address that no interface can have.
    #[error("must be a unicast address: not 0.0.0.0, ::, loopback or multicast")]
    NotAHost,
}

impl FromStr for InterfaceAddress {
    type Err = ParseInterfaceAddressError;

    /// `10.0.0.1/24`, `2001:db8::1/64`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use ParseInterfaceAddressError::{Length, NotAHost, Syntax};
        let (address, length) = text.split_once('/').ok_or(Syntax)?;
        let address: IpAddr = address.parse().map_err(|_| Syntax)?;
        if length.is_empty() || !length.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(Syntax);
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.parse().ok().filter(|length| *length <= most).ok_or(Length(most))?;
        let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if mapped || broadcast || address.is_unspecified() || address.is_loopback() || address.is_multicast()
        {
            return Err(NotAHost);
        }
        Ok(Self { address, length })
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_hosts() {
        use ParseInterfaceAddressError::{Length, NotAHost, Syntax};
        for text in ["10.0.0.1/24", "2001:db8::1/64", "fe80::1/10", "192.0.2.0/31", "10.0.0.1/32"] {
            assert_eq!(text.parse::<InterfaceAddress>().unwrap().to_string(), text);
        }
        for (text, error) in [
            ("10.0.0.1", Syntax),
            ("10.0.0/24", Syntax),
            ("10.0.0.1/+8", Syntax),
            ("10.0.0.1/", Syntax),
            ("10.0.0.1/33", Length(32)),
            ("::1:1/129", Length(128)),
            ("10.0.0.1/999", Length(32)),
            ("0.0.0.0/0", NotAHost),
            ("127.0.0.1/8", NotAHost),
            ("224.0.0.5/32", NotAHost),
            ("ff02::1/128", NotAHost),
            ("::/0", NotAHost),
            ("::ffff:10.0.0.1/96", NotAHost),
        ] {
            assert_eq!(text.parse::<InterfaceAddress>(), Err(error), "{text}");
        }
    }

    #[test]
    fn derived_names_fit_and_differ() {
        let end = RouterInterface::host_end_of("blue", "lan");
        assert!(end.len() <= 15 && end.starts_with("nv"), "{end}");
        assert_ne!(end, RouterInterface::host_end_of("blu", "elan"));
        let mac = RouterInterface::own_mac("blue", "lan");
        assert!(mac.is_local() && !mac.is_multicast(), "{mac}");
        assert_ne!(mac, RouterInterface::own_mac("blue", "wan"));
        let on = |machine| RouterInterface::mac_on(machine, "blue", "lan");
        assert_ne!(on("0123456789abcdef0123456789abcdef"), on("0123456789abcdef0123456789abcdee"));
        assert_eq!(on(machine()), mac);
    }
}
