//! Out of a port's queue.

use dpdk::{Batch, PortNumber};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, MemoryId, PortId};
use crate::snapshot::Snapshot;
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::{BURST, Path};

impl Path {
    /// Takes a burst from a port into `batch`, which is empty; returns where it comes from.
    #[inline]
    pub(crate) fn receive(&mut self, snapshot: &Snapshot, port: PortId, batch: &mut Batch) -> Origin {
        let (wanted, memory_id) = self.wanted(snapshot, port);
        let mut from = Origin { port, memory: memory_id, admitted: false, bytes: 0 };
        let Some(queue) = self.ports[port.index()].as_mut() else { return from };
        let Some(memory) = self.memories.get(memory_id.index()).and_then(Option::as_deref) else {
            return from;
        };
        from.admitted = queue.waits_for_room;
        if wanted > 0 {
            queue.receive(memory, batch, wanted);
        }
        if !batch.is_empty() {
            from.bytes = self.admit(port, batch);
        }
        from
    }

    /// How many packets to take: all that a burst holds, or, from a port that waits, what there is room for.
    #[inline(always)]
    fn wanted(&mut self, snapshot: &Snapshot, port: PortId) -> (usize, MemoryId) {
        let Some(queue) = self.ports[port.index()].as_ref() else { return (0, MemoryId(0)) };
        let memory = queue.memory;
        if !queue.waits_for_room {
            return (BURST, memory);
        }
        let Some(ingress) = snapshot.policy.ingress(port) else { return (0, memory) };
        let room = |room, chain: &ChainId| self.room_at_entry(snapshot, *chain, room);
        let room = ingress.chains.iter().fold(BURST, room);
        (room, memory)
    }

    /// Counts, notes the port in each packet, and drops what spans several buffers; returns the bytes.
    #[inline(always)]
    fn admit(&self, port: PortId, batch: &mut Batch) -> u64 {
        let (mut bytes, mut split) = (0, false);
        for mbuf in batch.as_mut_slice() {
            mbuf.set_port(PortNumber(port.0));
            bytes += u64::from(mbuf.pkt_len());
            split |= mbuf.nb_segs() != 1;
        }
        let counters = &self.counters.ports[port.index()];
        counters.rx_packets.add(batch.len() as u64);
        counters.rx_bytes.add(bytes);
        if split {
            let mut whole = Batch::new();
            for mbuf in batch.drain() {
                // A segment is cut further on, or goes to another guest.
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
}
