// SPDX-License-Identifier: Apache-2.0
//! Virtual routers. In: packets for a router. Out: by the next hop's port, to the kernel by a punt port, or dropped.
//!
//! ```text
//!  by a punt port ──▶ tag ──▶ out of the interface's port
//!  by any other ──▶ decided by the tables (`worker/router`) ──▶ out of the next hop's port
//!                       └─ share of its class ──▶ tag off ──▶ punt port
//! ```
//!
//! A port that several routers share, untagged or in one VLAN, is divided by MAC address, as by macvlan: a comparison
//! for each packet, and for a packet to a group a copy for each further router, within the share of the packet's class.
//!
//! For the cost see [`router`](crate::worker::router).

use dpdk::Mbuf;
use netvm_model::RouterId;
use netvm_wire::{EtherType, MacAddr};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::router::{Ingress, PuntReason, RouterPath};
use crate::worker::next::{Dispatch, Next, PuntBy, Step, ToGroup};
use crate::worker::packet::keys::key_of;
use crate::worker::router::{PuntCause, Redirects, RouteVerdict, RouterBurst, counters_of, reason_of};
use crate::worker::state::burst::Context;
use crate::worker::tx::copy::copies_for;

/// Sends packets to a router, or to the routers that share its port.
#[inline]
pub(crate) fn enter(cx: Context<'_>, from: PortId, router: RouterId) -> Next {
    let Some(path) = cx.snapshot.router(router) else {
        return Next::drop_at(from, DropReason::NoRouterInterface);
    };
    let interfaces_here = path.on(from);
    if interfaces_here.shared.is_some() {
        Next::RouterShared { from, router }
    } else if !interfaces_here.is_empty() {
        alone(path, from)
    } else if path.punted_by(from).is_some() {
        Next::FromKernel { from, router }
    } else {
        Next::drop_at(from, DropReason::NoRouterInterface)
    }
}

/// Sends packets to this router, for which all are: first to its VTEPs.
#[inline(always)]
fn alone(path: &RouterPath, from: PortId) -> Next {
    let router = path.id;
    if path.tunnels.are_there() {
        Next::TunnelEnd { from, router }
    } else {
        Next::RouterAlone { from, router }
    }
}

/// Finds the router for each packet of a port that several share, by its MAC address. Packets for a group go to all.
pub(crate) fn share(burst: &mut Dispatch<'_>, from: PortId, router: RouterId) -> Step {
    let Dispatch { cx, batch, split, .. } = burst;
    let Some(shared) = cx.snapshot.router(router).and_then(|router| router.on(from).shared) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let (to, vlan) = address_of(mbuf);
        *next = if to.is_multicast() {
            Next::RouterGroup(ToGroup { from, router, vlan, nth: 0 })
        } else {
            let owner = shared.owner(vlan, to).unwrap_or(router);
            cx.snapshot.router(owner).map_or(Next::RouterAlone { from, router }, |path| alone(path, from))
        };
    }
    Step::Each
}

/// The MAC address that a packet goes to, and its VLAN (0: none).
fn address_of(mbuf: &Mbuf) -> (MacAddr, u16) {
    let mut front = [0; 18];
    mbuf.copy_to(&mut front);
    let [a, b, c, d, e, f, .., kind_high, kind_low, tag_high, tag_low, _, _] = front;
    let is_tagged = EtherType(u16::from_be_bytes([kind_high, kind_low])).is_vlan();
    let vlan = if is_tagged { u16::from_be_bytes([tag_high, tag_low]) & 0x0fff } else { 0 };
    (MacAddr([a, b, c, d, e, f]), vlan)
}

/// Gives the kernel of the next of the other routers on a shared port a copy of packets for a group, as far as the
/// share of their class allows: without room in it, there is no copy.
#[cold]
pub(crate) fn copy_to_others(burst: &mut Dispatch<'_>, group: ToGroup) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let ToGroup { from, router, vlan, nth } = group;
    let shared = cx.snapshot.router(router).and_then(|router| router.on(from).shared);
    let Some((other, n)) = shared.and_then(|shared| shared.interfaces(vlan).nth(nth.into())) else {
        return Step::All(Next::RouterAlone { from, router });
    };
    let then = Next::RouterGroup(ToGroup { nth: nth + 1, ..group });
    let path = if other == router { None } else { cx.snapshot.router(other) };
    let Some((path, interface)) = path.and_then(|path| Some((path, path.interface(n)?))) else {
        return Step::All(then);
    };
    if interface.ingress.has(Ingress::DOWN) {
        return Step::All(then);
    }
    let received = counters_of(interface, &dp.counters);
    let cause = PuntCause::Headers(PuntReason::Group);
    let is_tagged = vlan != 0 || interface.vlan.is_some();
    let by = PuntBy { router: other, interface: n, is_tagged };
    for mbuf in batch.as_slice() {
        let reason = reason_of(cause, || key_of(mbuf).ok(), &path.tables);
        received.rx_packets.add(1);
        received.rx_bytes.add(u64::from(mbuf.pkt_len()));
        if dp.is_dry || interface.punts.of(reason.class()).admit(dp.clock.now, mbuf.pkt_len()) {
            let mut copy = copies_for(dp, interface.punt, cx.memory, std::slice::from_ref(mbuf));
            if !dp.is_dry {
                interface.punts.count(reason, copy.len(), 0);
            }
            split.copies.append(&mut copy);
        } else {
            interface.punts.count(reason, 0, 1);
            dp.port_context(from).note_drop(DropReason::PuntQuota, mbuf);
        }
    }
    Step::Copies(Next::Kernel { from, by, reason: PuntReason::Group }, then)
}

/// Routes packets, all of whose port is the router's own, or that are for it.
#[inline]
pub(crate) fn route(burst: &mut Dispatch<'_>, from: PortId, router: RouterId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some(path) = cx.snapshot.router(router) else {
        return Step::All(Next::drop_at(from, DropReason::NoRouterInterface));
    };
    let interfaces_here = path.on(from);
    // Always present: the lookup calls no other stage.
    let mut decided = dp.router_burst.take().unwrap_or_else(|| Box::new(RouterBurst::new()));
    let limit = Some(&dp.limits.redirects).filter(|_| !dp.is_dry);
    let mut redirects = Redirects { limit, now: dp.clock.now };
    let is_uniform = decided.decide(path, interfaces_here, &mut redirects, batch);
    decided.count(path, batch, is_uniform && interfaces_here.is_one(), &dp.counters);
    let next_of = |verdict: RouteVerdict| match verdict {
        RouteVerdict::Out { port, .. } => Next::Forwarded { router, out: port },
        RouteVerdict::Punt { interface, tagged, cause } => {
            Next::Punt { from, by: PuntBy { router, interface, is_tagged: tagged }, cause }
        }
        RouteVerdict::Drop(reason) => Next::drop_at(from, reason),
    };
    let step = if is_uniform {
        Step::All(next_of(decided.verdicts[0]))
    } else {
        for (next, verdict) in split.nexts.iter_mut().zip(&decided.verdicts[..batch.len()]) {
            *next = next_of(*verdict);
        }
        Step::Each
    };
    dp.router_burst = Some(decided);
    step
}
