// SPDX-License-Identifier: Apache-2.0
//! Rings between workers, for packets of ports for which only another worker has a tx queue: one ring for each pair of
//! workers and direction.
//!
//! ```text
//!  worker 0 ── push ──▶ ring 0→1 ──▶ worker 1 ── tx/transmit ──▶ its tx queue
//!     │                                 ▲
//!     └── at the end of its turn: eventfd, if worker 1 sleeps
//! ```
//!
//! Each pair has a second ring, for packets that a port has received and whose flows the other worker owns
//! ([`owner`](crate::worker::owner)). It is apart because its reader may have to wait for room in a chain; packets to
//! send never wait behind it.
//!
//! - Room: [`SLOTS`] packets. What finds none is dropped, as `handoff-full`.
//! - Backpressure: while a ring has more than [`WAIT_ABOVE`] packets, ports that wait for room receive nothing, and a
//!   worker with such ports takes none back from NFs. The rest of the ring is for copies: a burst may leave by many
//!   ports.
//! - Wake-up: a worker announces that it sleeps, then looks once more into its rings. A worker that has pushed looks
//!   for the announcement, with a full fence between the two on both sides. So either the sleeper sees the packets, or
//!   the other worker wakes it, with one write to its eventfd for all packets of a turn.
//!
//! Cost, per packet: 16 bytes into the ring, a quarter of a cache line that the other core has. Per burst: an atomic
//! store, and a load if the ring seemed full. Per turn with such packets: a fence, which a turn with packets for NFs
//! makes anyway.

mod held;
mod peers;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk::{Batch, Mbuf};
use netvm_notify::write;
use rtrb::{Consumer, Producer};

use crate::ids::{MemoryId, PortId, WorkerId};
use crate::worker::state::BURST;
pub(crate) use held::Held;
pub(crate) use peers::Peer;

/// Packets that can wait between two workers: four bursts of 2,048, as kernel interfaces and guests' rings hold them. A
/// core that has slept for long needs a tenth of a millisecond to wake up. 128 KiB, half of the packets of the smallest
/// memory.
const SLOTS: usize = 8192;
/// Sources that can wait do so while more packets wait here.
pub(crate) const WAIT_ABOVE: usize = SLOTS / 4;

/// A packet that is handed to another worker.
#[derive(Debug)]
pub(crate) struct HandoffPacket {
    pub(crate) mbuf: Mbuf,
    pub(crate) memory: MemoryId,
    pub(crate) port: PortId,
    /// Reception time, if its latency is measured; else 0.
    pub(crate) stamp: u32,
}

/// A quarter of a cache line.
const _: () = assert!(size_of::<HandoffPacket>() == 16);

/// Whether a worker sleeps, and what wakes it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Sleeper {
    is_asleep: AtomicBool,
    eventfd: Arc<OwnedFd>,
}

impl Sleeper {
    /// A worker that is awake.
    pub(crate) fn new(eventfd: Arc<OwnedFd>) -> Arc<Self> {
        Arc::new(Self { is_asleep: AtomicBool::new(false), eventfd })
    }

    /// Wakes the worker, if it has announced that it sleeps. The caller has pushed packets, and then made a full fence.
    fn wake(&self) -> bool {
        let sleeps = self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed);
        if sleeps {
            write(&self.eventfd);
        }
        sleeps
    }
}

/// The tx ends of the rings to another worker.
#[derive(Debug)]
pub(crate) struct HandoffTx {
    /// The worker.
    pub(crate) to: WorkerId,
    ring: Producer<HandoffPacket>,
    /// The ring for received packets.
    received: Producer<HandoffPacket>,
    peer: Arc<Sleeper>,
    /// Packets were pushed since the peer was last looked at.
    has_pushed: bool,
}

impl HandoffTx {
    /// Pushes as many packets as there is room for, and shows them to `before` first; the others stay in the batch.
    #[inline]
    pub(crate) fn push(
        &mut self,
        batch: &mut Batch,
        before: impl FnOnce(&Batch),
        packet: impl Fn(Mbuf) -> HandoffPacket,
    ) {
        self.has_pushed |= push_to(&mut self.ring, batch, before, packet);
    }

    /// The same for received packets.
    pub(crate) fn push_received(
        &mut self,
        batch: &mut Batch,
        before: impl FnOnce(&Batch),
        packet: impl Fn(Mbuf) -> HandoffPacket,
    ) {
        self.has_pushed |= push_to(&mut self.received, batch, before, packet);
    }
}

/// Pushes as many packets as there is room for, and shows them to `before` first. Returns whether it pushed any.
#[inline]
fn push_to(
    ring: &mut Producer<HandoffPacket>,
    batch: &mut Batch,
    before: impl FnOnce(&Batch),
    packet: impl Fn(Mbuf) -> HandoffPacket,
) -> bool {
    let wanted = batch.len();
    let room = match ring.cached_slots() {
        room if room >= wanted => room,
        _ => ring.slots(),
    };
    let mut rest = batch.split_off(wanted.min(room));
    let count = batch.len();
    before(batch);
    if let Ok(chunk) = ring.write_chunk_uninit(count) {
        chunk.fill_from_iter(batch.drain().map(packet));
    }
    batch.append(&mut rest);
    count > 0
}

#[inline]
fn is_filling(ring: &Producer<HandoffPacket>) -> bool {
    let least = ring.buffer().capacity() - WAIT_ABOVE;
    // The slots that are known to be free may be fewer than there are.
    ring.cached_slots() < least && ring.slots() < least
}

/// One worker's ends of the rings between workers.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    /// By worker; `None` at this worker's own index.
    to: Vec<Option<HandoffTx>>,
    from: Vec<Consumer<HandoffPacket>>,
    /// Received packets whose flows this worker owns.
    arrivals: Vec<Consumer<HandoffPacket>>,
    /// By port: the worker that sends for workers that have no queue of the port.
    owners: Vec<Option<WorkerId>>,
    /// Packets for a port that no worker has now.
    held: Option<Box<Held>>,
    /// This worker; `None` if it never sleeps.
    own: Option<Arc<Sleeper>>,
}

impl Handoff {
    /// The number of other workers.
    #[inline(always)]
    pub(crate) const fn peers(&self) -> usize {
        self.from.len()
    }

    /// Of a worker without peers.
    pub(crate) fn new(own: Arc<Sleeper>) -> Self {
        Self { own: Some(own), ..Self::default() }
    }

    pub(crate) fn set_owner(&mut self, port: PortId, owner: Option<WorkerId>) {
        if self.owners.len() <= port.index() {
            self.owners.resize(port.index() + 1, None);
        }
        self.owners[port.index()] = owner;
    }

    /// Holds packets for a port from now on. One port at a time moves.
    pub(crate) fn hold(&mut self, held: Box<Held>) -> Option<Box<Held>> {
        self.held.replace(held)
    }

    /// What holds the packets for a port, if it is moving.
    pub(crate) fn held_for(&mut self, port: PortId) -> Option<&mut Held> {
        self.held.as_deref_mut().filter(|held| held.is_for(port))
    }

    /// Holds no packets from now on. Returns those that were held.
    pub(crate) fn release(&mut self) -> Option<Box<Held>> {
        self.held.take()
    }

    /// Whether another worker sends for the port, or will do so after it has moved.
    #[inline(always)]
    pub(crate) fn has_owner(&self, port: PortId) -> bool {
        self.owners.get(port.index()).is_some_and(Option::is_some)
            || self.held.as_ref().is_some_and(|held| held.is_for(port))
    }

    /// The other worker that sends for a port.
    pub(crate) fn owner_of(&self, port: PortId) -> Option<WorkerId> {
        self.owners.get(port.index()).copied().flatten()
    }

    /// The rings to the worker that sends for a port.
    pub(crate) fn tx_for(&mut self, port: PortId) -> Option<&mut HandoffTx> {
        let owner = self.owner_of(port)?;
        self.to.get_mut(owner.index())?.as_mut()
    }

    /// The rings to a worker; `None` for this one.
    pub(crate) fn tx_to(&mut self, worker: WorkerId) -> Option<&mut HandoffTx> {
        self.to.get_mut(worker.index())?.as_mut()
    }

    /// Takes up to a burst of packets that another worker, of [`Handoff::peers`], has received.
    pub(crate) fn take_received(&mut self, peer: usize, each: impl FnMut(HandoffPacket)) {
        let Some(ring) = self.arrivals.get_mut(peer) else { return };
        if let Ok(chunk) = ring.read_chunk(ring.slots().min(BURST)) {
            chunk.into_iter().for_each(each);
        }
    }

    /// Whether another worker has received packets for this one.
    #[inline(always)]
    pub(crate) fn has_arrivals(&self, peer: usize) -> bool {
        self.arrivals.get(peer).is_some_and(|ring| !ring.is_empty())
    }

    /// Packets that another worker has received for this one.
    pub(crate) fn arrivals(&self, peer: usize) -> usize {
        self.arrivals.get(peer).map_or(0, Consumer::slots)
    }

    /// Packets that another worker has handed over for this one to send.
    pub(crate) fn waiting(&self, peer: usize) -> usize {
        self.from.get(peer).map_or(0, Consumer::slots)
    }

    /// Whether a ring for received packets is filling up: ports that can wait should.
    pub(crate) fn has_full_owner(&self) -> bool {
        self.to.iter().flatten().any(|handoff_tx| is_filling(&handoff_tx.received))
    }

    /// Takes up to a burst of packets of one other worker, of [`Handoff::peers`]. Returns how many more wait.
    #[inline]
    pub(crate) fn take(&mut self, peer: usize, mut each: impl FnMut(HandoffPacket)) -> usize {
        let Some(ring) = self.from.get_mut(peer) else { return 0 };
        let waiting = ring.slots();
        let count = waiting.min(BURST);
        if count > 0
            && let Ok(chunk) = ring.read_chunk(count)
        {
            chunk.into_iter().for_each(&mut each);
        }
        waiting - count
    }

    /// Whether sources that can wait should: a ring to another worker is filling up.
    #[inline]
    pub(crate) fn is_filling(&self) -> bool {
        self.to.iter().flatten().any(|handoff_tx| is_filling(&handoff_tx.ring))
    }

    /// The same of the room for packets of a port that moves. What NFs return, and what others have handed over, does
    /// not wait for it: the port moves when that is done.
    pub(crate) fn holds_many(&self) -> bool {
        self.held.as_deref().is_some_and(Held::is_filling)
    }

    /// Whether packets were pushed since [`Handoff::wake_sleepers`].
    #[inline(always)]
    pub(crate) fn has_pushed(&self) -> bool {
        self.to.iter().flatten().any(|handoff_tx| handoff_tx.has_pushed)
    }

    /// Wakes the workers that sleep while they have packets from this one. Call it after a full fence. Returns how many
    /// it woke.
    pub(crate) fn wake_sleepers(&mut self) -> u64 {
        let mut woken = 0;
        for handoff_tx in self.to.iter_mut().flatten() {
            woken += u64::from(std::mem::take(&mut handoff_tx.has_pushed) && handoff_tx.peer.wake());
        }
        woken
    }

    /// Announces that this worker is about to sleep. Returns whether it may: no packets wait for it.
    pub(crate) fn prepare_wait(&self) -> bool {
        let Some(own) = &self.own else { return true };
        own.is_asleep.store(true, Ordering::Relaxed);
        netvm_ring::full_fence();
        self.from.iter().chain(&self.arrivals).all(Consumer::is_empty)
    }

    /// Withdraws the announcement.
    pub(crate) fn end_wait(&self) {
        if let Some(own) = &self.own {
            own.is_asleep.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
