// SPDX-License-Identifier: Apache-2.0
//! Tunnels (VXLAN, RFC 7348). In: packets that a port of a tunnel sends; packets that a router receives, for one of its
//! VTEPs. Out: by the router's next hop to the remote VTEP, behind outer headers; received by the port of the tunnel,
//! without them.
//!
//! ```text
//!  Tx of the port ─▶ PushHeaders ─┬─▶ Encapsulate ─▶ Forwarded ─▶ out of the next hop's port
//!                                 └─▶ EncapsulateAll (a copy for each VTEP) ─▶ Encapsulate
//!  Router ─▶ TunnelEnd ─┬─▶ PopHeaders ─▶ Rx of the port
//!                       └─▶ RouterAlone: what is for no VTEP
//! ```
//!
//! With EVPN, `PushHeaders` turns a request of ARP or neighbour discovery into its answer: `Rx` of the port.
//!
//! Offloads stay pending through the tunnel: a segment gets one outer header, and is cut where it leaves by a device.

mod neighbours;
mod pop;
mod push;

pub(crate) use pop::{divide, has_joined, pop};
pub(crate) use push::{choose, encapsulate, encapsulate_for_next};

use crate::ids::{PortId, RouterId};
use crate::router::{RouterPath, Tunnel};
use crate::snapshot::Snapshot;

/// The router of a tunnel, and the tunnel.
fn tunnel_of(snapshot: &Snapshot, port: PortId, router: RouterId) -> Option<(&RouterPath, &Tunnel)> {
    let path = snapshot.router(router)?;
    Some((path, path.tunnels.of_port(port)?))
}
