// SPDX-License-Identifier: Apache-2.0
//! One followed router: its sockets, its RIB, and what is due.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_engine::PortId;
use netvm_model::RouterId;
use netvm_netlink::{Event, ReadOutcome};

use super::{NetlinkSockets, ROUND_INTERVAL, ToFollow};
use crate::engine_thread::EngineHandle;
use crate::routers::evpn::{self, Devices, FdbEntry, HostEntry, Network, Tables, Wanted, Writer};
use crate::routers::kernel;
use crate::routers::rib::{Change, Peer, Rib};

/// Most datagrams read from one router before the next router's turn.
const MAX_DATAGRAMS: usize = 256;
/// Most updates that the engine may have pending; later changes are merged into one update.
const MAX_PENDING: usize = 2;
/// Delay of a resynchronisation after an unclear change.
const RESYNC_DELAY: Duration = Duration::from_millis(20);
/// Resynchronisations take at most this fraction (1/n) of the time.
const SHARE: u32 = 10;
/// Interval at which a router is compared with a dump even without an event, in case the kernel lost one.
const COMPARISON: Duration = Duration::from_secs(60);
/// Such comparisons take at most this fraction (1/n) of the time.
const COMPARISON_SHARE: u32 = 500;
/// Interval between two probes of the same neighbour.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Most probes in a round.
const ROUND_PROBES: usize = 100;
/// Neighbours without an answer that stay in the kernel's table.
const MAX_FAILED: usize = 64;

/// A router's kernel, and what is known of it.
pub struct Followed {
    name: String,
    pub rib: Rib,
    pub sockets: NetlinkSockets,
    /// When to resynchronise.
    resync_at: Option<Instant>,
    /// Earliest time of the next resynchronisation.
    not_before: Instant,
    /// Events were lost, and not all that are queued have been read since. Until then the kernel drops more without
    /// saying so again (`NETLINK_S_CONGESTED`).
    is_congested: bool,
    /// When to compare with a dump even without an event.
    compare_at: Instant,
    /// Updates that the engine has not applied yet.
    pending: Arc<AtomicUsize>,
    asked: HashMap<Peer, Instant>,
    /// Addresses that the engine sends to by itself.
    pub targets: Vec<IpAddr>,
    /// Neighbours that did not answer, in this order.
    failed: VecDeque<Peer>,
    /// Its networks with EVPN.
    pub tables: Tables,
    writer: Writer,
    /// IP addresses that have come to other servers.
    departed: Vec<(PortId, IpAddr)>,
    /// What it last warned about: [`Rib::limitations`].
    warned: (Option<&'static str>, bool),
}

impl Followed {
    pub fn new(router: ToFollow) -> Self {
        let ToFollow { name, interfaces, sockets, .. } = router;
        let now = Instant::now();
        Self {
            name,
            rib: Rib::new(interfaces),
            sockets,
            resync_at: Some(now),
            not_before: now,
            is_congested: false,
            compare_at: now + COMPARISON,
            pending: Arc::default(),
            asked: HashMap::new(),
            targets: Vec::new(),
            failed: VecDeque::new(),
            tables: Tables::default(),
            writer: Writer::default(),
            departed: Vec::new(),
            warned: (None, false),
        }
    }

    /// When it has something to do without an event.
    pub fn due_at(&self) -> Option<Instant> {
        self.resync_at.into_iter().chain(self.expiry()).min()
    }

    /// When a route expires, after which a dump has the kernel's new state.
    fn expiry(&self) -> Option<Instant> {
        self.rib.expiry().map(|at| at.max(self.not_before))
    }

    /// Resynchronises with the kernel where that is due.
    pub fn keep_in_step(&mut self, now: Instant) {
        if now >= self.compare_at || self.due_at().is_some_and(|at| now >= at) {
            self.resync();
        }
    }

    /// Reads netlink events.
    pub fn read_events(&mut self) {
        let (rib, failed, tables) = (&mut self.rib, &mut self.failed, &mut self.tables);
        let (mut is_unclear, mut has_settings) = (false, false);
        let outcome = self.sockets.events.read(MAX_DATAGRAMS, |event| {
            has_settings |= event == Event::Setting;
            failed.extend(kernel::failed(&event));
            if !tables.is_empty() {
                FdbEntry::of_event(&event)
                    .into_iter()
                    .for_each(|(entry, changed)| tables.apply(entry, changed));
                HostEntry::of_event(&event).into_iter().for_each(|entry| tables.apply_host(entry));
            }
            if let Some(change) = kernel::event_change(event) {
                is_unclear |= rib.apply(change);
            }
        });
        if has_settings {
            self.read_settings();
        }
        self.remove_failed();
        match outcome {
            Ok(ReadOutcome::More) => {}
            // A dump from before may lack what was lost after it.
            Ok(ReadOutcome::All) => is_unclear |= std::mem::take(&mut self.is_congested),
            Ok(ReadOutcome::Lost) => {
                tracing::debug!("router {}: netlink events lost; resynchronising", self.name);
                (self.is_congested, is_unclear) = (true, true);
            }
            Err(error) => {
                tracing::warn!("router {}: cannot read netlink events: {error}", self.name);
                is_unclear = true;
            }
        }
        if is_unclear {
            self.resync_at.get_or_insert(self.not_before.max(Instant::now() + RESYNC_DELAY));
        }
    }

    /// Reads the settings of interfaces, of which not all have events.
    pub fn read_settings(&mut self) {
        // Failures: the next round tries again.
        let global = Change::Global(self.sockets.global.read());
        let links = kernel::links(&mut self.sockets.requests).unwrap_or_default();
        let is_unclear = links.into_iter().chain([global]).fold(false, |is_unclear, change| {
            // The links that are gone are in events.
            self.rib.apply(change) | is_unclear
        });
        if is_unclear {
            self.resync_at.get_or_insert(self.not_before.max(Instant::now() + RESYNC_DELAY));
        }
    }

    /// Removes neighbours that did not answer from the kernel's table, but for the last ones: those of a scan would
    /// take the place of others, because the kernel makes room by the age of entries.
    fn remove_failed(&mut self) {
        while self.failed.len() > MAX_FAILED {
            let Some(peer) = self.failed.pop_front() else { break };
            if self.rib.peer(peer).0.is_some() || self.failed.contains(&peer) {
                continue;
            }
            // It may be gone.
            let _ = self.sockets.requests.change(RouteNetlinkMessage::DelNeighbour(neighbour(peer)), 0);
        }
    }

    fn resync(&mut self) {
        let begin = Instant::now();
        self.resync_at = None;
        match kernel::everything(&mut self.sockets.requests) {
            Ok(all) => {
                self.rib.resync(all.into_iter().chain([Change::Global(self.sockets.global.read())]));
                self.resync_networks();
            }
            Err(error) => {
                tracing::warn!("router {}: cannot dump its routes: {error}", self.name);
                self.resync_at = Some(Instant::now() + ROUND_INTERVAL);
            }
        }
        let now = Instant::now();
        self.not_before = self.resync_at.unwrap_or(now + (now - begin) * SHARE);
        self.compare_at = now + COMPARISON.max((now - begin) * COMPARISON_SHARE);
    }

    /// Follows these networks, and no others.
    pub fn set_networks(&mut self, networks: Vec<(Network, Devices)>) {
        let place = |network: &Network| network.gate.map(|gate| gate.place);
        let gates = networks.iter().map(|(network, devices)| (devices.bridge, place(network)));
        self.rib.set_bridges(gates.collect());
        if self.tables.set(networks) {
            self.resync_networks();
        }
    }

    /// Compares its networks with the kernel's databases.
    fn resync_networks(&mut self) {
        if self.tables.is_empty() {
            return;
        }
        match evpn::dump(&mut self.sockets.requests) {
            Ok(dump) => self.tables.resync(dump),
            Err(error) => {
                tracing::warn!("router {}: cannot dump its forwarding databases: {error}", self.name);
                self.resync_at = Some(Instant::now() + ROUND_INTERVAL);
            }
        }
    }

    /// Whether the engine has applied all updates.
    pub fn is_in_step(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Begins to write the addresses of this host into the kernel's bridges.
    pub fn compare_local(&mut self, wanted: &Wanted) {
        self.writer.compare(wanted, &self.tables);
    }

    /// Goes on with it; true if it has not ended.
    pub fn write_local(&mut self) -> bool {
        self.writer.repeat(self.tables.take_unread());
        self.writer.write(&mut self.sockets.requests).unwrap_or_else(|error| {
            tracing::warn!("router {}: cannot write addresses into its bridges: {error}", self.name);
            false
        })
    }

    /// IP addresses that have come to other servers, since the last call.
    pub fn take_departed(&mut self) -> Vec<(PortId, IpAddr)> {
        std::mem::take(&mut self.departed)
    }

    /// Sends changes to the engine; false if the engine has too many pending.
    pub fn send_updates(&mut self, id: RouterId, engine: &EngineHandle) -> bool {
        if self.pending.load(Ordering::Acquire) > MAX_PENDING {
            return false;
        }
        if let Some(state) = self.rib.changed_state() {
            engine.send(move |engine| {
                // The router may just have been removed.
                let _ = engine.set_router_state(id, state);
            });
        }
        for update in self.rib.updates() {
            let pending = Arc::clone(&self.pending);
            pending.fetch_add(1, Ordering::AcqRel);
            engine.send(move |engine| {
                // The router may just have been removed.
                let _ = engine.update_router(id, update);
                pending.fetch_sub(1, Ordering::AcqRel);
            });
        }
        for update in self.tables.updates() {
            let remote = update.hosts.iter().filter(|(_, mac)| mac.is_some());
            self.departed.extend(remote.map(|(address, _)| (update.port, *address)));
            let (pending, name) = (Arc::clone(&self.pending), self.name.clone());
            pending.fetch_add(1, Ordering::AcqRel);
            engine.send(move |engine| {
                // The configuration may just have changed.
                let _ = engine.update_evpn(&update);
                let refused = engine.take_refused_addresses(update.port);
                if refused > 0 {
                    tracing::warn!(
                        "router {name}, VNI {}: no room for {refused} addresses of EVPN, which are flooded: raise `macs` of \
                         [switch] to twice as many as there are",
                        update.vni
                    );
                }
                pending.fetch_sub(1, Ordering::AcqRel);
            });
        }
        self.warn();
        true
    }

    fn warn(&mut self) {
        let (ruled, is_full) = self.rib.limitations();
        if let Some(families) = ruled.filter(|_| ruled != self.warned.0) {
            tracing::warn!(
                "router {}: policy routing rules other than the default ones: its kernel forwards all {families} packets, slowly",
                self.name
            );
        }
        if is_full && !self.warned.1 {
            tracing::warn!(
                "router {}: more gateways and neighbours than next hops; the kernel forwards packets for the rest",
                self.name
            );
        }
        self.warned = (ruled, is_full);
    }

    /// Warns about NAT in the namespace: it does not apply to packets that the engine forwards, and no counter would
    /// show this.
    pub fn look_for_nat(&mut self) {
        let Some(chains) = &mut self.sockets.nat_chains else { return };
        match chains.are_there() {
            Ok(has_nat) => {
                if self.rib.set_nat(has_nat) && has_nat {
                    tracing::warn!(
                        "router {}: its namespace has chains of type nat (nft or iptables): MASQUERADE and other NAT apply \
                        only to packets that its kernel forwards, not to packets that the engine forwards",
                        self.name
                    );
                }
            }
            Err(error) => {
                tracing::debug!("router {}: cannot look for NAT: {error}", self.name);
                self.sockets.nat_chains = None;
            }
        }
    }

    /// Makes the kernel resolve unknown gateways, targets and VTEPs, and confirm stale neighbours.
    pub fn probe_neighbours(&mut self, now: Instant, vteps: &[IpAddr]) {
        self.asked.retain(|_, at| now - *at < PROBE_INTERVAL);
        let due: Vec<Peer> = self
            .rib
            .neighbours_to_probe()
            .chain(self.targets.iter().chain(vteps).filter_map(|target| self.rib.to_resolve(*target)))
            .filter(|peer| !self.asked.contains_key(peer))
            .take(ROUND_PROBES)
            .collect();
        for peer in due {
            self.asked.insert(peer, now);
            let mut message = neighbour(peer);
            // The kernel acts as if it sent a packet to the neighbour (NTF_USE of linux/neighbour.h).
            message.header.flags = NeighbourFlags::Use;
            if let Err(error) =
                self.sockets.requests.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)
            {
                tracing::debug!("router {}: cannot probe {}: {error}", self.name, peer.1);
            }
        }
    }
}

/// A message about a neighbour.
fn neighbour((index, address): Peer) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(address)));
    message
}
