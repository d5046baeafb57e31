//! The tx stage. In: packets of one memory for one port. Out: into the port's queue, which gathers them into bursts and
//! sends them once per turn or when a burst is full, or into the ring of the worker that has the queue. Packets are
//! copied here if the device can only send from a memory of its own.
//!
//! Cost: three comparisons per burst, and 8 bytes moved per packet.

use dpdk::{Accepts, Batch};

use super::copy::copy_into;
use super::offload::{Receiver, Takes, all_plain, finish};
use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::worker::state::Datapath;
use crate::worker::state::handoff::Parcel;

/// Sends packets of `memory` by `port`; the batch is empty afterwards.
#[inline]
pub(crate) fn transmit(dp: &mut Datapath, port: PortId, memory: MemoryId, batch: &mut Batch) {
    dp.latency.queued(batch, port);
    let Some(queue) = dp.ports.get(port) else { return hand_off(dp, port, memory, batch) };
    if dp.ports.has_offload_work && !all_plain(batch) {
        let accepts = queue.accepts();
        if accepts != Accepts::ALL {
            let receiver = Receiver { memory, takes: Takes::Port(accepts) };
            return finish(dp, receiver, batch, |dp, batch| enqueue(dp, port, memory, batch));
        }
    }
    enqueue(dp, port, memory, batch);
}

/// Packets that the port takes as they are.
#[inline]
fn enqueue(dp: &mut Datapath, port: PortId, memory: MemoryId, batch: &mut Batch) {
    let Some(queue) = dp.ports.get(port) else { return batch.clear() };
    let mut memory = memory;
    if let Some(home) = queue.sends_from()
        && home != memory
    {
        let lost = copy_into(dp, home, memory, batch);
        dp.counters.ports[port.index()].drops.add(DropReason::NoBuffer, lost as u64);
        memory = home;
    }
    let Datapath { ports, memories, counters, .. } = dp;
    let (Some(queue), Some(memory)) = (ports.get_mut(port), memories.get(memory)) else {
        return batch.clear();
    };
    queue.enqueue(memory, batch, &counters.ports[port.index()]);
    ports.mark_unsent(port);
}

/// Hands packets to the worker that can send them; what its ring has no room for is dropped.
fn hand_off(dp: &mut Datapath, port: PortId, memory: MemoryId, batch: &mut Batch) {
    let Some(ring) = dp.ports.handoff.ring_for(port) else {
        return dp.drop_at_port(port, DropReason::PortDown, batch);
    };
    let mut lost = Batch::new();
    for mbuf in batch.drain() {
        if let Err(rtrb::PushError::Full(parcel)) = ring.push(Parcel { mbuf, memory, port }) {
            let _ = lost.push(parcel.mbuf);
        }
    }
    if !lost.is_empty() {
        dp.drop_at_port(port, DropReason::TxFull, &mut lost);
    }
}
