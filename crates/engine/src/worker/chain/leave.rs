//! Leaving a chain. In: packets whose next target is not an NF. Out: to the egress stage of a port, to L2 switching, to a
//! router, or dropped.
//!
//! Cost for a chain that ends at a port: one counter per burst.

use dpdk::Batch;

use super::deliver::{Delivery, deliver};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::snapshot::Target;
use crate::worker::forward::egress::send_out;
use crate::worker::forward::route::route;
use crate::worker::forward::switching;
use crate::worker::packet::runs::runs;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Origin;

/// Sends packets to a target of their chain, an NF or out of it; the batch is empty afterwards. Returns the number of
/// packets that were not dropped.
#[inline]
pub(crate) fn go_to(dp: &mut Datapath, delivery: &Delivery<'_>, target: &Target, batch: &mut Batch) -> usize {
    match target.replicas() {
        Some(replicas) => deliver(dp, delivery, replicas, batch),
        None => leave(dp, delivery, target, batch),
    }
}

/// Sends packets out of their chain; the batch is empty afterwards. Returns the number of packets that were not dropped.
#[inline]
fn leave(dp: &mut Datapath, delivery: &Delivery<'_>, target: &Target, batch: &mut Batch) -> usize {
    let (cx, chain) = (delivery.cx, delivery.chain);
    match target {
        Target::Port(port) => return leave_by(dp, delivery, *port, batch),
        Target::Drop(reason) => {
            dp.drop_in_chain(chain, *reason, batch);
            return 0;
        }
        // Cannot happen: packets for an NF go to `deliver`.
        Target::Links { .. } => {
            dp.drop_in_chain(chain, DropReason::NoOutput, batch);
            return 0;
        }
        Target::Ingress | Target::Normal | Target::Router(_) => {}
    }
    let count = count_left(dp, chain, batch);
    // In runs with the same ingress port.
    runs(
        batch,
        |mbuf| PortId(mbuf.port().0),
        |port, run| match target {
            Target::Normal => switching::look_up_and_send(dp, Origin::of(cx, port), run),
            Target::Router(router) => route(dp, Origin::of(cx, port), *router, run),
            _ => send_out(dp, cx, port, run),
        },
    );
    count
}

/// Sends packets out of their chain by a port; the batch is empty afterwards. Returns their number.
#[inline]
pub(crate) fn leave_by(dp: &mut Datapath, delivery: &Delivery<'_>, port: PortId, batch: &mut Batch) -> usize {
    let count = count_left(dp, delivery.chain, batch);
    send_out(dp, delivery.cx, port, batch);
    count
}

#[inline(always)]
fn count_left(dp: &mut Datapath, chain: ChainId, batch: &Batch) -> usize {
    let count = batch.len();
    dp.latency.left(batch);
    if let Some(counters) = dp.counters.chains.get(chain.index()) {
        counters.left.add(count as u64);
    }
    count
}
