//! What an NF was at when it ended: the packets that it had taken out of its rings and not passed on. A sweep copies
//! them before it frees their buffers.
//!
//! A sweep finds them together with the packets that still wait in the NF's rings, which the rings tell apart. NFs write
//! to rings, so what they say only chooses which packets are copied; a packet that another NF hands over in this moment
//! may be among them.
//!
//! Cost: nothing until an NF ends. Then one pass over its rings, and at most 64 copies of 2 KiB, for each worker.

use std::sync::Arc;

use dpdk::{Batch, Mbuf};
use netvm_region::Control;
use netvm_ring::RingMemory;

use super::InFlightTable;
use crate::ids::{PortId, WorkerId};

/// Packets that are kept: a burst.
pub(crate) const MOST: usize = Batch::CAPACITY;
/// Bytes that are kept of each.
const SNAPLEN: usize = 2048;

/// A packet that an NF had when it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPacket {
    /// The port that it came in by.
    pub port: PortId,
    /// Its length in bytes.
    pub length: u32,
    /// Its first 2048 bytes.
    pub data: Vec<u8>,
}

/// The rings of an NF that has ended, and room for the packets that it had.
#[derive(Debug)]
pub(crate) struct HeldPackets {
    /// Has the rings from the workers.
    control: Arc<Control>,
    threads: u16,
    /// The rings from other NFs: their memory, and their index there.
    direct: Vec<(Arc<InFlightTable>, u16)>,
    /// Buffers that wait in rings, a bit each.
    waiting: Vec<u64>,
    is_marked: bool,
    /// Port, length and copied bytes of each packet.
    packets: Vec<(PortId, u32, usize)>,
    bytes: Vec<u8>,
}

impl HeldPackets {
    /// For an NF with so many threads. The manager makes it, so that the worker allocates nothing.
    pub(crate) fn new(
        (control, threads): (Arc<Control>, u16),
        direct: Vec<(Arc<InFlightTable>, u16)>,
    ) -> Self {
        Self {
            control,
            threads,
            direct,
            waiting: Vec::new(),
            is_marked: false,
            packets: Vec::with_capacity(MOST),
            bytes: Vec::with_capacity(MOST * SNAPLEN),
        }
    }

    /// With room for the numbers of so many buffers.
    pub(crate) fn with_buffers(mut self, buffers: u32) -> Self {
        self.waiting = vec![0; (buffers as usize).div_ceil(64)];
        self
    }

    /// Notes which of a worker's packets wait in the rings; once.
    pub(super) fn mark_waiting(&mut self, worker: WorkerId) {
        if std::mem::replace(&mut self.is_marked, true) {
            return;
        }
        let Self { control, threads, direct, waiting, .. } = self;
        for thread in 0..*threads {
            mark(waiting, control.ring_to_nf(thread, worker.0.into()), worker);
        }
        for (table, index) in direct {
            if let Some(ring) = table.ring(*index) {
                mark(waiting, ring, worker);
            }
        }
    }

    /// Copies a packet that is about to be freed, unless it waited in a ring.
    pub(super) fn keep(&mut self, buffer: u32, mbuf: &Mbuf) {
        let bits = self.waiting.get(buffer as usize / 64).copied().unwrap_or(0);
        if bits >> (buffer % 64) & 1 == 1 || self.packets.len() >= MOST {
            return;
        }
        let mut data = [0; SNAPLEN];
        let copied = mbuf.copy_to(&mut data);
        self.packets.push((PortId(mbuf.port().0), mbuf.pkt_len(), copied));
        self.bytes.extend_from_slice(&data[..copied]);
    }

    /// The packets, in the order of their buffers.
    pub(crate) fn into_packets(self) -> Vec<HeldPacket> {
        let mut rest = self.bytes.as_slice();
        let packet = |(port, length, copied)| {
            let (data, after) = rest.split_at(copied);
            rest = after;
            HeldPacket { port, length, data: data.to_vec() }
        };
        self.packets.into_iter().map(packet).collect()
    }
}

fn mark(waiting: &mut [u64], ring: RingMemory, worker: WorkerId) {
    for descriptor in ring.waiting().filter(|descriptor| descriptor.worker() == worker.0) {
        let buffer = descriptor.buffer();
        if let Some(bits) = waiting.get_mut(buffer as usize / 64) {
            *bits |= 1 << (buffer % 64);
        }
    }
}
