// SPDX-License-Identifier: Apache-2.0
//! Interfaces of routers in the workers' snapshot, as configuration and namespace together have them.
//!
//! In: what the control plane reads in a router's namespace ([`RouterState`]). Out: what workers check of each packet.

use std::net::IpAddr;
use std::sync::Arc;

use netvm_model::{RouterInterface, Urpf};
use netvm_wire::{Address, MacAddr, VlanId};

use super::PuntLimits;
use crate::ids::PortId;

/// What a router's namespace says of its interfaces, as far as forwarding depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterState {
    /// By the index of the interface in the configuration; `None`: the namespace has no such interface.
    pub interfaces: Vec<Option<RouterInterfaceState>>,
    /// The IPv4 addresses of the router itself. Packets from outside with such a source are martians (RFC 1812 5.3.7).
    pub own_v4: Vec<u32>,
}

/// What a router's namespace says of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterInterfaceState {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Additional addresses, for example of VRRP.
    pub also: Vec<MacAddr>,
    /// Longest IPv4 and longest IPv6 packet, in bytes.
    pub mtus: [u32; 2],
    /// It is administratively up.
    pub is_up: bool,
    /// It is part of another interface, such as a bridge, so that only the kernel can receive its packets.
    pub is_enslaved: bool,
    /// The kernel forwards IPv4 and IPv6 packets that it receives.
    pub forwards: [bool; 2],
    /// Reverse path filter of IPv4 (`rp_filter`).
    pub rp_filter: Option<Urpf>,
    /// Packets may have the router's own addresses as source (`accept_local`).
    pub accepts_local: bool,
    /// Its addresses, but for link-local IPv6 ones; the first of a family is what NAT masquerades with.
    pub addresses: Vec<IpAddr>,
    /// The kernel logs or accepts packets with addresses that cannot occur on a link (`log_martians`,
    /// `route_localnet`).
    pub sees_martians: bool,
}

/// What is unusual of an interface that receives packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ingress(u8);

impl Ingress {
    /// It receives nothing.
    pub(crate) const DOWN: Self = Self(1);
    /// The kernel gets all packets, whatever MAC address they go to.
    pub(crate) const ENSLAVED: Self = Self(1 << 1);
    /// The kernel gets all IPv4 or IPv6 packets to the interface.
    pub(crate) const PUNTS_V4: Self = Self(1 << 2);
    pub(crate) const PUNTS_V6: Self = Self(1 << 3);
    /// Packets with the router's own addresses as source pass.
    pub(crate) const ACCEPTS_LOCAL: Self = Self(1 << 4);
    /// The kernel gets packets with impossible addresses.
    pub(crate) const SEES_MARTIANS: Self = Self(1 << 5);

    const NOT_FAST: u8 = Self::DOWN.0 | Self::ENSLAVED.0 | Self::PUNTS_V4.0;

    fn of(state: &RouterInterfaceState) -> Self {
        let [v4, v6] = state.forwards;
        let all = [
            (!state.is_up, Self::DOWN),
            (state.is_enslaved, Self::ENSLAVED),
            (!v4, Self::PUNTS_V4),
            (!v6, Self::PUNTS_V6),
            (state.accepts_local, Self::ACCEPTS_LOCAL),
            (state.sees_martians, Self::SEES_MARTIANS),
        ];
        Self(all.iter().filter(|(is_so, _)| *is_so).fold(0, |all, (_, one)| all | one.0))
    }

    #[inline(always)]
    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn without(self, flag: Self) -> Self {
        Self(self.0 & !flag.0)
    }

    /// Whether IPv4 packets may take the fast path.
    #[inline(always)]
    pub(crate) const fn is_fast(self) -> bool {
        self.0 & Self::NOT_FAST == 0
    }
}

/// An interface of a router.
#[derive(Clone, Debug)]
pub(crate) struct InterfacePath {
    /// The port that it uses.
    pub(crate) port: PortId,
    /// The VLAN tag of its packets.
    pub(crate) vlan: Option<VlanId>,
    pub(crate) mac: MacAddr,
    pub(crate) ingress: Ingress,
    /// Additional addresses, for example of VRRP.
    pub(crate) also: Box<[MacAddr]>,
    /// Longest IPv4 and longest IPv6 packet.
    pub(crate) mtus: [u32; 2],
    /// The reverse path check of the sources of IPv4 and of IPv6 packets; `None`: no check.
    pub(crate) urpf: [Option<Urpf>; 2],
    /// An IPv4 and an IPv6 address that it has.
    pub(crate) own: [Option<Address>; 2],
    /// The port to the router's kernel namespace.
    pub(crate) punt: PortId,
    /// Limits of punted packets.
    pub(crate) punts: Arc<PuntLimits>,
}

impl InterfacePath {
    /// `mtu`: of its port. `state`: what the namespace says, once it is known.
    pub(crate) fn new(
        config: &RouterInterface,
        mtu: u32,
        punts: &Arc<PuntLimits>,
        state: Option<&RouterInterfaceState>,
    ) -> Self {
        let urpf = config.urpf;
        let mut path = Self {
            port: config.port,
            vlan: config.vlan,
            mac: config.mac,
            ingress: Ingress::default(),
            also: Box::default(),
            mtus: [mtu; 2],
            urpf: [urpf; 2],
            own: first_of_each(&config.addresses.iter().map(|one| one.address).collect::<Vec<_>>()),
            punt: config.punt,
            punts: Arc::clone(punts),
        };
        if let Some(state) = state {
            path.mac = state.mac;
            path.ingress = Ingress::of(state);
            path.also = state.also.clone().into();
            path.own = first_of_each(&state.addresses);
            path.mtus = state.mtus.map(|own| own.min(mtu));
            path.urpf[0] = stricter(urpf, state.rp_filter);
        }
        path
    }

    /// Longest packet of a family that may leave by it.
    #[inline(always)]
    pub(crate) const fn mtu(&self, is_v4: bool) -> u32 {
        let [v4, v6] = self.mtus;
        if is_v4 { v4 } else { v6 }
    }
}

/// The first IPv4 and the first IPv6 address.
fn first_of_each(addresses: &[IpAddr]) -> [Option<Address>; 2] {
    [true, false].map(|is_v4| addresses.iter().find(|it| it.is_ipv4() == is_v4).map(|it| (*it).into()))
}

const fn stricter(one: Option<Urpf>, other: Option<Urpf>) -> Option<Urpf> {
    match (one, other) {
        (Some(Urpf::Strict), _) | (_, Some(Urpf::Strict)) => Some(Urpf::Strict),
        (None, None) => None,
        _ => Some(Urpf::Loose),
    }
}

/// The router's own IPv4 addresses, to recognise them as sources of packets from outside.
///
/// A filter of 512 bytes answers for most packets: a multiplication and a load, of whose lines a first cache keeps
/// those in use. It takes other addresses for own ones with a probability of `n / 4096` for `n` addresses; the list
/// then decides.
#[derive(Debug)]
pub(crate) struct OwnAddresses {
    filter: [u64; OwnAddresses::WORDS],
    /// Sorted.
    all: Box<[u32]>,
}

impl OwnAddresses {
    const WORDS: usize = 64;

    pub(crate) fn new(all: &[u32]) -> Self {
        let mut sorted: Box<[u32]> = all.into();
        sorted.sort_unstable();
        let mut filter = [0; Self::WORDS];
        for address in &sorted {
            let (word, bit) = Self::place(*address);
            filter[word] |= 1 << bit;
        }
        Self { filter, all: sorted }
    }

    #[inline(always)]
    const fn place(address: u32) -> (usize, u32) {
        // 2^32 divided by the golden ratio, which spreads neighbouring addresses best (Knuth 6.4).
        let mixed = address.wrapping_mul(0x9e37_79b9);
        ((mixed >> 26) as usize, mixed >> 20 & 63)
    }

    /// All of them, sorted.
    pub(crate) const fn all(&self) -> &[u32] {
        &self.all
    }

    /// Whether an address may be an own one; false is certain.
    #[inline(always)]
    pub(crate) const fn may_have(&self, address: u32) -> bool {
        let (word, bit) = Self::place(address);
        self.filter[word] >> bit & 1 != 0
    }

    /// Whether an address is an own one.
    #[inline(always)]
    pub(crate) fn have(&self, address: u32) -> bool {
        self.may_have(address) && self.find(address)
    }

    #[cold]
    fn find(&self, address: u32) -> bool {
        self.all.binary_search(&address).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_known_and_few_others_are_taken_for_them() {
        let own: Vec<u32> = (0..128).map(|n| 0x0a00_0001 | n << 8).collect();
        let addresses = OwnAddresses::new(&own);
        assert!(own.iter().all(|address| addresses.have(*address)));
        let others: Vec<u32> = (0..100_000u32).map(|n| n.wrapping_mul(2_654_435_769)).collect();
        let others = others.iter().filter(|address| !own.contains(address));
        let (mut taken, mut wrong) = (0, 0);
        for address in others {
            taken += u32::from(addresses.may_have(*address));
            wrong += u32::from(addresses.have(*address));
        }
        assert!(wrong == 0 && taken < 5000, "{wrong}, {taken}");
    }

    #[test]
    fn the_stricter_check_counts() {
        use Urpf::{Loose, Strict};
        for (one, other, both) in [
            (None, None, None),
            (Some(Loose), None, Some(Loose)),
            (None, Some(Strict), Some(Strict)),
            (Some(Strict), Some(Loose), Some(Strict)),
        ] {
            assert_eq!((stricter(one, other), stricter(other, one)), (both, both));
        }
    }
}
