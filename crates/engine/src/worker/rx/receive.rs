//! The rx stage. In: a port's rx queue. Out: a burst, each packet marked with its port and counted. A port that waits
//! for room gives no more packets than their chains take.

use dpdk::{Batch, PortNumber};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, MemoryId, PortId};
use crate::snapshot::Snapshot;
use crate::worker::chain::entry::room_at_entry;
use crate::worker::state::burst::{Context, Origin};
use crate::worker::state::{BURST, Datapath};

/// Where a burst comes from.
#[derive(Clone, Copy)]
pub(crate) struct Received<'a> {
    pub(crate) origin: Origin<'a>,
    pub(crate) bytes: u64,
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
    let mut received = Received { origin, bytes: 0 };
    let Datapath { ports, memories, counters, .. } = dp;
    let (Some(queue), Some(memory)) = (ports.get_mut(port), memories.get(memory)) else { return received };
    received.origin.admitted = queue.waits_for_room;
    if wanted > 0 {
        queue.receive(memory, batch, wanted, &counters.ports[port.index()]);
    }
    if !batch.is_empty() {
        received.bytes = admit(dp, port, batch);
    }
    received
}

/// How many packets to take: a burst, or what their chains have room for.
#[inline(always)]
fn wanted(dp: &mut Datapath, snapshot: &Snapshot, port: PortId) -> (usize, MemoryId) {
    let Some(queue) = dp.ports.get(port) else { return (0, MemoryId(0)) };
    let memory = queue.memory;
    if !queue.waits_for_room {
        return (BURST, memory);
    }
    let Some(ingress) = snapshot.policy.ingress(port) else { return (0, memory) };
    let room = |room, chain: &ChainId| room_at_entry(dp, snapshot, *chain, room);
    let room = ingress.chains.iter().fold(BURST, room);
    (room, memory)
}

/// Counts packets, marks each with the port, and drops those that span several buffers. Returns the bytes.
#[inline(always)]
fn admit(dp: &Datapath, port: PortId, batch: &mut Batch) -> u64 {
    let (mut bytes, mut split) = (0, false);
    for mbuf in batch.as_mut_slice() {
        mbuf.set_port(PortNumber(port.0));
        bytes += u64::from(mbuf.pkt_len());
        split |= mbuf.nb_segs() != 1;
    }
    let counters = &dp.counters.ports[port.index()];
    counters.rx_packets.add(batch.len() as u64);
    counters.rx_bytes.add(bytes);
    if split {
        let mut whole = Batch::new();
        for mbuf in batch.drain() {
            // A segment is cut by a later stage, or goes to another guest.
            if mbuf.nb_segs() == 1 || mbuf.oversized().is_some() {
                let _ = whole.push(mbuf);
            } else {
                counters.drops.add(DropReason::TooLong, 1);
            }
        }
        batch.append(&mut whole);
    }
    bytes
}
