//! Patch ports: two ports of the engine with a link between them, without a device. Packets that one port sends are received
//! by the other in the next turn of its worker. So patch ports connect L2 switching to a router, or two routers.
//!
//! ```text
//!  one ── sends ──▶ lane ── receives ──▶ other
//!      ◀─ receives ─ lane ◀── sends ────
//! ```
//!
//! Cost: an uncontended lock once a burst, and two moves of the mbuf pointer for each packet: 5 cycles a packet. Packets are
//! copied if the ports receive into different memories.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dpdk::{Batch, Mbuf};

use super::control::{Control, Opened, Opening};
use super::device::{Device, Expects, PortContext};
use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;

/// Most packets that wait in one direction.
const ROOM: usize = 1024;
/// No port receives.
const CLOSED: u32 = u32::MAX;

/// One direction.
#[derive(Debug)]
struct Lane {
    packets: Mutex<VecDeque<Mbuf>>,
    /// The memory into which the port receives, by number; [`CLOSED`] while it is not open. Written with `packets` locked.
    memory: AtomicU32,
}

impl Default for Lane {
    fn default() -> Self {
        Self { packets: Mutex::new(VecDeque::with_capacity(ROOM)), memory: AtomicU32::new(CLOSED) }
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Mbuf>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties the lane. From then on it takes packets of this memory, or none ([`CLOSED`]).
    fn set(&self, memory: u32) {
        let mut packets = self.lock();
        packets.clear();
        // Relaxed: code that acts on it holds the lock, or reads it again under the lock.
        self.memory.store(memory, Ordering::Relaxed);
    }

    fn memory(&self) -> Option<MemoryId> {
        let memory = self.memory.load(Ordering::Relaxed);
        u16::try_from(memory).ok().map(MemoryId)
    }
}

/// A link between two patch ports: the lane to the port with the lower number, then the other.
type PatchLink = [Lane; 2];

/// The links in use.
#[derive(Debug, Default)]
pub(crate) struct PatchLinks(BTreeMap<[PortId; 2], Weak<PatchLink>>);

impl PatchLinks {
    /// A port's end of its link to a peer.
    pub(super) fn end(&mut self, port: PortId, peer: PortId) -> PatchEnd {
        self.0.retain(|_, link| link.strong_count() > 0);
        let ends = [port.min(peer), port.max(peer)];
        let link = self.0.get(&ends).and_then(Weak::upgrade).unwrap_or_default();
        self.0.insert(ends, Arc::downgrade(&link));
        PatchEnd { link, is_second: port > peer }
    }
}

/// One end of a link.
#[derive(Clone, Debug)]
pub(super) struct PatchEnd {
    link: Arc<PatchLink>,
    is_second: bool,
}

impl PatchEnd {
    fn inbox(&self) -> &Lane {
        &self.link[usize::from(self.is_second)]
    }

    fn outbox(&self) -> &Lane {
        &self.link[usize::from(!self.is_second)]
    }
}

impl Control for PatchEnd {
    /// Whether the peer is open.
    fn link(&self) -> Option<bool> {
        Some(self.outbox().memory().is_some())
    }
}

/// Opens an end of a link.
pub(super) fn open(opening: &Opening<'_>, end: PatchEnd) -> Opened {
    let (_, memory) = opening.queue(0);
    end.inbox().set(memory.id.0.into());
    Opened::of_one(opening, Patch(end.clone()), "patch", end)
}

/// The device.
struct Patch(PatchEnd);

impl Drop for Patch {
    fn drop(&mut self) {
        self.0.inbox().set(CLOSED);
    }
}

impl Device for Patch {
    #[inline]
    fn receive(&mut self, _memory: &Memory, out: &mut Batch, wanted: usize, _cx: &PortContext<'_>) {
        let mut packets = self.0.inbox().lock();
        let count = wanted.min(packets.len());
        for mbuf in packets.drain(..count) {
            let _ = out.push(mbuf);
        }
    }

    #[inline]
    fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        let lane = self.0.outbox();
        let mut packets = lane.lock();
        if lane.memory() != Some(memory.id) {
            cx.note_drops(DropReason::PortDown, batch.as_slice());
            return batch.clear();
        }
        let (mut sent, mut bytes) = (0, 0);
        for mbuf in batch.drain() {
            if packets.len() < ROOM {
                (sent, bytes) = (sent + 1, bytes + u64::from(mbuf.pkt_len()));
                packets.push_back(mbuf);
            } else {
                cx.note_drop(DropReason::TxFull, &mbuf);
            }
        }
        cx.counters.tx_packets.add(sent);
        cx.counters.tx_bytes.add(bytes);
    }

    fn flush(&mut self, _cx: &PortContext<'_>) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn expects(&self) -> Expects<'_> {
        // Packets that the same worker adds later are received before it sleeps.
        if self.0.inbox().lock().is_empty() { Expects::Nothing } else { Expects::Arrived }
    }

    fn sends_from(&self) -> Option<MemoryId> {
        self.0.outbox().memory()
    }

    fn use_memory(&mut self, memory: &Arc<Memory>) {
        // Packets on their way are lost: they are in the old memory.
        self.0.inbox().set(memory.id.0.into());
    }
}
