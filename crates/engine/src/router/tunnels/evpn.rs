// SPDX-License-Identifier: Apache-2.0
//! What EVPN says of networks (RFC 7432, RFC 8365): which VTEPs there are, which of them get floods (type 3), the
//! addresses behind them (type 2), and the IP addresses of hosts. In: differences from the control plane. Out: VTEPs of
//! tunnels, entries of the database of addresses behind VTEPs, and of the switch; hosts for which workers answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use netvm_model::{Host, PortConfig, RouterId};
use netvm_switch::Fdb;
use netvm_wire::{Address, MacAddr};

use super::Hosts;
use crate::ids::PortId;
use crate::policy::Switching;

/// What EVPN says of a network now, where that differs from what it said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvpnUpdate {
    /// The port of the network.
    pub port: PortId,
    /// Its number, in case that the port has another one by now.
    pub vni: u32,
    /// The VTEPs that get floods; `None`: as before.
    pub floods: Option<BTreeSet<IpAddr>>,
    /// Addresses and the VTEP that each is behind; `None`: no longer behind one.
    pub macs: Vec<(MacAddr, Option<IpAddr>)>,
    /// IP addresses of hosts behind VTEPs; `None`: no longer behind one.
    pub hosts: Vec<(IpAddr, Option<MacAddr>)>,
}

/// A network that no port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no port has network {0} with EVPN: the configuration has changed")]
pub struct UnknownNetwork(pub u32);

/// Whether a network has other VTEPs than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VtepSet {
    Same,
    Changed,
}

/// A network.
#[derive(Debug)]
pub(crate) struct Network {
    router: RouterId,
    vni: u32,
    floods: BTreeSet<Address>,
    macs: HashMap<MacAddr, Address>,
    /// How many addresses are behind each VTEP.
    counts: BTreeMap<Address, u32>,
    /// The VLAN in which the switch has the addresses.
    vlan: Option<u16>,
    /// Addresses that found no room.
    refused: u64,
    hosts: Arc<Hosts>,
}

impl Network {
    /// Its VTEPs, and whether each gets floods: those first.
    pub(super) fn vteps(&self) -> impl Iterator<Item = (Address, bool)> {
        let others = self.counts.keys().filter(|vtep| !self.floods.contains(vtep));
        self.floods.iter().map(|vtep| (*vtep, true)).chain(others.map(|vtep| (*vtep, false)))
    }

    pub(super) const fn hosts(&self) -> &Arc<Hosts> {
        &self.hosts
    }

    fn set(&mut self, mac: MacAddr, vtep: Option<Address>) -> VtepSet {
        let before = match vtep {
            Some(vtep) => self.macs.insert(mac, vtep),
            None => self.macs.remove(&mac),
        };
        let mut vteps = VtepSet::Same;
        if before == vtep {
            return vteps;
        }
        if let Some(vtep) = vtep {
            let count = self.counts.entry(vtep).or_default();
            *count += 1;
            if *count == 1 && !self.floods.contains(&vtep) {
                vteps = VtepSet::Changed;
            }
        }
        if let Some(before) = before
            && let Some(count) = self.counts.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&before);
                if !self.floods.contains(&before) {
                    vteps = VtepSet::Changed;
                }
            }
        }
        vteps
    }
}

/// All networks with EVPN.
#[derive(Debug, Default)]
pub(crate) struct Networks(BTreeMap<PortId, Network>);

impl Networks {
    /// Follows a new host: networks that it no longer has are forgotten.
    pub(super) fn follow(&mut self, host: &Host) {
        let of = |port: &PortConfig| port.kind.info().tunnel.filter(|config| config.is_evpn()).cloned();
        self.0.retain(|id, network| {
            let config = host.port(*id).and_then(of);
            config.is_some_and(|config| (config.router, config.vni) == (network.router, network.vni))
        });
        for port in &host.ports {
            let Some(config) = of(port) else { continue };
            self.0.entry(port.id).or_insert_with(|| Network {
                router: config.router,
                vni: config.vni,
                floods: BTreeSet::new(),
                macs: HashMap::new(),
                counts: BTreeMap::new(),
                vlan: None,
                refused: 0,
                hosts: Arc::default(),
            });
        }
    }

    pub(super) fn of(&self, port: PortId) -> Option<&Network> {
        self.0.get(&port)
    }

    /// The hosts of each network.
    pub(super) fn hosts(&self) -> impl Iterator<Item = (PortId, &Arc<Hosts>)> {
        self.0.iter().map(|(port, network)| (*port, &network.hosts))
    }

    /// The VTEPs of all networks, some of them several times.
    pub(super) fn vteps(&self) -> impl Iterator<Item = Address> {
        self.0.values().flat_map(|network| network.vteps().map(|(vtep, _)| vtep))
    }

    /// Notes an update.
    pub(super) fn apply(&mut self, update: &EvpnUpdate) -> Result<VtepSet, UnknownNetwork> {
        let network = self.0.get_mut(&update.port).filter(|network| network.vni == update.vni);
        let network = network.ok_or(UnknownNetwork(update.vni))?;
        let mut vteps = VtepSet::Same;
        if let Some(floods) = &update.floods {
            let floods: BTreeSet<Address> = floods.iter().map(|vtep| Address::from(*vtep)).collect();
            if floods != network.floods {
                network.floods = floods;
                vteps = VtepSet::Changed;
            }
        }
        for (mac, vtep) in &update.macs {
            if network.set(*mac, vtep.map(Address::from)) == VtepSet::Changed {
                vteps = VtepSet::Changed;
            }
        }
        for (address, mac) in &update.hosts {
            network.hosts.set(Address::from(*address), *mac);
        }
        Ok(vteps)
    }

    /// Writes the addresses of an update into the database.
    pub(super) fn bind(&mut self, addresses: &Fdb, numbers: &BTreeMap<Address, u16>, update: &EvpnUpdate) {
        let Some(network) = self.0.get_mut(&update.port) else { return };
        for (mac, _) in &update.macs {
            let number = network.macs.get(mac).and_then(|vtep| numbers.get(vtep));
            match number {
                Some(number) if addresses.add_static(update.port.0, *mac, *number).is_ok() => {}
                Some(_) => network.refused += 1,
                None => drop(addresses.remove_static(update.port.0, *mac)),
            }
        }
    }

    /// Writes all addresses into a new database.
    pub(super) fn restore(&mut self, addresses: &Fdb, numbers: &BTreeMap<Address, u16>) {
        for (port, network) in &mut self.0 {
            network.refused = 0;
            for (mac, vtep) in &network.macs {
                let number = numbers.get(vtep);
                if number.is_none_or(|number| addresses.add_static(port.0, *mac, *number).is_err()) {
                    network.refused += 1;
                }
            }
        }
    }

    /// Writes the addresses of an update into the switch's database: they are behind the port of the network.
    pub(crate) fn switch(&mut self, switching: &Switching, update: &EvpnUpdate) {
        let Some(network) = self.0.get_mut(&update.port) else { return };
        let Some(vlan) = switching.vlan_of(update.port) else { return };
        network.vlan = Some(vlan);
        for (mac, _) in &update.macs {
            if !network.macs.contains_key(mac) {
                switching.fdb.remove_external(vlan, *mac, update.port.0);
            } else if switching.fdb.add_external(vlan, *mac, update.port.0).is_err() {
                network.refused += 1;
            }
        }
    }

    /// Adapts the switch's database to a new configuration. What another port has taken stays there.
    pub(crate) fn switch_all(&mut self, switching: &Switching, tick: u32) {
        for (port, network) in &mut self.0 {
            let vlan = switching.vlan_of(*port);
            let before = std::mem::replace(&mut network.vlan, vlan);
            for mac in network.macs.keys() {
                if let Some(before) = before.filter(|_| before != vlan) {
                    switching.fdb.remove_external(before, *mac, port.0);
                }
                if let Some(vlan) = vlan
                    && switching.fdb.lookup(vlan, *mac, tick).is_none()
                    && switching.fdb.add_external(vlan, *mac, port.0).is_err()
                {
                    network.refused += 1;
                }
            }
        }
    }

    /// How many addresses of a port found no room, since the last call.
    pub(crate) fn take_refused(&mut self, port: PortId) -> u64 {
        self.0.get_mut(&port).map_or(0, |network| std::mem::take(&mut network.refused))
    }
}
