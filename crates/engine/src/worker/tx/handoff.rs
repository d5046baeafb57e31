//! From one worker to another: for ports of which only the other has a transmit queue.

use dpdk::{Batch, Mbuf};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId, WorkerId};
use crate::worker::state::{BURST, Path};

/// Packets that can wait between two workers.
const SLOTS: usize = 1024;

/// A packet on its way to a port of another worker.
#[derive(Debug)]
pub(crate) struct Parcel {
    mbuf: Mbuf,
    memory: MemoryId,
    port: PortId,
}

/// One worker's ends of the rings between workers.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    /// By worker; `None` at this worker's own place.
    to: Vec<Option<Producer<Parcel>>>,
    from: Vec<Consumer<Parcel>>,
    /// By port: the worker that sends for those that cannot.
    pub(crate) owners: Vec<Option<WorkerId>>,
}

impl Handoff {
    /// Whether there are other workers.
    #[inline(always)]
    pub(crate) const fn has_peers(&self) -> bool {
        !self.from.is_empty()
    }

    /// The ends of all rings between `workers` workers.
    pub(crate) fn mesh(workers: usize) -> Vec<Self> {
        let mut ends: Vec<Self> = (0..workers).map(|_| Self::default()).collect();
        for from in 0..workers {
            for to in 0..workers {
                if from == to {
                    ends[from].to.push(None);
                } else {
                    let (producer, consumer) = RingBuffer::new(SLOTS);
                    ends[from].to.push(Some(producer));
                    ends[to].from.push(consumer);
                }
            }
        }
        ends
    }
}

impl Path {
    /// Hands packets to the worker that can send them.
    pub(crate) fn hand_off(&mut self, port: PortId, memory: MemoryId, batch: &mut Batch) {
        let owner = self.handoff.owners.get(port.index()).copied().flatten();
        let Some(ring) = owner.and_then(|owner| self.handoff.to.get_mut(owner.index())?.as_mut()) else {
            return self.drop_at_port(port, DropReason::PortDown, batch);
        };
        let mut lost = Batch::new();
        for mbuf in batch.drain() {
            if let Err(rtrb::PushError::Full(parcel)) = ring.push(Parcel { mbuf, memory, port }) {
                let _ = lost.push(parcel.mbuf);
            }
        }
        if !lost.is_empty() {
            self.drop_at_port(port, DropReason::TxFull, &mut lost);
        }
    }

    /// Sends what other workers handed over; returns how many packets.
    pub(crate) fn take_handoffs(&mut self) -> usize {
        let mut count = 0;
        for n in 0..self.handoff.from.len() {
            let mut run = Batch::new();
            let mut way = None;
            while run.len() < BURST
                && let Ok(parcel) = self.handoff.from[n].pop()
            {
                if let Some((port, memory)) = way
                    && (port, memory) != (parcel.port, parcel.memory)
                {
                    self.transmit(port, memory, &mut run);
                }
                way = Some((parcel.port, parcel.memory));
                // Another worker's guest may have left something to do.
                self.leaves_work |= !parcel.mbuf.is_plain();
                let _ = run.push(parcel.mbuf);
                count += 1;
            }
            if let Some((port, memory)) = way {
                self.transmit(port, memory, &mut run);
            }
        }
        count
    }
}
