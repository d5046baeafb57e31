// SPDX-License-Identifier: Apache-2.0
//! What workers know of groups: which ports get the packets of each. Immutable; a change makes a new table.

use std::collections::HashMap;

use netvm_wire::Address;

use crate::flood::{Bridge, FloodOf};
use crate::port_sets::PortSets;

/// One of the two protocols in a VLAN: each has its own queriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain {
    /// The VLAN; 0 on ports that are not VLAN-aware.
    pub vlan: u16,
    /// IGMP, or else MLD.
    pub is_v4: bool,
}

impl Domain {
    /// Of a group in a VLAN.
    #[must_use]
    pub const fn of(vlan: u16, group: Address) -> Self {
        Self { vlan, is_v4: group.is_v4() }
    }
}

/// The number of a set of ports of a [`GroupTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetNumber(u16);

impl SetNumber {
    /// All ports of the VLAN.
    pub const ALL: Self = Self(0);

    /// Whether it stands for all ports of the VLAN.
    #[inline]
    #[must_use]
    pub const fn is_all(self) -> bool {
        self.0 == 0
    }
}

/// The ports of each group, and of a VLAN's routers.
#[derive(Default)]
pub struct GroupTable {
    groups: HashMap<(u16, Address), SetNumber>,
    /// The routers' ports of domains where packets are not flooded.
    routers: HashMap<Domain, SetNumber>,
    sets: PortSets,
    /// Whether groups that nobody has joined are flooded.
    floods_unregistered: bool,
}

impl GroupTable {
    /// The ports that a group's packets go to, as far as the bridge permits.
    #[inline]
    #[must_use]
    pub fn of_group(&self, vlan: u16, group: Address) -> SetNumber {
        match self.groups.get(&(vlan, group)) {
            Some(set) => *set,
            None if self.floods_unregistered => SetNumber::ALL,
            None => self.routers(Domain::of(vlan, group)),
        }
    }

    /// The ports of a domain behind which there are multicast routers.
    #[inline]
    #[must_use]
    pub fn routers(&self, domain: Domain) -> SetNumber {
        self.routers.get(&domain).copied().unwrap_or(SetNumber::ALL)
    }

    /// The ports of a set that a frame floods, in ascending order.
    #[inline]
    pub fn flood<'a>(
        &'a self,
        set: SetNumber,
        bridge: &'a Bridge,
        frame: FloodOf,
    ) -> impl Iterator<Item = u16> + 'a {
        bridge.flood_within(frame, self.sets.get(set.0.into()))
    }
}

/// Makes a [`GroupTable`].
pub(super) struct Builder {
    table: GroupTable,
    used: u16,
}

impl Builder {
    /// Of so many groups and domains at most, and ports below `ports`.
    pub fn new(sets: usize, ports: usize, floods_unregistered: bool) -> Self {
        let sets = PortSets::new(sets + 1, ports);
        Self { table: GroupTable { sets, floods_unregistered, ..GroupTable::default() }, used: 0 }
    }

    fn set(&mut self, ports: impl Iterator<Item = u16>) -> SetNumber {
        self.used += 1;
        ports.for_each(|port| self.table.sets.insert(self.used.into(), port));
        SetNumber(self.used)
    }

    pub fn routers(&mut self, domain: Domain, ports: impl Iterator<Item = u16>) {
        let set = self.set(ports);
        self.table.routers.insert(domain, set);
    }

    pub fn group(&mut self, vlan: u16, group: Address, ports: impl Iterator<Item = u16>) {
        let set = self.set(ports);
        self.table.groups.insert((vlan, group), set);
    }

    pub fn build(self) -> GroupTable {
        self.table
    }
}
