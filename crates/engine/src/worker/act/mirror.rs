//! Copies of packets, for ports that get them besides.

use dpdk::{Batch, Mbuf};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::worker::state::Path;

impl Path {
    /// A port gets a copy of each packet, whatever its own rules say. A copy that finds no buffer is counted as a drop of that port.
    pub(crate) fn mirror(&mut self, to: PortId, memory: MemoryId, batch: &Batch) {
        let mut copies = Batch::new();
        let lost = self.copies_of(memory, batch.as_slice(), &mut copies);
        if lost > 0
            && let Some(counters) = self.counters.ports.get(to.index())
        {
            counters.drops.add(DropReason::NoBuffer, lost as u64);
        }
        self.transmit(to, memory, &mut copies);
    }

    /// Copies of packets within their memory; returns how many found no buffer.
    pub(crate) fn copies_of(&self, memory: MemoryId, packets: &[Mbuf], copies: &mut Batch) -> usize {
        let Some(memory) = self.memory(memory) else { return packets.len() };
        if self.leaves_work && !packets.iter().all(Mbuf::is_plain) {
            let copied = packets.iter().filter_map(|packet| memory.pool.copy_of(packet));
            return packets.len() - copied.filter_map(|copy| copies.push(copy).ok()).count();
        }
        let mut buffers = Batch::new();
        memory.pool.alloc_into(&mut buffers, packets.len());
        let mut lost = packets.len() - buffers.len();
        for packet in packets {
            let Some(mut copy) = buffers.pop() else { break };
            if crate::worker::tx::copy::copy_one(memory, packet, memory, &mut copy) {
                let _ = copies.push(copy);
            } else {
                lost += 1;
            }
        }
        lost
    }
}
