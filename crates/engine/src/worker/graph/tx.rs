// SPDX-License-Identifier: Apache-2.0
//! The tx stage. In: packets of one memory for one port. Out: to the port's queue, which gathers them into bursts and
//! sends them once per turn, when a burst is full, or soon in a turn with few packets; or to the ring of the worker
//! that has the queue. If the device can only send from its own memory, packets are copied here.
//!
//! A port with a shaper first puts them into the shaper's queues, as a rule says or by DSCP. The shaper belongs to one
//! worker, so that its rate, its queues and their order are the port's; other workers hand the port's packets over to
//! it.
//!
//! Cost: five comparisons per burst, and 8 bytes moved per packet.

use dpdk::{Accepts, Batch, Mbuf, PortNumber};
use netvm_capture_ring::Direction;
use netvm_model::SendsTo;

use super::{observe, walk};
use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::interface::{PortContext, PortQueue, Shaper};
use crate::memory::mark;
use crate::snapshot::Snapshot;
use crate::worker::act::answer;
use crate::worker::forward::bridge::delivered;
use crate::worker::next::{CountedAt, Next};
use crate::worker::packet::keys::key_of;
use crate::worker::packet::probe::Probe;
use crate::worker::state::burst::Context;
use crate::worker::state::handoff::HandoffPacket;
use crate::worker::state::{BURST, Datapath};
use crate::worker::tx::copy::copy_into;
use crate::worker::tx::offload::{AcceptedPackets, Finished, Receiver, all_plain, finish};

/// Where packets go that a port without a device sends; `None` if it has one, or if they have to wait for its shaper,
/// which one worker has.
#[inline(always)]
pub(crate) fn passed_on(dp: &Datapath, snapshot: &Snapshot, port: PortId, batch: &Batch) -> Option<Next> {
    if dp.ports.sender(port).is_some() { None } else { pass_on(dp, snapshot, port, batch) }
}

#[inline(never)]
fn pass_on(dp: &Datapath, snapshot: &Snapshot, port: PortId, batch: &Batch) -> Option<Next> {
    let to = snapshot.sends_to(port).filter(|_| !dp.ports.handoff.has_owner(port))?;
    observe::at_port(dp, port, Direction::Out, batch);
    observe::passed_on(dp, port, batch);
    Some(next_after(port, to))
}

/// Sends a probe through a program.
pub(crate) fn send_probe(dp: &mut Datapath, snapshot: &Snapshot, probe: Probe) {
    let Some(memory) = dp.ports.get(probe.enters).map(|queue| queue.memory) else { return };
    let mut batch = Batch::new();
    if let Some(memory) = dp.memories.get(memory) {
        answer::add(memory, &mut batch, PortNumber(probe.enters.0), &probe.frame());
    }
    walk(dp, Context::new(snapshot, memory), Next::Tx(probe.enters), &mut batch);
}

/// Sends the frames that the manager has for a member of a bond.
pub(crate) fn send_control_frames(dp: &mut Datapath, snapshot: &Snapshot, port: PortId) {
    let Some(member) = snapshot.bonds.member(port) else { return };
    let Some(memory) = dp.ports.get(port).map(|queue| queue.memory) else { return };
    let mut batch = Batch::new();
    while let (Some(frame), Some(from)) = (member.frames.next_to_send(), dp.memories.get(memory)) {
        answer::add(from, &mut batch, PortNumber(port.0), &frame);
        if batch.len() == BURST {
            walk(dp, Context::new(snapshot, memory), Next::Tx(port), &mut batch);
        }
    }
    walk(dp, Context::new(snapshot, memory), Next::Tx(port), &mut batch);
}

/// Sends the queries of snooping that the manager has made, from the memory of a port. They have the tags of their
/// ports.
pub(crate) fn send_queries(dp: &mut Datapath, snapshot: &Snapshot, by: PortId) {
    let (Some(multicast), Some(switching)) = (&snapshot.multicast, &snapshot.policy.switching) else {
        return;
    };
    let Some(id) = dp.ports.get(by).map(|queue| queue.memory) else { return };
    while let (Some((out, frame)), Some(memory)) = (multicast.exchange.next_to_send(), dp.memories.get(id)) {
        let mut batch = Batch::new();
        answer::add(memory, &mut batch, PortNumber(out.0), &frame);
        walk(dp, Context::new(snapshot, id), delivered(switching, out), &mut batch);
    }
}

/// Where packets go that a port without a device has sent.
const fn next_after(port: PortId, to: SendsTo) -> Next {
    match to {
        SendsTo::Peer(peer) => Next::Rx(peer),
        SendsTo::Bridge => Next::BridgeLookup { from: port },
        SendsTo::Member => Next::Member { bond: port },
        SendsTo::Parent { port: parent, tag } => Next::PushTag { from: port, parent, tag },
        SendsTo::Tunnel(router) => Next::PushHeaders { from: port, router },
    }
}

/// Passes on what the shapers of ports without a device release. Returns the number of packets.
pub(crate) fn release_shaped(dp: &mut Datapath, snapshot: &Snapshot) -> usize {
    let mut count = 0;
    for n in 0..dp.ports.shaped.len() {
        let port = dp.ports.shaped[n];
        let Some(to) = snapshot.sends_to(port) else { continue };
        let mut batch = Batch::new();
        let Datapath { ports, counters, captures, is_capturing, clock, .. } = dp;
        let Some(queue) = ports.get_mut(port) else { continue };
        let memory = queue.memory;
        let cx = PortContext::new(port, counters, is_capturing.then_some(&*captures));
        queue.release(clock.now, &mut batch, &cx);
        count += batch.len();
        if !batch.is_empty() {
            observe::passed_on(dp, port, &batch);
            walk(dp, Context::new(snapshot, memory), next_after(port, to), &mut batch);
        }
    }
    count
}

/// Sends packets of `memory` by `port`; the batch is empty afterwards.
#[inline]
pub(crate) fn transmit(dp: &mut Datapath, port: PortId, memory: MemoryId, batch: &mut Batch) {
    let Some(queue) = dp.ports.sender(port) else { return hand_off(dp, port, memory, batch) };
    dp.latency.queued(batch, port);
    if dp.ports.has_offload_work && !all_plain(batch) {
        let accepts = queue.accepts();
        if accepts != Accepts::ALL || batch.as_slice().iter().any(|mbuf| mbuf.tunnel().is_some()) {
            let receiver = Receiver { memory, takes: AcceptedPackets::Port(accepts) };
            return finish(dp, receiver, batch, |dp, finished| match finished {
                Finished::Packets(batch) => enqueue(dp, port, memory, batch),
                Finished::Lost(reason, mbuf) => observe::drop_one(dp, reason, mbuf),
            });
        }
    }
    enqueue(dp, port, memory, batch);
}

/// Enqueues packets that the port accepts unchanged.
#[inline]
fn enqueue(dp: &mut Datapath, port: PortId, memory: MemoryId, batch: &mut Batch) {
    observe::at_port(dp, port, Direction::Out, batch);
    let gone = CountedAt::Port(port);
    let Some(queue) = dp.ports.get(port) else {
        return observe::drop(dp, gone, DropReason::PortDown, batch);
    };
    let mut memory = memory;
    if let Some(home) = queue.sends_from()
        && home != memory
    {
        let mut lost = copy_into(dp, home, memory, batch);
        if !lost.is_empty() {
            observe::drop(dp, CountedAt::Port(port), DropReason::NoBuffer, &mut lost);
        }
        memory = home;
    }
    let Datapath { ports, memories, counters, captures, is_capturing, .. } = dp;
    let (Some(queue), Some(memory)) = (ports.get_mut(port), memories.get(memory)) else {
        return observe::drop(dp, gone, DropReason::PortDown, batch);
    };
    if queue.shaper().is_some() {
        return shape(dp, port, batch);
    }
    let cx = PortContext::new(port, counters, is_capturing.then_some(&*captures));
    queue.enqueue(memory, batch, &cx);
    ports.mark_unsent(port);
}

/// Puts packets into the queues of the port's shaper.
#[cold]
fn shape(dp: &mut Datapath, port: PortId, batch: &mut Batch) {
    dp.latency.shaped();
    for mbuf in batch.drain() {
        shape_one(dp, port, mbuf);
    }
}

/// Puts a packet into the port's shaper, or drops it.
pub(crate) fn shape_one(dp: &mut Datapath, port: PortId, mbuf: Mbuf) {
    let Some(shaper) = dp.ports.get_mut(port).and_then(PortQueue::shaper) else {
        return note_drop(dp, port, DropReason::PortDown, &mbuf);
    };
    let chosen = mark::queue_of(&mbuf).and_then(|queue| shaper.queue_named(queue));
    let queue = chosen.unwrap_or_else(|| {
        // Packets without an IP header have the default code point.
        shaper.queue_of_dscp(key_of(&mbuf).map_or(0, |key| key.dscp))
    });
    match shaper.push(queue, mbuf, dp.clock.now) {
        Ok(()) => dp.ports.mark_unsent(port),
        Err(full) => note_drop(dp, port, DropReason::QueueFull, &full),
    }
}

/// Notes that a packet for the port's shaper is dropped.
fn note_drop(dp: &Datapath, port: PortId, reason: DropReason, mbuf: &Mbuf) {
    dp.port_context(port).note_drop(reason, mbuf);
    if let Some(recorder) = &dp.recorder {
        recorder.dropped(reason, std::slice::from_ref(mbuf));
    }
}

/// Drops the packets that a port has not sent when it closes; a port without a device passes on those in its shaper.
pub(crate) fn close(dp: &mut Datapath, snapshot: &Snapshot, mut queue: Box<PortQueue>) -> Box<PortQueue> {
    if queue.devices().is_empty()
        && let Some(to) = snapshot.sends_to(queue.port)
    {
        while let Some(mbuf) = queue.shaper().and_then(Shaper::pop_any) {
            let mut one = Batch::from(mbuf);
            observe::passed_on(dp, queue.port, &one);
            walk(dp, Context::new(snapshot, queue.memory), next_after(queue.port, to), &mut one);
        }
    }
    while let Some(mbuf) = queue.shaper().and_then(Shaper::pop_any) {
        note_drop(dp, queue.port, DropReason::PortDown, &mbuf);
    }
    let cx = dp.port_context(queue.port);
    queue.drop_unsent(&cx);
    queue
}

/// Hands packets to the worker that can send them; drops packets for which its ring has no room.
fn hand_off(dp: &mut Datapath, port: PortId, memory: MemoryId, batch: &mut Batch) {
    let Datapath { ports, latency, recorder, .. } = dp;
    let gone = CountedAt::Port(port);
    if let Some(held) = ports.handoff.held_for(port) {
        held.push(batch, |mbuf| HandoffPacket { mbuf, memory, port, stamp: 0 });
        if !batch.is_empty() {
            observe::drop(dp, gone, DropReason::HandoffFull, batch);
        }
        return;
    }
    let Some(handoff_tx) = ports.handoff.tx_for(port) else {
        return observe::drop(dp, CountedAt::Port(port), DropReason::PortDown, batch);
    };
    let (to, recorder) = (handoff_tx.to, recorder.as_ref());
    let trace = |packets: &Batch| {
        if let Some(recorder) = recorder {
            recorder.handed_over(to, packets);
        }
    };
    handoff_tx.push(batch, trace, |mbuf| {
        let stamp = latency.hand_over(mbuf.as_ptr());
        HandoffPacket { mbuf, memory, port, stamp }
    });
    if !batch.is_empty() {
        observe::drop(dp, CountedAt::Port(port), DropReason::HandoffFull, batch);
    }
}
