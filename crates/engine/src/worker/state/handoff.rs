//! Rings between workers, for packets of ports for which only another worker has a tx queue.

use dpdk::Mbuf;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::ids::{MemoryId, PortId, WorkerId};

/// Room for packets between two workers.
const SLOTS: usize = 1024;

/// A packet on its way to a port of another worker.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) mbuf: Mbuf,
    pub(crate) memory: MemoryId,
    pub(crate) port: PortId,
    /// Reception time, if its latency is measured; else 0.
    pub(crate) stamp: u32,
}

/// A quarter of a cache line.
const _: () = assert!(size_of::<Parcel>() == 16);

/// One worker's ends of the rings between workers.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    /// By worker; `None` at this worker's own index.
    to: Vec<Option<Producer<Parcel>>>,
    pub(crate) from: Vec<Consumer<Parcel>>,
    /// By port: the worker that sends for workers that have no queue of the port.
    owners: Vec<Option<WorkerId>>,
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

    pub(crate) fn set_owner(&mut self, port: PortId, owner: Option<WorkerId>) {
        if self.owners.len() <= port.index() {
            self.owners.resize(port.index() + 1, None);
        }
        self.owners[port.index()] = owner;
    }

    /// The ring to the worker that sends for a port.
    pub(crate) fn ring_for(&mut self, port: PortId) -> Option<&mut Producer<Parcel>> {
        let owner = self.owners.get(port.index()).copied().flatten()?;
        self.to.get_mut(owner.index())?.as_mut()
    }
}
