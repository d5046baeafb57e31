// SPDX-License-Identifier: Apache-2.0
//! The router's own interfaces among those of its namespace, and what the engine has to know of them.
//!
//! In: links, whatever name they have now, and settings. Out: a [`RouterState`] when it has changed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netvm_engine::{RouterInterfaceState, RouterState};
use netvm_model::Urpf;

use super::{Global, Link, Rib};

/// Maps links to interfaces of the engine.
#[derive(Debug, Default)]
pub struct InterfaceMap {
    /// The configured names, in the engine's order, and the indexes of the outer ends.
    wanted: Vec<(String, Option<u32>)>,
    /// The engine's interface by the index of its link.
    by_index: BTreeMap<u32, u16>,
    /// The same by the index of a bridge that stands for it (L3VNI); `None`: the bridge of a network of hosts, of which
    /// the switch knows.
    by_bridge: BTreeMap<u32, Option<u16>>,
}

impl InterfaceMap {
    pub const fn new(wanted: Vec<(String, Option<u32>)>) -> Self {
        Self { wanted, by_index: BTreeMap::new(), by_bridge: BTreeMap::new() }
    }

    /// Notes a link: an interface is known by its outer end, even under another name; else by its name.
    pub fn see(&mut self, index: u32, link: &Link) {
        if self.by_index.contains_key(&index) {
            return;
        }
        let by_peer = link.peer.and_then(|peer| self.wanted.iter().position(|(_, end)| *end == Some(peer)));
        if let Some(place) = by_peer {
            self.by_index.retain(|_, other| usize::from(*other) != place);
            self.by_index.insert(index, place as u16);
            return;
        }
        let is_free = |place: &usize| !self.by_index.values().any(|other| usize::from(*other) == *place);
        let by_name = self.wanted.iter().position(|(name, _)| *name == link.name).filter(is_free);
        if let Some(place) = by_name {
            self.by_index.insert(index, place as u16);
        }
    }

    /// Forgets a link.
    pub fn forget(&mut self, index: u32) {
        self.by_index.remove(&index);
    }

    /// Forgets all links but these.
    pub fn keep_only(&mut self, links: &BTreeMap<u32, Link>) {
        self.by_index.retain(|index, _| links.contains_key(index));
    }

    /// The interface of a link.
    pub fn of(&self, index: u32) -> Option<u16> {
        self.by_index.get(&index).copied()
    }

    /// The interface by which packets for a link leave.
    fn by(&self, index: u32) -> Option<u16> {
        self.of(index).or_else(|| *self.by_bridge.get(&index)?)
    }

    /// Whether a link is a bridge that stands for an interface: a routing daemon says its neighbours.
    pub fn is_bridge(&self, index: u32) -> bool {
        self.by_bridge.contains_key(&index)
    }

    /// Whether a link is the bridge of a network of hosts.
    pub fn has_hosts(&self, index: u32) -> bool {
        self.by_bridge.get(&index) == Some(&None)
    }

    /// Notes the bridges of networks with EVPN; true if they have changed.
    pub fn set_bridges(&mut self, bridges: BTreeMap<u32, Option<u16>>) -> bool {
        let has_changed = self.by_bridge != bridges;
        self.by_bridge = bridges;
        has_changed
    }

    /// The index of the link of an interface.
    fn index_of(&self, place: u16) -> Option<u32> {
        self.by_index.iter().find(|(_, other)| **other == place).map(|(index, _)| *index)
    }
}

/// Finds interfaces of the engine.
#[derive(Clone, Copy)]
pub struct Interfaces<'a> {
    pub links: &'a BTreeMap<u32, Link>,
    pub interface_map: &'a InterfaceMap,
    pub global: &'a Global,
}

impl Interfaces<'_> {
    /// The engine's interface for a link, or for the lower interface of a macvlan, and whether the link is up.
    pub fn find(self, index: u32) -> Option<(u16, bool)> {
        let link = self.links.get(&index)?;
        let under = || self.interface_map.of(link.macvlan?.0);
        Some((self.interface_map.by(index).or_else(under)?, link.is_up))
    }

    /// Whether the kernel ignores routes by a link, because it has no carrier (`ignore_routes_with_linkdown`).
    pub fn are_ignored(self, index: u32, is_v4: bool) -> bool {
        self.links.get(&index).is_some_and(|link| link.is_ignored(self.global, is_v4))
    }
}

impl Link {
    pub(super) const fn is_ignored(&self, global: &Global, is_v4: bool) -> bool {
        let Link { settings, .. } = self;
        let is_so = if is_v4 {
            settings.v4.ignores_linkdown || global.v4.ignores_linkdown
        } else {
            settings.v6.ignores_linkdown
        };
        is_so && !self.has_carrier
    }

    /// Whether routes through it may be others than with the link as it was.
    pub(super) fn routes_differ(&self, before: &Self, global: &Global) -> bool {
        let of = |link: &Self| {
            let ignored = [true, false].map(|is_v4| link.is_ignored(global, is_v4));
            (link.is_up, link.macvlan, ignored)
        };
        of(self) != of(before)
    }
}

impl Rib {
    /// What the engine has to know of the interfaces, if it has changed since the last call.
    pub fn changed_state(&mut self) -> Option<RouterState> {
        if !std::mem::take(&mut self.state_changed) {
            return None;
        }
        let numbers = 0..self.interface_map.wanted.len() as u16;
        let interfaces = numbers.map(|place| self.state_of(place)).collect();
        let mut own_v4: Vec<u32> = self
            .addresses
            .keys()
            .filter_map(|(_, address)| match address {
                IpAddr::V4(address) => Some(address.to_bits()),
                IpAddr::V6(_) => None,
            })
            .collect();
        own_v4.sort_unstable();
        own_v4.dedup();
        let state = RouterState { interfaces, own_v4 };
        if self.sent_state.as_ref() == Some(&state) {
            return None;
        }
        self.sent_state = Some(state.clone());
        Some(state)
    }

    fn state_of(&self, place: u16) -> Option<RouterInterfaceState> {
        let index = self.interface_map.index_of(place)?;
        let link = self.links.get(&index)?;
        let Global { v4: all, forwards_v6 } = self.global;
        let macvlans =
            || self.links.values().filter(|one| one.is_up && one.macvlan.is_some_and(|(of, _)| of == index));
        let mut also: Vec<_> = macvlans().filter_map(|one| Some(one.macvlan?.1)).collect();
        also.sort_unstable();
        let has_v4 = self.addresses.keys().any(|(of, address)| *of == index && address.is_ipv4());
        // The settings of an interface count for a macvlan on it, unless those of the macvlan are stricter.
        let of_all = |is_so: fn(&Link) -> bool| is_so(link) && macvlans().all(is_so);
        let of_any = |is_so: fn(&Link) -> bool| is_so(link) || macvlans().any(is_so);
        let rp_filter =
            macvlans().fold(link.settings.v4.rp_filter, |most, one| most.max(one.settings.v4.rp_filter));
        Some(RouterInterfaceState {
            mac: link.settings.mac,
            addresses: self.addresses_on(index).map(|(address, _)| address).collect(),
            also,
            mtus: [link.settings.mtu, link.settings.v6.mtu],
            is_up: link.is_up,
            is_enslaved: of_any(|link| link.settings.is_enslaved),
            forwards: [
                of_all(|link| link.settings.v4.forwards),
                of_all(|link| !link.settings.v6.is_disabled)
                    && (forwards_v6 || of_all(|link| link.settings.v6.forwards)),
            ],
            rp_filter: match all.rp_filter.max(rp_filter) {
                0 => None,
                // Without an address the kernel has no other interface's route back either (`__fib_validate_source`).
                2 if has_v4 => Some(Urpf::Loose),
                _ => Some(Urpf::Strict),
            },
            accepts_local: all.accepts_local || of_all(|link| link.settings.v4.accepts_local),
            sees_martians: all.logs_martians
                || all.routes_localnet
                || of_any(|link| link.settings.v4.logs_martians || link.settings.v4.routes_localnet),
        })
    }
}
