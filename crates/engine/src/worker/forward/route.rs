//! Virtual routers. In: packets for a router. Out: by the next hop's port, to the kernel by a punt port, or dropped.
//!
//! ```text
//!  by a punt port ──▶ tag ──▶ out of the interface's port
//!  by any other ──▶ decided by the tables (`worker/router`) ──▶ out of the next hop's port
//!                       └─ share of its class ──▶ tag off ──▶ punt port
//! ```
//!
//! A port that several routers share, untagged or in one VLAN, is divided by MAC address, as by macvlan: about 10 cycles a packet
//! more, and for a packet to a group a copy for each further router, within the share of the packet's class.
//!
//! Packets with the same verdict are sent together, in order. For the cost see [`router`](crate::worker::router).

use dpdk::{Batch, Mbuf};
use netvm_model::{RouterId, SetVlan};
use netvm_tap::Direction;
use netvm_wire::{EtherType, MacAddr};

use super::egress::send_out;
use crate::drop_reason::DropReason;
use crate::router::{Ingress, InterfacePath, PuntReason, RouterPath, SharedPort, UnresolvedLimit};
use crate::worker::act::police::limit;
use crate::worker::act::vlan::{retag_all, set_vlan};
use crate::worker::packet::keys::key_of;
use crate::worker::packet::retag::{Retag, retag};
use crate::worker::packet::runs::groups;
use crate::worker::router::{
    PuntCause, Redirects, RouteVerdict, RouterBurst, counters_of, destination_hash, reason_of, source_hash,
};
use crate::worker::state::burst::Origin;
use crate::worker::state::{BURST, Datapath};
use crate::worker::tx::copy::copies_for;

/// A router, and the origin of its packets.
#[derive(Clone, Copy)]
struct Routed<'a> {
    router: &'a RouterPath,
    origin: Origin<'a>,
}

/// Sends packets through a virtual router; the batch is empty afterwards.
pub(crate) fn route(dp: &mut Datapath, origin: Origin<'_>, router: RouterId, batch: &mut Batch) {
    let Some(router) = origin.cx.snapshot.router(router) else {
        return dp.drop_at_port(origin.port, DropReason::NoRouterInterface, batch);
    };
    if let Some(shared) = router.on(origin.port).shared {
        return route_shared(dp, Routed { router, origin }, shared, batch);
    }
    route_here(dp, Routed { router, origin }, batch);
}

/// Sends packets of a port that several routers share to the routers that they are for; packets for a group go to all.
#[inline(never)]
fn route_shared(dp: &mut Datapath, routed: Routed<'_>, shared: &SharedPort, batch: &mut Batch) {
    let Routed { router, origin } = routed;
    let mut owners = [router.id; BURST];
    for (owner, mbuf) in owners.iter_mut().zip(batch.as_slice()) {
        let (to, vlan) = address_of(mbuf);
        if !to.is_multicast() {
            *owner = shared.owner(vlan, to).unwrap_or(router.id);
            continue;
        }
        for (other, n) in shared.interfaces(vlan) {
            let other = if other == router.id { None } else { origin.cx.snapshot.router(other) };
            if let Some(other) = other {
                copy_to(dp, Routed { router: other, origin }, n, mbuf);
            }
        }
    }
    groups(
        batch,
        |n| owners[n],
        |owner, batch| match origin.cx.snapshot.router(owner) {
            Some(router) => route_here(dp, Routed { router, origin }, batch),
            None => dp.drop_at_port(origin.port, DropReason::NoRouterInterface, batch),
        },
    );
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

/// Punts a copy of a packet for a group by one interface of a router, as far as the share of its class allows: without room in
/// it, there is no copy.
#[cold]
fn copy_to(dp: &mut Datapath, routed: Routed<'_>, n: u16, mbuf: &Mbuf) {
    let Routed { router, origin } = routed;
    let Some(interface) = router.interface(n) else { return };
    if interface.ingress.has(Ingress::DOWN) {
        return;
    }
    let reason = reason_of(PuntCause::Headers(PuntReason::Group), || key_of(mbuf).ok(), &router.tables);
    let received = counters_of(interface, &dp.counters);
    let tagged = address_of(mbuf).1 != 0 || interface.vlan.is_some();
    received.rx_packets.add(1);
    received.rx_bytes.add(u64::from(mbuf.pkt_len()));
    if !interface.punts.of(reason.class()).admit(dp.clock.now, mbuf.pkt_len()) {
        interface.punts.count(reason, 0, 1);
        return dp.port_context(origin.port).note_drop(DropReason::PuntQuota, mbuf);
    }
    let mut copies = copies_for(dp, interface.punt, origin.cx.memory, std::slice::from_ref(mbuf));
    interface.punts.count(reason, copies.len(), 0);
    give(dp, routed, Punt { interface, tagged, cause: PuntCause::Of(reason) }, &mut copies);
}

/// Sends packets through one router, all of whose port is its own, or that are for it.
#[inline(always)]
fn route_here(dp: &mut Datapath, routed: Routed<'_>, batch: &mut Batch) {
    let Routed { router, origin } = routed;
    let here = router.on(origin.port);
    if here.is_empty() {
        dp.tap_router(router.id, Direction::FromKernel, batch);
        return match router.punted_by(origin.port) {
            Some(interface) => send_for_kernel(dp, routed, interface, batch),
            None => dp.drop_at_port(origin.port, DropReason::NoRouterInterface, batch),
        };
    }
    dp.tap_router(router.id, Direction::In, batch);
    // Always present, because a router never sends directly to another router.
    let mut burst = dp.router_burst.take().unwrap_or_else(|| Box::new(RouterBurst::new()));
    let mut redirects = Redirects { limit: &dp.limits.redirects, now: dp.clock.now };
    let is_alike = burst.decide(router, (here, &mut redirects), batch);
    let verdicts = &burst.verdicts[..batch.len()];
    burst.count(router, (batch, is_alike && here.is_one()), &dp.counters);
    if is_alike {
        send_alike(dp, routed, verdicts[0], batch);
    } else {
        groups(batch, |n| verdicts[n].way(), |verdict, batch| send_alike(dp, routed, verdict, batch));
    }
    dp.router_burst = Some(burst);
}

/// Sends packets of the kernel out of the port of their interface, with its tag.
fn send_for_kernel(dp: &mut Datapath, routed: Routed<'_>, interface: &InterfacePath, batch: &mut Batch) {
    let Routed { router, origin } = routed;
    let bytes = batch.as_slice().iter().map(|mbuf| u64::from(mbuf.pkt_len())).sum();
    if let Some(vlan) = interface.vlan {
        retag_all(dp, (origin.port, DropReason::TooLong), batch, |mbuf| retag(mbuf, Retag::Push(vlan)));
    }
    if let Some(counters) = dp.counters.routers.get(router.id.index()) {
        counters.from_kernel.add(batch.len() as u64);
    }
    let sent = counters_of(interface, &dp.counters);
    sent.tx_packets.add(batch.len() as u64);
    sent.tx_bytes.add(bytes);
    send_out(dp, origin.cx, interface.port, batch);
}

#[inline]
fn send_alike(dp: &mut Datapath, routed: Routed<'_>, verdict: RouteVerdict, batch: &mut Batch) {
    let Routed { router, origin } = routed;
    match verdict {
        RouteVerdict::Out { port, .. } => {
            dp.tap_router(router.id, Direction::Out, batch);
            if let Some(counters) = dp.counters.routers.get(router.id.index()) {
                counters.forwarded.add(batch.len() as u64);
            }
            send_out(dp, origin.cx, port, batch);
        }
        RouteVerdict::Punt { interface, tagged, cause } => match router.interface(interface) {
            Some(interface) => punt(dp, routed, Punt { interface, tagged, cause }, batch),
            None => dp.drop_at_port(origin.port, DropReason::NoRouterInterface, batch),
        },
        RouteVerdict::Drop(reason) => dp.drop_at_port(origin.port, reason, batch),
    }
}

/// Packets for the kernel.
#[derive(Clone, Copy)]
struct Punt<'a> {
    interface: &'a InterfacePath,
    tagged: bool,
    cause: PuntCause,
}

/// Punts packets of an interface to the kernel without their tag, as far as the shares of their classes allow.
#[cold]
fn punt(dp: &mut Datapath, routed: Routed<'_>, punt: Punt<'_>, batch: &mut Batch) {
    let Routed { router, origin } = routed;
    let mut reasons = [PuntReason::NoRoute; BURST];
    for (reason, mbuf) in reasons.iter_mut().zip(batch.as_slice()) {
        *reason = reason_of(punt.cause, || key_of(mbuf).ok(), &router.tables);
    }
    groups(
        batch,
        |n| reasons[n],
        |reason, batch| {
            let (punts, all) = (&punt.interface.punts, batch.len());
            if matches!(reason, PuntReason::Miss | PuntReason::Lost) {
                let unresolved = (reason == PuntReason::Miss).then_some(&*punts.unresolved);
                limit_each_destination(dp, routed, unresolved, batch);
            }
            // The share of a redirect has already been checked.
            if reason != PuntReason::Redirect {
                limit(dp, punts.of(reason.class()), (origin.port, DropReason::PuntQuota), batch);
            }
            punts.count(reason, batch.len(), all - batch.len());
            give(dp, routed, punt, batch);
        },
    );
}

/// Gives packets to the kernel.
fn give(dp: &mut Datapath, routed: Routed<'_>, punt: Punt<'_>, batch: &mut Batch) {
    let Routed { router, origin } = routed;
    if punt.tagged {
        set_vlan(dp, SetVlan::Strip, origin.port, batch);
    }
    dp.tap_router(router.id, Direction::ToKernel, batch);
    if let Some(counters) = dp.counters.routers.get(router.id.index()) {
        counters.punted.add(batch.len() as u64);
    }
    send_out(dp, origin.cx, punt.interface.punt, batch);
}

/// Drops packets that exceed the limit of an unresolved neighbour, or that of all neighbours that the kernel never knew.
fn limit_each_destination(
    dp: &mut Datapath,
    routed: Routed<'_>,
    unresolved: Option<&UnresolvedLimit>,
    batch: &mut Batch,
) {
    let now = dp.clock.now;
    let router = routed.router.id.0;
    let mut excess = Batch::new();
    let mut within = Batch::new();
    for mbuf in batch.drain() {
        let may_begin = || unresolved.is_none_or(|limit| limit.admit(now, source_hash(router, &mbuf)));
        let destination = destination_hash(router, &mbuf);
        let conforms = dp.limits.misses.admit_if(now, destination, may_begin);
        // Both are as large as the original batch, so there is room.
        let _ = if conforms { within.push(mbuf) } else { excess.push(mbuf) };
    }
    batch.append(&mut within);
    if !excess.is_empty() {
        dp.drop_at_port(routed.origin.port, DropReason::PuntQuota, &mut excess);
    }
}
