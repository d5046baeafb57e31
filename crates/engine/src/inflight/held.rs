// SPDX-License-Identifier: Apache-2.0
//! The held packets of an NF: those that it had taken out of its rings and not passed on when it ended. A sweep copies
//! them before it frees their buffers.
//!
//! A sweep finds these packets together with packets that still wait in the NF's rings; the contents of the rings show
//! which ones wait. NFs write to rings, so the rings only decide which packets are copied. A packet that another NF
//! passes on at this moment may be among them.
//!
//! The packets are in the order in which the NF took them, ring by ring if it has several. The slots of the rings show
//! the order, because a slot keeps its descriptor until the next lap.
//!
//! Cost: nothing until an NF ends. Then one pass over its rings, and at most 64 copies of 2 KiB, for each worker.

use std::sync::Arc;

use dpdk::{Batch, Mbuf};
use netvm_region::Control;
use netvm_ring::RingMemory;

use super::InFlightTable;
use crate::ids::{PortId, WorkerId};

/// Most packets that are copied: a burst.
pub(crate) const MAX_HELD_PACKETS: usize = Batch::CAPACITY;
/// Bytes that are copied of each packet.
const SNAPLEN: usize = 2048;

/// A packet that an NF had when it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPacket {
    /// The port that received it.
    pub port: PortId,
    /// Its length in bytes.
    pub length: u32,
    /// Its first 2048 bytes.
    pub data: Vec<u8>,
}

/// The rings of an NF that has ended, and room for the packets that it had.
#[derive(Debug)]
pub(crate) struct HeldPacketCollector {
    /// The control memory, which has the rings from the workers.
    control: Arc<Control>,
    threads: u16,
    /// The rings from other NFs: their memory, and their index there.
    direct: Vec<(Arc<InFlightTable>, u16)>,
    /// Buffers that wait in rings, a bit each.
    waiting: Vec<u64>,
    /// By buffer: an ascending number in the order in which the NF took the buffers; 0 if no ring shows it.
    taken: Vec<u32>,
    is_marked: bool,
    packets: Vec<CopiedPacket>,
    /// [`SNAPLEN`] bytes for each packet.
    bytes: Vec<u8>,
}

/// Metadata of a copied packet.
#[derive(Clone, Copy, Debug)]
struct CopiedPacket {
    port: PortId,
    length: u32,
    copied: usize,
    taken: u32,
}

impl HeldPacketCollector {
    /// For an NF with this number of threads. The manager creates it, because workers do not allocate.
    pub(crate) fn new(control: Arc<Control>, threads: u16, direct: Vec<(Arc<InFlightTable>, u16)>) -> Self {
        Self {
            control,
            threads,
            direct,
            waiting: Vec::new(),
            taken: Vec::new(),
            is_marked: false,
            packets: Vec::with_capacity(MAX_HELD_PACKETS),
            bytes: vec![0; MAX_HELD_PACKETS * SNAPLEN],
        }
    }

    /// Adds room for this number of buffers.
    pub(crate) fn with_buffers(mut self, buffers: u32) -> Self {
        self.waiting = vec![0; (buffers as usize).div_ceil(64)];
        self.taken = vec![0; buffers as usize];
        self
    }

    /// Records which of a worker's packets wait in the rings, and the order in which the NF took the others. Does so
    /// only once.
    pub(super) fn mark_waiting(&mut self, worker: WorkerId) {
        if std::mem::replace(&mut self.is_marked, true) {
            return;
        }
        let Self { control, threads, direct, waiting, taken, .. } = self;
        let mut now = 0;
        let mut note = |ring: RingMemory| {
            mark(waiting, ring, worker);
            number(taken, &mut now, ring, worker);
        };
        for thread in 0..*threads {
            note(control.ring_to_nf(thread, worker.0.into()));
        }
        direct.iter().filter_map(|(table, index)| table.ring(*index)).for_each(note);
    }

    /// Copies a packet that is about to be freed, unless it waits in a ring. If there are too many, keeps the latest.
    pub(super) fn keep(&mut self, buffer: u32, mbuf: &Mbuf) {
        let bits = self.waiting.get(buffer as usize / 64).copied().unwrap_or(0);
        // An empty one is a buffer for a packet of the NF's own.
        if bits >> (buffer % 64) & 1 == 1 || mbuf.pkt_len() == 0 {
            return;
        }
        let taken = self.taken.get(buffer as usize).copied().unwrap_or(0);
        let mut copied =
            CopiedPacket { port: PortId(mbuf.port().0), length: mbuf.pkt_len(), copied: 0, taken };
        let place = if self.packets.len() < MAX_HELD_PACKETS {
            self.packets.push(copied);
            self.packets.len() - 1
        } else {
            let oldest = self.packets.iter().enumerate().min_by_key(|(_, packet)| packet.taken);
            match oldest {
                Some((place, oldest)) if oldest.taken < taken => place,
                _ => return,
            }
        };
        let Some(room) = self.bytes.get_mut(place * SNAPLEN..(place + 1) * SNAPLEN) else { return };
        copied.copied = mbuf.copy_to(room);
        self.packets[place] = copied;
    }

    /// The packets, in the order in which the NF took them.
    pub(crate) fn into_packets(self) -> Vec<HeldPacket> {
        let mut all: Vec<_> = self.packets.iter().zip(self.bytes.chunks(SNAPLEN)).collect();
        all.sort_by_key(|(packet, _)| packet.taken);
        let packet = |(packet, bytes): (&CopiedPacket, &[u8])| HeldPacket {
            port: packet.port,
            length: packet.length,
            data: bytes[..packet.copied].to_vec(),
        };
        all.into_iter().map(packet).collect()
    }
}

/// Numbers a worker's packets that were taken from a ring.
fn number(taken: &mut [u32], now: &mut u32, ring: RingMemory, worker: WorkerId) {
    for descriptor in ring.consumed().filter(|descriptor| descriptor.worker() == worker.0) {
        *now += 1;
        if let Some(taken) = taken.get_mut(descriptor.buffer() as usize) {
            *taken = *now;
        }
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
