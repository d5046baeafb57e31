//! The rx stage: receives a burst from a port's rx queue, and dispatches it. Each packet is marked with its port and counted. A
//! port that waits for room receives no more packets than their chains have room for. Packets with the same action then go
//! together, in order, to a chain, a port, L2 switching or a router, or are dropped, after the extra actions of their decision.
//! There are two ways to find the actions:
//!
//! - blanket: the port has one decision for all packets. No packet is read.
//! - per flow: [`classify`] finds the action of each packet.
//!
//! Cost: receiving, 10 instructions per packet in addition to the device's (callgrind). Blanket: one check of the policy per
//! burst. Per flow: one comparison of 8 bytes per packet if all actions are the same; otherwise a copy of the mbuf pointers for
//! each different action.

use dpdk::{Batch, PortNumber};
use netvm_tap::Direction;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, MemoryId, PortId};
use crate::policy::Outcome;
use crate::port::PortContext;
use crate::snapshot::Snapshot;
use crate::worker::act::{do_extras, police::police, reject};
use crate::worker::chain::entry::{enter, enter_without_hops, room_at_entry};
use crate::worker::classify::classifier::{Classified, Classifier};
use crate::worker::classify::classify;
use crate::worker::forward::egress::send_out;
use crate::worker::forward::route::route;
use crate::worker::forward::switching;
use crate::worker::owner::give_to_owners;
use crate::worker::packet::queue;
use crate::worker::packet::runs::groups;
use crate::worker::state::burst::{Burst, Context, Ingress, Origin};
use crate::worker::state::lookup_results::{Action, Alike, PackedAction, PacketAction};
use crate::worker::state::{BURST, Datapath};

/// The origin of a burst.
#[derive(Clone, Copy)]
pub(crate) struct Received<'a> {
    pub(crate) origin: Origin<'a>,
    pub(crate) bytes: u64,
    /// Packets that the port had, with those that were given to other workers.
    pub(crate) taken: usize,
}

/// Takes a burst from a port into `batch`, which is empty.
#[inline]
pub(crate) fn receive<'a>(
    dp: &mut Datapath,
    snapshot: &'a Snapshot,
    port: PortId,
    batch: &mut Batch,
) -> Received<'a> {
    let (wanted, memory) = wanted(dp, snapshot, port);
    let origin = Origin::of(Context { snapshot, memory }, port);
    let mut received = Received { origin, bytes: 0, taken: 0 };
    let Datapath { ports, memories, counters, .. } = dp;
    let (Some(queue), Some(memory)) = (ports.get_mut(port), memories.get(memory)) else { return received };
    let cx = PortContext::new(port, counters, dp.is_tapped.then_some(&dp.taps));
    received.origin.admitted = queue.waits_for_room;
    if wanted > 0 {
        queue.receive(memory, batch, wanted, &cx);
    }
    if !batch.is_empty() {
        received.taken = batch.len();
        received.bytes = admit(dp, port, batch);
        if snapshot.owned.has(port) {
            give_to_owners(dp, (port, received.origin.cx.memory), batch);
            received.bytes = batch.as_slice().iter().map(|mbuf| u64::from(mbuf.pkt_len())).sum();
        }
        arrived(dp, snapshot, port, batch);
    }
    received
}

/// Notes packets that this worker is about to handle.
#[inline(always)]
pub(crate) fn arrived(dp: &mut Datapath, snapshot: &Snapshot, port: PortId, batch: &Batch) {
    dp.latency.received(port, batch, dp.clock.now);
    if dp.monitor.is_some() {
        monitor(dp, snapshot, port, batch);
    }
}

/// Counts flows, unless the configuration excludes the port.
#[inline(never)]
fn monitor(dp: &mut Datapath, snapshot: &Snapshot, port: PortId, batch: &Batch) {
    if snapshot.policy.ingress(port).is_none_or(|ingress| ingress.is_monitored)
        && let Some(monitor) = &mut dp.monitor
    {
        monitor.count(port, batch, dp.clock.now);
    }
}

/// The number of packets to take: a burst; or as many as their chains, and the rings to other workers, have room for.
#[inline(always)]
fn wanted(dp: &mut Datapath, snapshot: &Snapshot, port: PortId) -> (usize, MemoryId) {
    let Some(queue) = dp.ports.get(port) else { return (0, MemoryId(0)) };
    let memory = queue.memory;
    if !queue.waits_for_room {
        return (BURST, memory);
    }
    let Some(ingress) = snapshot.policy.ingress(port) else { return (0, memory) };
    if dp.ports.has_to_wait() || snapshot.owned.has(port) && dp.ports.handoff.has_full_owner() {
        return (0, memory);
    }
    let room = |room, chain: &ChainId| room_at_entry(dp, snapshot, *chain, room);
    let room = ingress.chains.iter().fold(BURST, room);
    (room, memory)
}

/// Counts packets, marks each with the port and without a queue, and drops packets that span several buffers. Returns the
/// number of bytes.
#[inline(always)]
fn admit(dp: &Datapath, port: PortId, batch: &mut Batch) -> u64 {
    let (mut bytes, mut split) = (0, false);
    for mbuf in batch.as_mut_slice() {
        mbuf.set_port(PortNumber(port.0));
        queue::clear(mbuf);
        bytes += u64::from(mbuf.pkt_len());
        split |= mbuf.nb_segs() != 1;
    }
    let counters = &dp.counters.ports[port.index()];
    counters.rx_packets.add(batch.len() as u64);
    counters.rx_bytes.add(bytes);
    if split {
        let (mut whole, mut cut) = (Batch::new(), Batch::new());
        for mbuf in batch.drain() {
            // A segment is cut by a later stage, or goes to another guest.
            if mbuf.nb_segs() == 1 || mbuf.oversized().is_some() {
                let _ = whole.push(mbuf);
            } else {
                let _ = cut.push(mbuf);
            }
        }
        dp.drop_at_port(port, DropReason::TooLong, &mut cut);
        batch.append(&mut whole);
    }
    bytes
}

/// Dispatches a burst by its port's policy; the batch is empty afterwards.
#[inline]
pub(crate) fn ingress(dp: &mut Datapath, received: Received<'_>, burst: &mut Burst) {
    let Received { origin, bytes, .. } = received;
    dp.tap_port(origin.port, Direction::In, &burst.batch);
    let Some(policy) = origin.cx.snapshot.policy.ingress(origin.port) else {
        return dp.drop_at_port(origin.port, DropReason::NoRule, &mut burst.batch);
    };
    if let Some(meter) = &policy.meter {
        police(dp, meter, origin.port, &mut burst.batch);
    }
    let ingress = Ingress { origin, policy };
    let alike = match policy.blanket.filter(|_| !ingress.may_have_flow_verdicts()) {
        Some(decision) => {
            Alike { action: PacketAction { decision, action: PackedAction::AS_DECIDED }, bytes }
        }
        None => match classify(&mut Classifier::of(dp), &ingress, burst) {
            Classified::Alike(alike) => alike,
            Classified::Each => return dispatch_each(dp, &ingress, burst),
        },
    };
    dispatch(dp, &ingress, alike, &mut burst.batch);
}

/// Dispatches each packet by its action in the results; the batch is empty afterwards.
fn dispatch_each(dp: &mut Datapath, ingress: &Ingress<'_>, burst: &mut Burst) {
    let Burst { batch, results } = burst;
    let count = batch.len();
    if count == 0 {
        return;
    }
    let first = results.action(0);
    if (1..count).all(|n| results.action(n) == first) {
        let alike = Alike { action: first, bytes: results.bytes(count) };
        return dispatch_group(dp, ingress, alike, batch);
    }
    groups(
        batch,
        |n| results.action(n),
        |action, batch| {
            let bytes = batch.as_slice().iter().map(|mbuf| u64::from(mbuf.pkt_len())).sum();
            dispatch_group(dp, ingress, Alike { action, bytes }, batch);
        },
    );
}

/// Like [`dispatch`], for one group of a burst with several actions.
#[inline(never)]
fn dispatch_group(dp: &mut Datapath, ingress: &Ingress<'_>, alike: Alike, batch: &mut Batch) {
    dispatch(dp, ingress, alike, batch);
}

/// Dispatches packets with the same action; the batch is empty afterwards. Inlined, because a call costs some 50 cycles per burst.
#[inline(always)]
fn dispatch(dp: &mut Datapath, ingress: &Ingress<'_>, alike: Alike, batch: &mut Batch) {
    let Alike { action, bytes } = alike;
    let origin = ingress.origin;
    let snapshot = origin.cx.snapshot;
    if let Some(hits) = snapshot.hits.get(action.decision as usize) {
        hits.add(batch.len(), bytes);
    }
    let decision = snapshot.policy.decision(action.decision);
    if let Some(queue) = decision.queue {
        batch.as_mut_slice().iter_mut().for_each(|mbuf| queue::set(mbuf, queue));
    }
    if let Some(extras) = &decision.extras {
        do_extras(dp, extras, origin, batch);
    }
    match decision.outcome.resolved(ingress.policy.forward, ingress.policy.undecided) {
        Outcome::Port(out) => send_out(dp, origin.cx, out, batch),
        Outcome::Chain(chain) => match action.action.unpack() {
            Action::SkipHops(hops) => enter_without_hops(dp, origin, (chain, hops), batch),
            Action::DropFlow => dp.drop_in_chain(chain, DropReason::FlowVerdict, batch),
            _ => enter(dp, origin, chain, batch),
        },
        Outcome::Normal => switching::send(dp, origin, action.action.unpack(), batch),
        Outcome::Router(router) => route(dp, origin, router, batch),
        Outcome::Drop(reason) => dp.drop_at_port(origin.port, reason, batch),
        Outcome::Reject => reject::reject(dp, origin, batch),
        // A port's `forward` and default never are one of these.
        Outcome::Allow | Outcome::Undecided => dp.drop_at_port(origin.port, DropReason::NoRule, batch),
    }
}
