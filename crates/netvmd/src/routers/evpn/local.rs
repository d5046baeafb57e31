// SPDX-License-Identifier: Apache-2.0
//! Addresses behind ports of this host. In: what L2 switching learns, and what hosts say of their IP addresses. Out:
//! entries of the kernel's bridge and neighbours, by which a routing daemon announces them to other servers (type 2).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_engine::{HostAddress, LocalAddresses, PortId};
use netvm_netlink::Requests;
use netvm_wire::MacAddr;

use super::Tables;
use super::fdb::LocalEntries;
use super::hosts::Hosts;

/// Interval at which changes of the switch's database are looked for.
pub(in crate::routers) const INTERVAL: Duration = Duration::from_millis(20);
/// Reading the database takes at most this fraction (1/n) of the time.
const SHARE: u32 = 20;
/// Most entries that one turn writes: a few microseconds each.
const TURN: usize = 500;

/// How long entries of an earlier netvmd stay if L2 switching does not learn their addresses: hosts that only answer
/// send nothing until somebody reaches them. It is as long as such an address has stayed before (`mac_age`).
const INHERITANCE: Duration = Duration::from_secs(300);
/// Most IP addresses that a MAC address may have: one that claims any number gets no others announced.
const MAX_CLAIMS: usize = 64;

/// What L2 switching has learned, and what hosts say.
#[derive(Debug, Default)]
pub(in crate::routers) struct Local {
    addresses: Option<LocalAddresses>,
    /// [`LocalAddresses::changes`] of the last look.
    seen: Option<u32>,
    not_before: Option<Instant>,
    macs: HashMap<PortId, HashSet<MacAddr>>,
    claims: HashMap<PortId, Claims>,
    /// Claims have changed since the last look.
    has_new_claims: bool,
    /// When to look again whether something has changed or not: entries of an earlier netvmd have no time left.
    again_at: Option<Instant>,
}

/// The IP addresses of a network's hosts, by what they have last said.
#[derive(Debug, Default)]
struct Claims {
    by_address: HashMap<IpAddr, MacAddr>,
    by_mac: HashMap<MacAddr, HashSet<IpAddr>>,
}

impl Claims {
    /// Returns whether something has changed.
    fn add(&mut self, address: IpAddr, mac: MacAddr) -> bool {
        let of_mac = self.by_mac.entry(mac).or_default();
        if of_mac.len() >= MAX_CLAIMS || !of_mac.insert(address) {
            return false;
        }
        if let Some(before) = self.by_address.insert(address, mac) {
            self.drop_one(address, before);
        }
        true
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(mac) = self.by_address.remove(&address) {
            self.drop_one(address, mac);
        }
    }

    fn drop_one(&mut self, address: IpAddr, mac: MacAddr) {
        if let Some(of_mac) = self.by_mac.get_mut(&mac) {
            of_mac.remove(&address);
            if of_mac.is_empty() {
                self.by_mac.remove(&mac);
            }
        }
    }

    /// Forgets those of hosts that are no longer here.
    fn keep_only(&mut self, macs: Option<&HashSet<MacAddr>>) {
        let is_here = |mac: &MacAddr| macs.is_some_and(|macs| macs.contains(mac));
        self.by_mac.retain(|mac, _| is_here(mac));
        self.by_address.retain(|_, mac| is_here(mac));
    }
}

/// The addresses of each network, by its port.
pub(in crate::routers) type Wanted = HashMap<PortId, WantedEntries>;

/// The addresses of a network's hosts.
#[derive(Debug, Default)]
pub(in crate::routers) struct WantedEntries {
    pub(super) macs: HashSet<MacAddr>,
    pub(super) hosts: HashMap<IpAddr, MacAddr>,
}

impl Local {
    /// Reads another database from now on.
    pub(in crate::routers) fn set(&mut self, addresses: Option<LocalAddresses>) {
        let again_at = Some(Instant::now() + INHERITANCE);
        *self = Self { addresses, again_at, ..Self::default() };
    }

    /// Notes that an address is behind another server now: its host here has it no longer, unless it says so again.
    pub(in crate::routers) fn forget(&mut self, port: PortId, address: IpAddr) {
        if let Some(claims) = self.claims.get_mut(&port) {
            claims.forget(address);
        }
    }

    /// What there is, if that has changed. Call it when the engine has applied all updates: an address that another
    /// server has now would still be one of this host.
    pub(in crate::routers) fn look(&mut self, now: Instant) -> Option<Wanted> {
        let addresses = self.addresses.as_ref()?;
        for (port, address, mac) in addresses.take_claims() {
            self.has_new_claims |= self.claims.entry(port).or_default().add(address, mac);
        }
        // Read before the database, so that what changes meanwhile is seen the next time.
        let changes = addresses.changes();
        if self.again_at.take_if(|at| now > *at).is_some() {
            self.seen = None;
        }
        let is_due = self.not_before.is_none_or(|at| now >= at);
        if self.seen != Some(changes) && is_due {
            self.macs.clear();
            for (port, mac) in addresses.learned() {
                self.macs.entry(port).or_default().insert(mac);
            }
            self.seen = Some(changes);
            let end = Instant::now();
            self.not_before = Some(end + (end - now) * SHARE);
            for (port, claims) in &mut self.claims {
                claims.keep_only(self.macs.get(port));
            }
        } else if !self.has_new_claims {
            return None;
        }
        self.has_new_claims = false;
        Some(wanted(&self.macs, &self.claims, addresses.configured()))
    }
}

/// What the kernel has to have: IP addresses of hosts that are there.
fn wanted(
    macs: &HashMap<PortId, HashSet<MacAddr>>,
    claims: &HashMap<PortId, Claims>,
    configured: &[HostAddress],
) -> Wanted {
    let entries = |(port, macs): (&PortId, &HashSet<MacAddr>)| {
        let claims = claims.get(port).into_iter().flat_map(|claims| &claims.by_address);
        let configured =
            configured.iter().filter(|(of, ..)| of == port).map(|(_, address, mac)| (address, mac));
        let all = configured.chain(claims).filter(|(_, mac)| macs.contains(mac));
        let hosts = all.map(|(address, mac)| (*address, *mac)).collect();
        (*port, WantedEntries { macs: macs.clone(), hosts })
    };
    macs.iter().map(entries).collect()
}

/// What is to be written into the kernel's bridges of one namespace.
#[derive(Debug)]
pub(in crate::routers) struct Writer {
    queue: VecDeque<(NeighbourMessage, bool)>,
    own: OwnEntries,
    inherits_until: Option<Instant>,
}

/// Entries that this netvmd has wanted, by the index of their device. Those of an earlier one stay for a while.
#[derive(Debug, Default)]
struct OwnEntries {
    macs: HashSet<(u32, MacAddr)>,
    hosts: HashSet<(u32, IpAddr)>,
}

impl Default for Writer {
    fn default() -> Self {
        let inherits_until = Some(Instant::now() + INHERITANCE);
        Self { queue: VecDeque::new(), own: OwnEntries::default(), inherits_until }
    }
}

impl Writer {
    /// Finds what differs from what the kernel has.
    pub(in crate::routers) fn compare(&mut self, wanted: &Wanted, tables: &Tables) {
        self.queue.clear();
        if self.inherits_until.take_if(|at| Instant::now() >= *at).is_some() {
            self.own = OwnEntries::default();
        }
        for there in tables.locals() {
            let none = WantedEntries::default();
            self.compare_network(wanted.get(&there.port).unwrap_or(&none), &there);
        }
    }

    fn compare_network(&mut self, wanted: &WantedEntries, there: &LocalEntries<'_>) {
        let (local, bridge) = (there.devices.local, there.devices.bridge);
        let inherits = self.inherits_until.is_some();
        let OwnEntries { macs, hosts } = &mut self.own;
        if inherits {
            macs.extend(wanted.macs.iter().map(|mac| (local, *mac)));
            hosts.extend(wanted.hosts.keys().map(|address| (bridge, *address)));
        }
        let gone = there.hosts.keys().filter(|address| !wanted.hosts.contains_key(address));
        let gone = gone.filter(|address| !inherits || hosts.contains(&(bridge, **address)));
        self.queue.extend(gone.map(|address| (Hosts::entry(bridge, *address, None), false)));
        let gone = there.macs.difference(&wanted.macs);
        let gone = gone.filter(|mac| !inherits || macs.contains(&(local, **mac)));
        self.queue.extend(gone.map(|mac| (entry(local, *mac), false)));
        self.queue.extend(wanted.macs.difference(there.macs).map(|mac| (entry(local, *mac), true)));
        let new = wanted.hosts.iter().filter(|(address, mac)| there.hosts.get(address) != Some(mac));
        self.queue.extend(new.map(|(address, mac)| (Hosts::entry(bridge, *address, Some(*mac)), true)));
    }

    /// Has the kernel tell daemons again of hosts.
    pub(in crate::routers) fn repeat(&mut self, hosts: Vec<(u32, IpAddr, MacAddr)>) {
        for (bridge, address, mac) in hosts {
            self.queue.push_back((Hosts::changed_entry(bridge, address, mac), true));
            self.queue.push_back((Hosts::entry(bridge, address, Some(mac)), true));
        }
    }

    /// Writes some; true if more is left.
    ///
    /// # Errors
    /// The kernel's last error.
    pub(in crate::routers) fn write(&mut self, requests: &mut Requests) -> io::Result<bool> {
        let mut failed = None;
        for _ in 0..TURN {
            let Some((entry, is_there)) = self.queue.pop_front() else { break };
            let outcome = match is_there {
                true => {
                    requests.change(RouteNetlinkMessage::NewNeighbour(entry), NLM_F_CREATE | NLM_F_REPLACE)
                }
                false => requests.change(RouteNetlinkMessage::DelNeighbour(entry), 0),
            };
            match outcome {
                // It has come to another port meanwhile.
                Err(error) if !is_there && error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => failed = Some(error),
                Ok(()) => {}
            }
        }
        failed.map_or(Ok(!self.queue.is_empty()), Err)
    }
}

/// The bridge's entry of an address, which does not age: the engine's does.
fn entry(device: u32, mac: MacAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = device;
    message.header.state = NeighbourState::Noarp;
    message.header.flags = NeighbourFlags::Controller;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    message
}
