//! Virtual routers. In: packets for a router. Out: by the next hop's port, to the kernel by a punt port, or dropped.
//!
//! ```text
//!  by a punt port ──▶ tag ──▶ out of the interface's port
//!  by any other ──▶ decided by the tables (`worker/router`) ──▶ out of the next hop's port
//!                       └─ share of its class ──▶ tag off ──▶ punt port
//! ```
//!
//! Packets with the same verdict are sent together, in order. For the cost see [`router`](crate::worker::router).

use dpdk::Batch;
use netvm_config::model::{RouterId, SetVlan};
use netvm_tap::Direction;

use super::egress::send_out;
use crate::drop_reason::DropReason;
use crate::router::{InterfacePath, PuntReason, RouterPath};
use crate::worker::act::police::limit;
use crate::worker::act::vlan::{retag_all, set_vlan};
use crate::worker::packet::keys::key_of;
use crate::worker::packet::retag::{Retag, retag};
use crate::worker::packet::runs::groups;
use crate::worker::router::{
    PuntCause, Redirects, RouteVerdict, RouterBurst, counters_of, destination_hash, reason_of,
};
use crate::worker::state::burst::Origin;
use crate::worker::state::{BURST, Datapath};

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
    let routed = Routed { router, origin };
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
            if reason == PuntReason::Miss {
                limit_each_destination(dp, routed, batch);
            }
            // The share of a redirect has already been checked.
            if reason != PuntReason::Redirect {
                limit(dp, punts.of(reason.class()), (origin.port, DropReason::PuntQuota), batch);
            }
            punts.count(reason, batch.len(), all - batch.len());
            if punt.tagged {
                set_vlan(dp, SetVlan::Strip, origin.port, batch);
            }
            dp.tap_router(router.id, Direction::ToKernel, batch);
            if let Some(counters) = dp.counters.routers.get(router.id.index()) {
                counters.punted.add(batch.len() as u64);
            }
            send_out(dp, origin.cx, punt.interface.punt, batch);
        },
    );
}

/// Drops packets that exceed the limit of an unresolved neighbour.
fn limit_each_destination(dp: &mut Datapath, routed: Routed<'_>, batch: &mut Batch) {
    let now = dp.clock.now;
    let mut excess = Batch::new();
    let mut within = Batch::new();
    for mbuf in batch.drain() {
        let destination = destination_hash(routed.router.id.0, &mbuf);
        let conforms = dp.limits.misses.admit(now, destination);
        // Both are as large as the original batch, so there is room.
        let _ = if conforms { within.push(mbuf) } else { excess.push(mbuf) };
    }
    batch.append(&mut within);
    if !excess.is_empty() {
        dp.drop_at_port(routed.origin.port, DropReason::PuntQuota, &mut excess);
    }
}
