//! Addresses behind ports of this host. In: what L2 switching learns. Out: entries of the kernel's bridge, by which a
//! routing daemon announces them to other servers (type 2).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_engine::{LocalAddresses, PortId};
use netvm_netlink::Requests;
use netvm_wire::MacAddr;

use super::Tables;

/// Interval at which changes of the switch's database are looked for.
pub(in crate::routers) const INTERVAL: Duration = Duration::from_millis(20);
/// Reading the database takes at most this fraction (1/n) of the time.
const SHARE: u32 = 20;
/// Most entries that one turn writes: a few microseconds each.
const TURN: usize = 500;

/// What L2 switching has learned.
#[derive(Debug, Default)]
pub(in crate::routers) struct Local {
    addresses: Option<LocalAddresses>,
    /// [`LocalAddresses::changes`] of the last look.
    seen: Option<u32>,
    not_before: Option<Instant>,
}

/// The addresses of each network, by its port.
pub(in crate::routers) type Wanted = HashMap<PortId, HashSet<MacAddr>>;

impl Local {
    /// Reads another database from now on.
    pub(in crate::routers) fn set(&mut self, addresses: Option<LocalAddresses>) {
        *self = Self { addresses, ..Self::default() };
    }

    /// What there is, if that has changed. Call it when the engine has applied all updates: an address that another
    /// server has now would still be one of this host.
    pub(in crate::routers) fn look(&mut self, now: Instant) -> Option<Wanted> {
        let addresses = self.addresses.as_ref()?;
        // Read before the database, so that what changes meanwhile is seen the next time.
        let changes = addresses.changes();
        if self.seen == Some(changes) || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let mut wanted = Wanted::new();
        for (port, mac) in addresses.learned() {
            wanted.entry(port).or_default().insert(mac);
        }
        self.seen = Some(changes);
        let end = Instant::now();
        self.not_before = Some(end + (end - now) * SHARE);
        Some(wanted)
    }
}

/// What is to be written into the kernel's bridges of one namespace.
#[derive(Debug, Default)]
pub(in crate::routers) struct Writer {
    queue: VecDeque<(u32, MacAddr, bool)>,
}

impl Writer {
    /// Finds what differs from what the kernel has.
    pub(in crate::routers) fn compare(&mut self, wanted: &Wanted, tables: &Tables) {
        self.queue.clear();
        for (port, device, there) in tables.locals() {
            let none = HashSet::new();
            let wanted = wanted.get(&port).unwrap_or(&none);
            self.queue.extend(there.difference(wanted).map(|mac| (device, *mac, false)));
            self.queue.extend(wanted.difference(there).map(|mac| (device, *mac, true)));
        }
    }

    /// Writes some; true if more is left.
    ///
    /// # Errors
    /// The kernel's last error.
    pub(in crate::routers) fn write(&mut self, requests: &mut Requests) -> io::Result<bool> {
        let mut failed = None;
        for _ in 0..TURN {
            let Some((device, mac, is_there)) = self.queue.pop_front() else { break };
            let outcome = match is_there {
                true => requests.change(
                    RouteNetlinkMessage::NewNeighbour(entry(device, mac)),
                    NLM_F_CREATE | NLM_F_REPLACE,
                ),
                false => requests.change(RouteNetlinkMessage::DelNeighbour(entry(device, mac)), 0),
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
