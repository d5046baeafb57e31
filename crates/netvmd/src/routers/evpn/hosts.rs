// SPDX-License-Identifier: Apache-2.0
//! IP addresses of hosts in a network, as neighbours of the kernel's bridge. Those behind other servers a routing
//! daemon writes (type 2 with an IP address): they go to the engine, which answers requests for them. Those of this
//! server netvmd writes, and the daemon announces them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_netlink::{Event, Requests};
use netvm_wire::MacAddr;

use super::attributes::{ip, mac_of};

/// A neighbour of a bridge, or that there is none with this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routers) struct HostEntry {
    pub(super) device: u32,
    address: IpAddr,
    host: Option<Known>,
}

/// Who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A host behind another server, by a routing daemon.
    Remote(MacAddr),
    /// A host of this server, by netvmd.
    Local(MacAddr),
}

impl HostEntry {
    /// The entry that an event is about.
    pub(in crate::routers) fn of_event(event: &Event) -> Option<Self> {
        match event {
            Event::Message(_, RouteNetlinkMessage::NewNeighbour(message)) => Self::of(message),
            Event::Message(_, RouteNetlinkMessage::DelNeighbour(message)) => {
                Some(Self { host: None, ..Self::of(message)? })
            }
            _ => None,
        }
    }

    fn of(message: &NeighbourMessage) -> Option<Self> {
        let header = &message.header;
        let is_ip = matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6);
        if !is_ip || header.flags.contains(NeighbourFlags::Proxy) {
            return None;
        }
        let address = message.attributes.iter().find_map(|one| match one {
            NeighbourAttribute::Destination(address) => ip(address),
            _ => None,
        })?;
        let mac = mac_of(message).filter(|mac| !mac.is_multicast());
        let host = mac.and_then(|mac| match header.state {
            _ if header.flags.contains(NeighbourFlags::ExtLearned) => Some(Known::Remote(mac)),
            NeighbourState::Permanent | NeighbourState::Noarp => Some(Known::Local(mac)),
            _ => None,
        });
        Some(Self { device: header.ifindex, address, host })
    }
}

/// Dumps the neighbours of all devices.
pub(super) fn dump(requests: &mut Requests) -> io::Result<Vec<HostEntry>> {
    let mut all = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        let dumped = requests.dump(&RouteNetlinkMessage::GetNeighbour(message), Vec::new, |all, message| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                all.extend(HostEntry::of(&message));
            }
        });
        match dumped {
            Ok(dumped) => all.extend(dumped),
            // A kernel without IPv6.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The hosts of a network, and what the engine has been told of them.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    remote: HashMap<IpAddr, MacAddr>,
    local: HashMap<IpAddr, MacAddr>,
    sent: HashMap<IpAddr, MacAddr>,
    /// Addresses that may have changed.
    dirty: HashSet<IpAddr>,
}

impl Hosts {
    pub(super) fn apply(&mut self, entry: HostEntry) {
        let address = entry.address;
        self.remote.remove(&address);
        self.local.remove(&address);
        match entry.host {
            Some(Known::Remote(mac)) => drop(self.remote.insert(address, mac)),
            Some(Known::Local(mac)) => drop(self.local.insert(address, mac)),
            None => {}
        }
        self.dirty.insert(address);
    }

    /// Forgets what the kernel has, before a dump.
    pub(super) fn clear(&mut self) {
        self.dirty.extend(self.sent.keys());
        self.remote.clear();
        self.local.clear();
    }

    /// What has changed for the engine.
    pub(super) fn updates(&mut self) -> Vec<(IpAddr, Option<MacAddr>)> {
        let mut all = Vec::new();
        for address in std::mem::take(&mut self.dirty) {
            let now = self.remote.get(&address).copied();
            let before = match now {
                Some(mac) => self.sent.insert(address, mac),
                None => self.sent.remove(&address),
            };
            if now != before {
                all.push((address, now));
            }
        }
        all
    }

    /// Those of this server that the kernel has.
    pub(super) const fn local(&self) -> &HashMap<IpAddr, MacAddr> {
        &self.local
    }

    /// The neighbour of a bridge that says where an address of this server is.
    pub(super) fn entry(device: u32, address: IpAddr, mac: Option<MacAddr>) -> NeighbourMessage {
        Self::entry_with(NeighbourState::Permanent, device, address, mac)
    }

    /// The same with another state: a change of which the kernel tells everybody.
    pub(super) fn changed_entry(device: u32, address: IpAddr, mac: MacAddr) -> NeighbourMessage {
        Self::entry_with(NeighbourState::Noarp, device, address, Some(mac))
    }

    fn entry_with(
        state: NeighbourState,
        device: u32,
        address: IpAddr,
        mac: Option<MacAddr>,
    ) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.ifindex = device;
        message.header.state = state;
        message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(address)));
        message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())));
        message
    }
}
