// SPDX-License-Identifier: Apache-2.0
//! Receives a burst from a port's rx queue, and looks it up in the port's rules. Each packet is marked with its port
//! and counted. A port that waits for room receives no more packets than their chains have room for. Packets with the
//! same action then go together, in order, where the action says.
//!
//! - blanket: the port has one decision for all packets. No packet is read.
//! - per flow: [`classify`] finds the action of each packet.
//!
//! Cost: receiving, 10 instructions per packet in addition to the device's (callgrind). Blanket: one check of the
//! policy per burst. Per flow: one comparison of 8 bytes per packet if all actions are the same; otherwise a copy of
//! the mbuf pointers for each different action.

use dpdk::{Batch, PortNumber};
use netvm_capture_ring::Direction;

use super::handoff::send_all_handed_over;
use super::verdicts::{self, At};
use super::{observe, record, walk};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, MemoryId, PortId};
use crate::interface::PortContext;
use crate::memory::mark;
use crate::snapshot::{MAX_PASSED, Snapshot};
use crate::worker::act::{answer, decision, police::police};
use crate::worker::chain::{entry::room_at_entry, pair, routed};
use crate::worker::classify::classifier::{Classified, Classifier};
use crate::worker::classify::{classify, scope::Scope};
use crate::worker::forward::{bond, vlan};
use crate::worker::next::{CountedAt, Next, Side};
use crate::worker::owner::give_to_owners;
use crate::worker::packet::bytes_of;
use crate::worker::packet::groups::groups;
use crate::worker::state::burst::{Burst, Context};
use crate::worker::state::lookup_results::{PackedAction, PacketAction, PacketGroup};
use crate::worker::state::{BURST, Datapath};

/// Packets that may pass ports without a device in a turn: a loop that floods makes very many of one.
const MAX_PASSED_IN_TURN: usize = 1 << 16;

/// What is known of a burst that a port has received.
#[derive(Clone, Copy)]
pub(crate) struct Received<'a> {
    pub(crate) cx: Context<'a>,
    pub(crate) port: PortId,
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
    let cx = Context::new(snapshot, memory);
    let mut received = Received { cx, port, bytes: 0, taken: 0 };
    let Datapath { ports, memories, counters, .. } = dp;
    let (Some(queue), Some(memory)) = (ports.get_mut(port), memories.get(memory)) else { return received };
    let cx = PortContext::new(port, counters, dp.is_capturing.then_some(&dp.captures));
    received.cx.admitted = queue.waits_for_room;
    if wanted > 0 {
        queue.receive(memory, batch, wanted, &cx);
    }
    if !batch.is_empty() {
        received.taken = batch.len();
        if dp.recorder.is_some() {
            record::received(dp, snapshot, port, batch);
        }
        received.bytes = admit(dp, port, batch);
        if let Some(sampler) = &mut dp.sampler {
            sampler.see(port, batch);
        }
        if has_owners(dp, snapshot, port) {
            received.bytes = give_away(dp, received.cx, port, batch);
        }
        arrived(dp, snapshot, port, batch);
    }
    received
}

/// Whether packets of a port go to the workers that own their flows.
#[inline(always)]
fn has_owners(dp: &Datapath, snapshot: &Snapshot, port: PortId) -> bool {
    snapshot.owned.has(port) && dp.ports.handoff.peers() > 0
}

/// Gives packets to the workers that own their flows. Returns the bytes of those that stay.
fn give_away(dp: &mut Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) -> u64 {
    let mut left = give_to_owners(dp, cx, port, batch);
    if !left.is_empty() {
        observe::drop(dp, CountedAt::Port(port), DropReason::HandoffFull, &mut left);
    }
    bytes_of(batch)
}

/// Receives packets by a port without a device, and brings them to their ends; the batch is empty afterwards.
#[inline(never)]
pub(crate) fn pass(dp: &mut Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) {
    dp.passed += batch.len();
    let is_loop = cx.passed >= MAX_PASSED || dp.passed > MAX_PASSED_IN_TURN;
    // There always is a burst: there are more than packets may pass ports.
    let Some(mut burst) = (if is_loop { None } else { dp.bursts.pop() }) else {
        return walk(dp, cx, Next::drop_at(port, DropReason::ForwardingLoop), batch);
    };
    if dp.recorder.is_some() {
        record::passed(dp, cx.snapshot, port, batch);
    }
    let mut bytes = admit(dp, port, batch);
    if has_owners(dp, cx.snapshot, port) {
        bytes = give_away(dp, cx, port, batch);
    }
    if dp.monitor.is_some() {
        monitor(dp, cx.snapshot, port, batch);
    }
    burst.batch.append(batch);
    let cx = Context { admitted: false, passed: cx.passed + 1, ..cx };
    ingress(dp, Received { cx, port, bytes, taken: 0 }, &mut burst);
    dp.bursts.push(burst);
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
    let is_monitored = snapshot.policy.ingress(port).is_none_or(|ingress| ingress.is_monitored);
    match &mut dp.monitor {
        Some(monitor) if is_monitored => monitor.count(port, batch, dp.clock.now),
        Some(monitor) => monitor.skip(),
        None => {}
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
    let has_full_owner = || snapshot.owned.has(port) && dp.ports.handoff.has_full_owner();
    if dp.ports.has_to_wait() || dp.ports.handoff.holds_many() || has_full_owner() {
        return (0, memory);
    }
    let room = |room, chain: &ChainId| room_at_entry(dp, snapshot, *chain, room);
    let room = ingress.chains.iter().fold(BURST, room);
    (room, memory)
}

/// Counts packets, marks each with the port and without a queue, and drops packets that span several buffers. Returns
/// the number of bytes.
#[inline(always)]
fn admit(dp: &Datapath, port: PortId, batch: &mut Batch) -> u64 {
    let (mut bytes, mut split) = (0, false);
    for mbuf in batch.as_mut_slice() {
        mbuf.set_port(PortNumber(port.0));
        mark::clear(mbuf);
        bytes += u64::from(mbuf.pkt_len());
        split |= mbuf.nb_segs() != 1;
    }
    let counters = &dp.counters.ports[port.index()];
    counters.rx_packets.add(batch.len() as u64);
    counters.rx_bytes.add(bytes);
    if split {
        // A segment is cut by a later stage, or goes to another guest.
        let mut cut = batch.partition(|mbuf| mbuf.nb_segs() == 1 || mbuf.oversized().is_some());
        observe::drop(dp, CountedAt::Port(port), DropReason::TooLong, &mut cut);
    }
    bytes
}

/// Brings a burst to its ends by its port's rules; the batch is empty afterwards.
#[inline]
pub(crate) fn ingress(dp: &mut Datapath, received: Received<'_>, burst: &mut Burst) {
    let Received { cx, port, mut bytes, .. } = received;
    observe::at_port(dp, port, Direction::In, &burst.batch);
    let policy = cx.snapshot.policy.ingress(port);
    if cx.snapshot.bonds.has_member(port) {
        return receive_as_member(dp, cx, port, &mut burst.batch);
    }
    if cx.snapshot.parents.has(port) {
        divide_by_tag(dp, cx, port, &mut burst.batch);
        if burst.batch.is_empty() {
            return;
        }
        bytes = bytes_of(&burst.batch);
    }
    if cx.snapshot.pairs.has(port) {
        return come_back(dp, cx, port, &mut burst.batch);
    }
    let Some(policy) = policy else {
        return walk(dp, cx, Next::drop_at(port, DropReason::NoRule), &mut burst.batch);
    };
    if let Some(meter) = &policy.meter {
        if dp.recorder.is_some() {
            record::policed(dp, cx.snapshot, &burst.batch);
        }
        if !dp.is_dry {
            let mut excess = police(meter, dp.clock.now, &mut burst.batch);
            if !excess.is_empty() {
                observe::drop(dp, CountedAt::Port(port), DropReason::Policed, &mut excess);
            }
            bytes = bytes_of(&burst.batch);
        }
    }
    let has_flow_verdicts = cx.snapshot.flow_verdict_ports.has(port);
    if let Some(decision) = policy.blanket.filter(|_| !has_flow_verdicts) {
        let action = PacketAction { decision, action: PackedAction::AS_DECIDED };
        if dp.monitor.is_some() {
            let at = At { snapshot: cx.snapshot, port };
            verdicts::note(dp, at, burst.batch.as_slice(), |_| action);
        }
        return decided(dp, Received { bytes, ..received }, action, &mut burst.batch);
    }
    let scope = Scope::ingress(cx.snapshot, port, policy);
    let classified = classify(&mut Classifier::of(dp), &scope, burst);
    if !burst.malformed.is_empty() {
        walk(dp, cx, Next::MalformedAt(port), &mut burst.malformed);
    }
    if scope.tracking.is_some() && dp.connections.as_ref().is_some_and(|it| !it.syn_proxy.answers.is_empty())
    {
        send_of_proxy(dp, cx, port);
    }
    if dp.monitor.is_some() {
        let (at, Burst { batch, results, .. }) = (At { snapshot: cx.snapshot, port }, &*burst);
        match &classified {
            Classified::Uniform(group) => verdicts::note(dp, at, batch.as_slice(), |_| group.action),
            Classified::Each => verdicts::note(dp, at, batch.as_slice(), |n| results.action(n)),
        }
    }
    match classified {
        Classified::Uniform(PacketGroup { action, bytes }) => {
            decided(dp, Received { bytes, ..received }, action, &mut burst.batch);
        }
        Classified::Each => each_decided(dp, received, burst),
    }
}

/// Brings packets that a program has sent to their ends. Earlier packets of their flows may have gone past the program
/// before it was up, and may wait in a ring of another worker: those go first.
#[inline(never)]
fn come_back(dp: &mut Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) {
    pair::take_probes(dp, port, batch);
    let Some(back) = cx.snapshot.pairs.of(port).filter(|_| !batch.is_empty()) else { return batch.clear() };
    send_all_handed_over(dp);
    dp.latency.came_back(port, batch, dp.clock.now);
    let mut go_on = |side, part: &mut Batch| {
        let next = match pair::go_on(dp, back, side, part) {
            Ok((next, passed)) => {
                observe::from_pair(dp, cx, passed, part);
                next
            }
            Err(dropped) => dropped,
        };
        walk(dp, cx, next, part);
    };
    if back.flows.is_none() {
        return go_on(back.only_side(), batch);
    }
    let sides = routed::come_back(back, batch);
    groups(batch, |n| sides[n], go_on);
}

/// Brings packets that a member of a bond has received to their ends.
#[inline(never)]
fn receive_as_member(dp: &mut Datapath, cx: Context<'_>, port: PortId, batch: &mut Batch) {
    let Some(member) = cx.snapshot.bonds.member(port) else { return batch.clear() };
    bond::take_lacp(member, batch);
    let next = match member.collects {
        true => Next::Rx(member.bond),
        false => Next::drop_at(port, DropReason::InactiveMember),
    };
    walk(dp, cx, next, batch);
}

/// Brings packets with a tag for which there is a port to their ends; the others stay.
#[inline(never)]
fn divide_by_tag(dp: &mut Datapath, cx: Context<'_>, parent: PortId, batch: &mut Batch) {
    let mut ports = [None; BURST];
    for (port, mbuf) in ports.iter_mut().zip(batch.as_slice()) {
        *port = vlan::port_of(cx.snapshot, parent, mbuf);
    }
    let mut others = Batch::new();
    groups(
        batch,
        |n| ports[n],
        |port, part| match port {
            Some(by) => walk(dp, cx, Next::PopTag { by }, part),
            None => {
                others.append(part);
            }
        },
    );
    batch.append(&mut others);
}

/// Follows the decision of each packet; the batch is empty afterwards.
fn each_decided(dp: &mut Datapath, received: Received<'_>, burst: &mut Burst) {
    let Burst { batch, results, .. } = burst;
    let count = batch.len();
    if count == 0 {
        return;
    }
    let first = results.action(0);
    if (1..count).all(|n| results.action(n) == first) {
        let bytes = results.bytes(count);
        return group_decided(dp, Received { bytes, ..received }, first, batch);
    }
    groups(
        batch,
        |n| results.action(n),
        |action, batch| {
            let bytes = bytes_of(batch);
            group_decided(dp, Received { bytes, ..received }, action, batch);
        },
    );
}

/// Like [`decided`], for one group of a burst with several actions.
#[inline(never)]
fn group_decided(dp: &mut Datapath, group: Received<'_>, action: PacketAction, batch: &mut Batch) {
    decided(dp, group, action, batch);
}

/// Follows a decision for all packets; the batch is empty afterwards. Inlined: each burst would pay for the call.
#[inline(always)]
fn decided(dp: &mut Datapath, received: Received<'_>, action: PacketAction, batch: &mut Batch) {
    let Received { cx, port, bytes, .. } = received;
    let side = Side::Ingress(port);
    let decision = cx.snapshot.policy.decision(action.decision);
    if !decision.is_plain() || dp.recorder.is_some() {
        return walk(dp, cx, Next::Decision(side, action), batch);
    }
    if let Some(hits) = cx.snapshot.hits.get(action.decision as usize) {
        hits.add(batch.len(), bytes);
    }
    walk(dp, cx, decision::outcome(cx.snapshot, side, action), batch);
}

/// Sends the answers of the SYN proxy to a burst that `port` has received.
#[cold]
fn send_of_proxy(dp: &mut Datapath, cx: Context<'_>, port: PortId) {
    let mut answers = Batch::new();
    let Datapath { connections, memories, .. } = dp;
    if let (Some(connections), Some(memory)) = (connections, memories.get(cx.memory)) {
        for of_proxy in connections.syn_proxy.answers.drain(..) {
            if !answer::add(memory, &mut answers, PortNumber(port.0), of_proxy.bytes()) {
                break;
            }
        }
    }
    walk(dp, cx, Next::Tx(port), &mut answers);
}
