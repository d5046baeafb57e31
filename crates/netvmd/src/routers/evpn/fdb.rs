// SPDX-License-Identifier: Apache-2.0
//! The forwarding databases of the kernel's devices. In: entries, as netlink tells them. Out: [`EvpnUpdate`]s for the
//! engine, with the differences.
//!
//! An address has two entries if it is behind another server: one of the bridge, with the port, and one of the `vxlan`
//! device, with the server. The latter stays when the address comes to this host, so both decide. All entries of the
//! address 0 are the servers that get floods.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_engine::{EvpnUpdate, PortId};
use netvm_model::RouterId;
use netvm_netlink::{Event, Requests};
use netvm_wire::MacAddr;

use super::attributes::{ip, mac_of};
use super::hosts::{self, HostEntry, Hosts};
use super::{Devices, Network};

/// Most addresses of an update; it keeps the engine's thread busy for a millisecond.
const UPDATE_ADDRESSES: usize = 4096;

/// An entry of a device's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routers) struct FdbEntry {
    device: u32,
    mac: MacAddr,
    /// The server that the address is behind; `None`: the entry is the bridge's.
    vtep: Option<IpAddr>,
}

/// Whether an entry is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routers) enum Changed {
    There,
    Gone,
}

impl FdbEntry {
    /// The entry that an event is about.
    pub(in crate::routers) fn of_event(event: &Event) -> Option<(Self, Changed)> {
        match event {
            Event::Message(_, RouteNetlinkMessage::NewNeighbour(message)) => {
                Some((Self::of(message)?, Changed::There))
            }
            Event::Message(_, RouteNetlinkMessage::DelNeighbour(message)) => {
                Some((Self::of(message)?, Changed::Gone))
            }
            _ => None,
        }
    }

    /// The entry of a message; `None` if it is none that matters.
    pub(in crate::routers) fn of(message: &NeighbourMessage) -> Option<Self> {
        if message.header.family != AddressFamily::Bridge {
            return None;
        }
        let (mac, mut vtep, mut is_of_bridge) = (mac_of(message), None, false);
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(address) => vtep = Some(ip(address)?),
                NeighbourAttribute::Controller(_) => is_of_bridge = true,
                _ => {}
            }
        }
        // Permanent entries of a bridge are the addresses of its own ports.
        let is_own = is_of_bridge && message.header.state == NeighbourState::Permanent;
        let is_one = vtep.is_some() || is_of_bridge && !is_own;
        is_one.then_some(Self { device: message.header.ifindex, mac: mac?, vtep })
    }
}

/// Dumps the forwarding databases of bridges and `vxlan` devices, and the neighbours of all devices.
///
/// # Errors
/// The kernel's error.
pub(in crate::routers) fn dump(requests: &mut Requests) -> io::Result<Dump> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    let addresses =
        requests.dump(&RouteNetlinkMessage::GetNeighbour(message), Vec::new, |all, message| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                all.extend(FdbEntry::of(&message));
            }
        })?;
    Ok(Dump { addresses, hosts: hosts::dump(requests)? })
}

/// All that the kernel's devices have.
#[derive(Debug)]
pub(in crate::routers) struct Dump {
    addresses: Vec<FdbEntry>,
    hosts: Vec<HostEntry>,
}

/// What the kernel knows of a network, and what the engine has been told.
#[derive(Debug)]
struct Table {
    network: Network,
    devices: Devices,
    floods: BTreeSet<IpAddr>,
    /// Entries of the `vxlan` device.
    behind: HashMap<MacAddr, IpAddr>,
    /// Addresses that the bridge has at the `vxlan` device.
    remote: HashSet<MacAddr>,
    /// Addresses that the bridge has at the port for addresses of this host.
    local: HashSet<MacAddr>,
    sent_floods: BTreeSet<IpAddr>,
    sent: HashMap<MacAddr, IpAddr>,
    /// Addresses that may have changed.
    dirty: HashSet<MacAddr>,
    hosts: Hosts,
    /// A daemon has said a VTEP that it had not said before.
    has_new_vtep: bool,
}

impl Table {
    fn new(network: Network, devices: Devices) -> Self {
        Self {
            network,
            devices,
            floods: BTreeSet::new(),
            behind: HashMap::new(),
            remote: HashSet::new(),
            local: HashSet::new(),
            sent_floods: BTreeSet::new(),
            sent: HashMap::new(),
            dirty: HashSet::new(),
            hosts: Hosts::default(),
            has_new_vtep: false,
        }
    }

    fn apply(&mut self, entry: FdbEntry, changed: Changed) {
        let FdbEntry { device, mac, vtep } = entry;
        let is_there = changed == Changed::There;
        match vtep {
            Some(vtep) if mac == MacAddr::ZERO && is_there => self.has_new_vtep |= self.floods.insert(vtep),
            Some(vtep) if mac == MacAddr::ZERO => drop(self.floods.remove(&vtep)),
            Some(vtep) if is_there => drop(self.behind.insert(mac, vtep)),
            Some(vtep) if self.behind.get(&mac) == Some(&vtep) => drop(self.behind.remove(&mac)),
            Some(_) => return,
            None if device == self.devices.vxlan && is_there => {
                self.remote.insert(mac);
                self.local.remove(&mac);
            }
            None if device == self.devices.vxlan => drop(self.remote.remove(&mac)),
            None if is_there => {
                self.local.insert(mac);
                self.remote.remove(&mac);
            }
            None => drop(self.local.remove(&mac)),
        }
        self.dirty.insert(mac);
    }

    /// The server that an address is behind.
    fn vtep_of(&self, mac: &MacAddr) -> Option<IpAddr> {
        self.behind.get(mac).filter(|_| self.remote.contains(mac)).copied()
    }

    fn updates(&mut self, out: &mut Vec<EvpnUpdate>) {
        let mut macs = Vec::new();
        for mac in std::mem::take(&mut self.dirty) {
            let now = self.vtep_of(&mac).filter(|_| mac != MacAddr::ZERO);
            let before = match now {
                Some(vtep) => self.sent.insert(mac, vtep),
                None => self.sent.remove(&mac),
            };
            if now != before {
                macs.push((mac, now));
            }
        }
        let floods = (self.floods != self.sent_floods).then(|| self.floods.clone());
        if let Some(floods) = &floods {
            self.sent_floods.clone_from(floods);
        }
        let (port, vni) = (self.network.port, self.network.vni);
        let empty = || EvpnUpdate { port, vni, ..EvpnUpdate::default() };
        out.extend(floods.map(|floods| EvpnUpdate { floods: Some(floods), ..empty() }));
        let parts = macs.chunks(UPDATE_ADDRESSES);
        out.extend(parts.map(|part| EvpnUpdate { macs: part.to_vec(), ..empty() }));
        let hosts = self.hosts.updates();
        let parts = hosts.chunks(UPDATE_ADDRESSES);
        out.extend(parts.map(|part| EvpnUpdate { hosts: part.to_vec(), ..empty() }));
    }
}

/// Addresses of this server that the kernel has in a network.
#[derive(Debug)]
pub(in crate::routers) struct LocalEntries<'a> {
    pub(super) port: PortId,
    pub(super) devices: Devices,
    /// At the port of the bridge for addresses of this server.
    pub(super) macs: &'a HashSet<MacAddr>,
    /// Neighbours of the bridge.
    pub(super) hosts: &'a HashMap<IpAddr, MacAddr>,
}

/// The networks whose devices are in one namespace.
#[derive(Debug, Default)]
pub(in crate::routers) struct Tables {
    all: Vec<Table>,
}

impl Tables {
    /// Follows these networks, and no others. True if the databases have to be dumped.
    pub(in crate::routers) fn set(&mut self, networks: Vec<(Network, Devices)>) -> bool {
        let mut before = std::mem::take(&mut self.all);
        let mut is_new = false;
        for (network, devices) in networks {
            let known =
                before.iter().position(|table| (&table.network, &table.devices) == (&network, &devices));
            let table = match known {
                Some(known) => before.swap_remove(known),
                None => {
                    is_new = true;
                    Table::new(network, devices)
                }
            };
            self.all.push(table);
        }
        is_new
    }

    /// Whether there are none.
    pub(in crate::routers) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Applies a change.
    pub(in crate::routers) fn apply(&mut self, entry: FdbEntry, changed: Changed) {
        let has = |table: &&mut Table| [table.devices.vxlan, table.devices.local].contains(&entry.device);
        if let Some(table) = self.all.iter_mut().find(has) {
            table.apply(entry, changed);
        }
    }

    /// Applies a change of a neighbour.
    pub(in crate::routers) fn apply_host(&mut self, entry: HostEntry) {
        if let Some(table) = self.all.iter_mut().find(|table| table.devices.bridge == entry.device) {
            table.hosts.apply(entry);
        }
    }

    /// Replaces all that is known by a dump. The next updates contain only the differences.
    pub(in crate::routers) fn resync(&mut self, dump: Dump) {
        for table in &mut self.all {
            table.dirty.extend(table.sent.keys());
            table.floods.clear();
            table.behind.clear();
            table.remote.clear();
            table.local.clear();
            table.hosts.clear();
        }
        dump.addresses.into_iter().for_each(|entry| self.apply(entry, Changed::There));
        dump.hosts.into_iter().for_each(|entry| self.apply_host(entry));
    }

    /// The updates to send to the engine, in order.
    pub(in crate::routers) fn updates(&mut self) -> Vec<EvpnUpdate> {
        let mut all = Vec::new();
        self.all.iter_mut().for_each(|table| table.updates(&mut all));
        all
    }

    /// The VTEPs, and the router that has to reach each of them.
    pub(in crate::routers) fn vteps(&self) -> impl Iterator<Item = (RouterId, IpAddr)> {
        self.all.iter().flat_map(|table| {
            let vteps: BTreeSet<&IpAddr> = table.floods.iter().chain(table.sent.values()).collect();
            vteps.into_iter().map(|vtep| (table.network.underlay, *vtep))
        })
    }

    /// IP addresses of this server that a daemon may not have read: of networks in which it has begun to say VTEPs.
    /// Zebra of FRR 8 reads the neighbours that are there only in its own namespace, and not in those of VRFs.
    pub(in crate::routers) fn take_unread(&mut self) -> Vec<(u32, IpAddr, MacAddr)> {
        let new =
            self.all.iter_mut().filter_map(|table| std::mem::take(&mut table.has_new_vtep).then_some(table));
        let hosts = |table: &mut Table| {
            let bridge = table.devices.bridge;
            let all = table.hosts.local().iter().map(move |(address, mac)| (bridge, *address, *mac));
            all.collect::<Vec<_>>()
        };
        new.flat_map(hosts).collect()
    }

    /// What the kernel has of this server's addresses, by network.
    pub(in crate::routers) fn locals(&self) -> impl Iterator<Item = LocalEntries<'_>> {
        self.all.iter().map(|table| LocalEntries {
            port: table.network.port,
            devices: table.devices,
            macs: &table.local,
            hosts: table.hosts.local(),
        })
    }
}
