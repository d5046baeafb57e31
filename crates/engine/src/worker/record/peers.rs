// SPDX-License-Identifier: Apache-2.0
//! Rings by which workers hand records of packets over, one for each pair of workers and direction.
//!
//! A worker pushes the record before the packet, and takes packets before their records. So the record of each packet
//! that it has taken is there.

use rtrb::{Consumer, Producer, RingBuffer};

use super::event::TraceRecord;
use super::following::Awaited;
use crate::ids::WorkerId;
use dpdk::MbufPtr;

/// Records of a trace on each worker.
pub(super) const RECORDS: usize = 8;

/// The record of a packet that goes to another worker.
#[derive(Debug)]
pub(super) struct HandedOver {
    pub(super) record: TraceRecord,
    pub(super) followed: Handed,
}

/// What another worker follows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handed {
    /// This packet.
    Packet(MbufPtr),
    /// The packet that comes back from a program.
    Awaited(Awaited),
}

/// One worker's ends.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// By worker; `None` at this worker's own index.
    to: Vec<Option<Producer<HandedOver>>>,
    from: Vec<Consumer<HandedOver>>,
}

impl Peers {
    /// The ends of so many workers.
    pub(super) fn mesh(workers: usize) -> Vec<Self> {
        let mut ends: Vec<Self> = (0..workers).map(|_| Self::default()).collect();
        for from in 0..workers {
            for to in 0..workers {
                if from == to {
                    ends[from].to.push(None);
                } else {
                    // A worker hands over only its own records.
                    let (producer, consumer) = RingBuffer::new(RECORDS);
                    ends[from].to.push(Some(producer));
                    ends[to].from.push(consumer);
                }
            }
        }
        ends
    }

    /// The ring to a worker, if there is one, the worker has not ended, and it has a slot.
    pub(super) fn ring_to(&mut self, worker: WorkerId) -> Option<&mut Producer<HandedOver>> {
        let ring = self.to.get_mut(worker.index())?.as_mut()?;
        (ring.slots() > 0 && !ring.is_abandoned()).then_some(ring)
    }

    /// The next record that another worker has handed over.
    pub(super) fn pop(&mut self) -> Option<HandedOver> {
        self.from.iter_mut().find_map(|ring| ring.pop().ok())
    }
}
