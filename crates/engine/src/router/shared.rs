// SPDX-License-Identifier: Apache-2.0
//! Ports that several routers share without a VLAN of their own each: which router a packet is for, by its MAC address.
//!
//! In: the interfaces of all routers. Out: for each shared port, the router of a MAC address, and the interfaces that
//! get a copy of a packet for a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netvm_model::RouterId;
use netvm_wire::{MacAddr, VlanId};

use super::RouterPath;
use crate::ids::PortId;

/// A port that several routers share.
#[derive(Debug)]
pub(crate) struct SharedPort {
    /// The router of each VLAN (0: untagged) and MAC address, sorted.
    owners: Box<[((u16, MacAddr), RouterId)]>,
    /// The interfaces in each VLAN by router and number, sorted.
    interfaces: Box<[(u16, RouterId, u16)]>,
}

impl SharedPort {
    /// The shared ports of these routers.
    pub(crate) fn all(routers: &[RouterPath]) -> BTreeMap<PortId, Arc<Self>> {
        let mut by_port = BTreeMap::<PortId, BTreeSet<(u16, RouterId, u16)>>::new();
        for router in routers {
            for (n, interface) in (0..).zip(&router.interfaces) {
                let vlan = interface.vlan.map_or(0, VlanId::get);
                by_port.entry(interface.port).or_default().insert((vlan, router.id, n));
            }
        }
        let mut all = BTreeMap::new();
        for (port, interfaces) in by_port {
            // A router has one interface in each VLAN of a port.
            let vlans: BTreeSet<u16> = interfaces.iter().map(|(vlan, ..)| *vlan).collect();
            if vlans.len() == interfaces.len() {
                continue;
            }
            let mut owners = BTreeMap::new();
            for (vlan, id, n) in &interfaces {
                let router = routers.iter().find(|router| router.id == *id);
                let Some(interface) = router.and_then(|router| router.interface(*n)) else { continue };
                for mac in interface.also.iter().chain([&interface.mac]) {
                    owners.insert((*vlan, *mac), *id);
                }
            }
            let (owners, interfaces) = (owners.into_iter().collect(), interfaces.into_iter().collect());
            all.insert(port, Arc::new(Self { owners, interfaces }));
        }
        all
    }

    /// The router of a MAC address.
    pub(crate) fn owner(&self, vlan: u16, mac: MacAddr) -> Option<RouterId> {
        let n = self.owners.binary_search_by_key(&(vlan, mac), |(key, _)| *key).ok()?;
        Some(self.owners[n].1)
    }

    /// The interfaces in a VLAN, of all routers.
    pub(crate) fn interfaces(&self, vlan: u16) -> impl Iterator<Item = (RouterId, u16)> {
        let of = self.interfaces.iter().skip_while(move |(other, ..)| *other != vlan);
        of.take_while(move |(other, ..)| *other == vlan).map(|(_, router, n)| (*router, *n))
    }
}
