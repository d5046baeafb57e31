//! Out of a port: gathered into bursts, sent once a turn or when a burst is full.

use dpdk::{Accepts, Batch};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::worker::state::Path;
use crate::worker::tx::offload::all_plain;

impl Path {
    /// Packets of `memory` are to leave by `port`; the batch is empty afterwards.
    #[inline]
    pub(crate) fn transmit(&mut self, port: PortId, memory: MemoryId, batch: &mut Batch) {
        let Some(queue) = self.ports.get(port.index()).and_then(Option::as_ref) else {
            return self.hand_off(port, memory, batch);
        };
        let accepts = queue.accepts();
        if self.leaves_work && accepts != Accepts::ALL && !all_plain(batch) {
            return self.finish(memory, accepts, batch, |path, batch| path.enqueue(port, memory, batch));
        }
        self.enqueue(port, memory, batch);
    }

    /// Packets that the port takes as they are.
    #[inline]
    fn enqueue(&mut self, port: PortId, memory: MemoryId, batch: &mut Batch) {
        let Some(queue) = self.ports.get(port.index()).and_then(Option::as_ref) else { return batch.clear() };
        let mut memory = memory;
        if let Some(home) = queue.sends_from()
            && home != memory
        {
            let lost = self.copy_into(home, memory, batch);
            self.counters.ports[port.index()].drops.add(DropReason::NoBuffer, lost as u64);
            memory = home;
        }
        let (Some(queue), Some(memory)) =
            (self.ports[port.index()].as_mut(), self.memories[memory.index()].as_deref())
        else {
            return batch.clear();
        };
        queue.enqueue(memory, batch, &self.counters.ports[port.index()]);
        self.unsent[port.index() / 64] |= 1 << (port.0 % 64);
    }

    /// Sends what was gathered; returns how many packets the devices took.
    #[inline]
    pub(crate) fn flush(&mut self) -> usize {
        let mut sent = 0;
        for word in 0..self.unsent.len() {
            let mut rest = self.unsent[word];
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let port = word * 64 + bit as usize;
                let Some(queue) = self.ports[port].as_mut() else { continue };
                sent += queue.flush(&self.counters.ports[port]);
                if queue.is_flushed() {
                    self.unsent[word] &= !(1 << bit);
                }
            }
        }
        sent
    }
}
