// SPDX-License-Identifier: Apache-2.0
//! Flows between interfaces of one router. In: a key, and the router's tables. Out: how its packets leave, if the
//! kernel can forward them as workers do. Asked when a flow is decided, and again when tables or interfaces change: a
//! flow for which the answer is another one then ends, and the others go on.
//!
//! Not for the kernel: routers with tunnels or reverse path checks, ports that routers share, VLANs, several next hops.

use std::net::IpAddr;
use std::sync::Arc;

use netvm_kernel_flows::{Key, Transport};
use netvm_model::RouterId;
use netvm_router::{Hop, NextHop, NextHopId, Tables};
use netvm_wire::MacAddr;

use crate::ids::PortId;
use crate::router::{Ingress, RouterPath};

/// How the packets of a flow leave a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Routed {
    pub(super) router: RouterId,
    /// Of the packets as the router gets them.
    key: Key,
    /// The port that they leave by.
    pub(super) to: PortId,
    /// Their MAC addresses then, destination first.
    pub(super) macs: [MacAddr; 2],
    /// Longest IP packet.
    pub(super) mtu: u32,
    /// The punt ports of both interfaces, which have their counters: that which receives, and that which sends.
    pub(super) punts: [PortId; 2],
}

/// The routers, by number.
pub(super) type Paths = [Option<Arc<RouterPath>>];

/// How packets of a key leave that a port of a router has received; `None`: not by the kernel.
pub(super) fn route(path: &RouterPath, from: PortId, key: &Key) -> Option<Routed> {
    const UNTAGGED: u16 = 0;
    let Transport { source, destination, .. } = key.transport();
    let is_v4 = destination.is_ipv4();
    let [checks_v4, checks_v6] = path.checks_sources;
    if path.tunnels.are_there() || if is_v4 { checks_v4 } else { checks_v6 } {
        return None;
    }
    let here = path.on(from);
    let number = here.with(UNTAGGED).filter(|_| here.shared.is_none())?;
    let received = path.interface(number)?;
    let punts = if is_v4 { Ingress::PUNTS_V4 } else { Ingress::PUNTS_V6 };
    let refused = [Ingress::DOWN, Ingress::ENSLAVED, punts].iter().any(|flag| received.ingress.has(*flag));
    let [to, _] = key.macs();
    let is_martian = matches!(source, IpAddr::V4(source) if path.own.have(source.to_bits()));
    if refused || is_martian || received.mac != to && !received.also.contains(&to) {
        return None;
    }
    let hop = hop_of(&path.tables, destination)?;
    let sent = path.interface(hop.interface).filter(|sent| sent.vlan.is_none())?;
    Some(Routed {
        router: path.id,
        key: *key,
        to: sent.port,
        macs: [hop.mac, sent.mac],
        mtu: sent.mtu(is_v4),
        punts: [received.punt, sent.punt],
    })
}

/// The only next hop of a destination.
fn hop_of(tables: &Tables, destination: IpAddr) -> Option<Hop> {
    let mut found = [NextHopId::PUNT];
    match destination {
        IpAddr::V4(address) => tables.lookup_v4(&[address.to_bits()], &mut found),
        IpAddr::V6(address) => tables.lookup_v6(&[address.octets()], &mut found),
    }
    match tables.next_hop(found[0]) {
        NextHop::Via(hop) => Some(*hop),
        NextHop::Punt | NextHop::Glean(_) | NextHop::Blackhole | NextHop::Ecmp(_) => None,
    }
}

/// Whether a flow still leaves its router as it did when it was decided.
pub(super) fn leaves_so(routed: &Routed, paths: &Paths, from: PortId) -> bool {
    let path = paths.get(routed.router.index()).and_then(Option::as_ref);
    path.and_then(|path| route(path, from, &routed.key)) == Some(*routed)
}
