//! Out of a port's queue, and onto a way.

use dpdk::{Batch, Mbuf, PortNumber};

use super::deliver::runs;
use super::path::{BURST, Path};
use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::snapshot::Snapshot;
use crate::steer::{HEADER_BYTES, PortRules, Steering};

impl Path {
    /// Takes a burst from a port into `batch`, which is empty; returns the memory that it is in.
    #[inline]
    pub(crate) fn receive(&mut self, snapshot: &Snapshot, port: PortId, batch: &mut Batch) -> MemoryId {
        let (wanted, memory_id) = self.wanted(snapshot, port);
        let Some(queue) = self.ports[port.index()].as_mut() else { return memory_id };
        let Some(memory) = self.memories.get(memory_id.index()).and_then(Option::as_deref) else {
            return memory_id;
        };
        if wanted > 0 {
            queue.receive(memory, batch, wanted);
        }
        if !batch.is_empty() {
            self.admit(port, batch);
        }
        memory_id
    }

    /// How many packets to take: all that a burst holds, or, from a port that waits, what there is room for.
    #[inline(always)]
    fn wanted(&mut self, snapshot: &Snapshot, port: PortId) -> (usize, MemoryId) {
        let Some(queue) = self.ports[port.index()].as_ref() else { return (0, MemoryId(0)) };
        let memory = queue.memory;
        if !queue.waits_for_room {
            return (BURST, memory);
        }
        let Some(rules) = snapshot.rules(port) else { return (0, memory) };
        let room = rules.chains().fold(BURST, |room, chain| self.room_at_entry(snapshot, chain, room));
        (room, memory)
    }

    /// Counts, notes the port in each packet, and drops what spans several buffers.
    #[inline(always)]
    fn admit(&self, port: PortId, batch: &mut Batch) {
        let (mut bytes, mut split) = (0, false);
        for mbuf in batch.as_mut_slice() {
            mbuf.set_port(PortNumber(port.0));
            bytes += u64::from(mbuf.data_len());
            split |= mbuf.nb_segs() != 1;
        }
        let counters = &self.counters.ports[port.index()];
        counters.rx_packets.add(batch.len() as u64);
        counters.rx_bytes.add(bytes);
        if split {
            let mut whole = Batch::new();
            for mbuf in batch.drain() {
                if mbuf.nb_segs() == 1 {
                    let _ = whole.push(mbuf);
                } else {
                    counters.drops.add(DropReason::TooLong, 1);
                }
            }
            batch.append(&mut whole);
        }
    }

    /// Sends a burst on its ways; the batch is empty afterwards.
    #[inline]
    pub(crate) fn steer(&mut self, snapshot: &Snapshot, port: PortId, memory: MemoryId, batch: &mut Batch) {
        let Some(rules) = snapshot.rules(port) else {
            return self.drop_at_port(port, DropReason::NoRule, batch);
        };
        let from = Origin { port, memory, admitted: self.waits_for_room(port) };
        match rules.blanket() {
            Some(steering) => self.go(snapshot, steering, from, batch),
            None => {
                runs(batch, |mbuf| look(rules, mbuf), |steering, run| self.go(snapshot, steering, from, run));
            }
        }
    }

    #[inline(always)]
    fn waits_for_room(&self, port: PortId) -> bool {
        self.ports[port.index()].as_ref().is_some_and(|queue| queue.waits_for_room)
    }

    #[inline(always)]
    fn go(&mut self, snapshot: &Snapshot, steering: Steering, from: Origin, batch: &mut Batch) {
        match steering {
            Steering::Chain(chain) => self.enter_chain(snapshot, chain, from.admitted, from.memory, batch),
            Steering::Port(out) => self.transmit(out, from.memory, batch),
            Steering::Drop(reason) => self.drop_at_port(from.port, reason, batch),
        }
    }
}

/// Where packets come from.
#[derive(Clone, Copy)]
struct Origin {
    port: PortId,
    memory: MemoryId,
    /// There is room for them.
    admitted: bool,
}

fn look(rules: &PortRules, mbuf: &Mbuf) -> Steering {
    let mut copy = [0; HEADER_BYTES];
    let length = mbuf.copy_to(&mut copy);
    rules.steer(&copy[..length], usize::from(mbuf.data_len()))
}
