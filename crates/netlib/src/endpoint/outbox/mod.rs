// SPDX-License-Identifier: Apache-2.0
//! What an NF sends besides the packets of its burst: packets that it makes, copies of others, and packets that it has
//! held. In: the NF's calls. Out: descriptors for the workers, in the order of the calls and verdicts.
//!
//! The engine knows each of these buffers as kept by this NF thread: those of its [`stock`], and those of packets whose
//! verdict was [`VerdictKind::Hold`]. All of them go back by a worker, never by a ring to another NF, so that the
//! engine knows when the thread no longer has them.
//!
//! Cost: nothing for an NF that does not use it, except a flag per burst. A packet that it makes: about 100 cycles
//! here, most of them to clear the bytes; a held packet: a second descriptor to the worker and back.

use std::sync::Arc;
use std::time::Duration;

use netvm_clock as clock;
use netvm_region::TableReader;
use netvm_ring::{Descriptor, Message, VerdictKind};

mod owned;
mod stock;

pub use owned::OwnedPacket;
use owned::{Kept, Origin, Owner};
use stock::Stock;

use super::BURST;
use crate::packet::{Packet, Verdict};
use crate::shared::Shared;
use crate::tx_rings::{TxRings, VerdictCounts};

/// Room for packets that wait for the end of a burst.
const WAITING: usize = 256;

/// A descriptor that is to be sent.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    descriptor: Descriptor,
    /// Before this packet of the burst.
    before: usize,
}

/// What an endpoint keeps beyond bursts.
#[derive(Debug)]
pub(super) struct Kit {
    owner: Arc<Owner>,
    stock: Stock,
    waiting: Vec<Waiting>,
    /// Packets of the burst that are held: their numbers and buffers.
    held_now: Vec<(usize, u32)>,
    /// Packets that are held.
    held: u32,
    /// Packets that the NF has beyond bursts: held or made.
    owned: u32,
    /// It has some, or something waits.
    is_used: bool,
    /// The path of the last burst.
    path: Option<Descriptor>,
    time: Time,
}

/// The time that an NF sees.
#[derive(Clone, Copy, Debug)]
enum Time {
    /// Cycles at the start.
    Since(u64),
    /// What a test has set.
    Set(Duration),
}

impl Kit {
    pub(super) fn new(shared: &Arc<Shared>, thread: u16) -> Self {
        Self {
            owner: Owner::new(Arc::clone(shared)),
            stock: Stock::new(Arc::clone(shared), thread),
            waiting: Vec::with_capacity(WAITING),
            held_now: Vec::with_capacity(BURST),
            held: 0,
            owned: 0,
            is_used: false,
            path: None,
            time: Time::Since(clock::cycles()),
        }
    }

    /// Whether there may be something to send.
    #[inline(always)]
    pub(super) const fn is_used(&self) -> bool {
        self.is_used
    }

    pub(super) const fn set_time(&mut self, time: Duration) {
        self.time = Time::Set(time);
    }

    /// The next-hop table, and perhaps the workers, have changed.
    #[cold]
    pub(super) fn follow(&mut self) {
        self.path = None;
    }

    /// Gives the buffers of workers that are about to end back.
    pub(super) fn release_leaving(&mut self) {
        if !self.stock.has_leaving() {
            return;
        }
        for buffer in self.stock.take_leaving() {
            self.send_message(Message::Release(buffer.buffer()), buffer.worker(), 0);
        }
    }

    /// Whether packet `n` of the burst is held.
    #[inline(always)]
    pub(super) fn is_held(&self, n: usize) -> bool {
        self.is_used && self.held_now.iter().any(|(held, _)| *held == n)
    }

    fn send_message(&mut self, message: Message, worker: u8, before: usize) {
        let descriptor = Descriptor::control(message, worker);
        self.is_used = true;
        self.waiting.push(Waiting { descriptor, before });
    }

    /// Gives a buffer back, not before packet `before` of the burst.
    fn release(&mut self, kept: Kept, before: usize) {
        let descriptor = kept.descriptor;
        if kept.origin == Origin::Received {
            self.held = self.held.saturating_sub(1);
        } else if self.stock.put(descriptor) {
            return;
        }
        let before = self.place(before, descriptor.buffer());
        self.send_message(Message::Release(descriptor.buffer()), descriptor.worker(), before);
    }

    /// The packet of the burst before which a buffer may go back: not before the descriptor by which the engine learns
    /// that it is held, nor before what was sent earlier.
    fn place(&self, before: usize, buffer: u32) -> usize {
        let held = self.held_now.iter().find(|(_, held)| *held == buffer).map_or(0, |(n, _)| n + 1);
        let last = self.waiting.last().map_or(0, |waiting| waiting.before);
        before.max(held).max(last)
    }

    /// Sends a burst by its verdicts, and between its packets what the NF sends besides.
    #[cold]
    pub(super) fn dispatch(
        &mut self,
        tx_rings: &mut TxRings,
        table: &TableReader,
        burst: &[Descriptor],
        verdicts: &[Verdict],
    ) -> VerdictCounts {
        let mut counts = VerdictCounts::default();
        self.path = burst.first().copied().or(self.path);
        for kept in self.owner.take_dropped() {
            self.owned = self.owned.saturating_sub(1);
            self.release(kept, burst.len());
        }
        let (mut from, mut sent) = (0, 0);
        for n in 0..=burst.len() {
            let is_due = self.waiting.get(sent).is_some_and(|waiting| waiting.before <= n);
            let is_held = self.held_now.iter().any(|(held, _)| *held == n);
            if !(is_due || is_held || n == burst.len()) {
                continue;
            }
            if from < n {
                counts += tx_rings.dispatch(table, &burst[from..n], &verdicts[from..n]);
                from = n;
            }
            while let Some(waiting) = self.waiting.get(sent).filter(|waiting| waiting.before <= n) {
                tx_rings.send_as_is(waiting.descriptor);
                counts += VerdictCounts::of(waiting.descriptor);
                sent += 1;
            }
            if is_held && let Some(held) = burst.get(n) {
                tx_rings.send_as_is(held.with_verdict(VerdictKind::Hold, 0));
                from = n + 1;
            }
        }
        self.waiting.clear();
        self.held_now.clear();
        self.is_used = self.owned > 0;
        tx_rings.publish();
        counts
    }
}

/// Makes, copies, holds and sends packets, for one NF thread. A burst's callback gets it, or [`Burst::outbox`] returns
/// it; between bursts, [`Endpoint::outbox`].
///
/// What it sends leaves in the order of the calls, before the packet of the burst that the NF is at, and after those
/// before it.
///
/// [`Burst::outbox`]: crate::Burst::outbox
/// [`Endpoint::outbox`]: crate::Endpoint::outbox
#[derive(Debug)]
pub struct Outbox<'a> {
    kit: &'a mut Kit,
    tx_rings: &'a mut TxRings,
    table: &'a TableReader,
    /// The packet of the burst that the NF is at: its number, and its descriptor's address.
    at: usize,
    current: *const Descriptor,
    /// Sends at once when it is dropped.
    is_between_bursts: bool,
}

impl<'a> Outbox<'a> {
    #[inline(always)]
    pub(super) const fn new(kit: &'a mut Kit, tx_rings: &'a mut TxRings, table: &'a TableReader) -> Self {
        Self { kit, tx_rings, table, at: 0, current: core::ptr::null(), is_between_bursts: false }
    }

    /// It sends when it is dropped.
    pub(super) const fn between_bursts(mut self) -> Self {
        self.is_between_bursts = true;
        self
    }

    /// The NF is at packet `n` of the burst.
    #[inline(always)]
    pub(super) const fn set_place(&mut self, n: usize, descriptor: *const Descriptor) {
        (self.at, self.current) = (n, descriptor);
    }

    /// A new packet of `length` zero bytes, which counts as received by no port: it can only be sent out of a port,
    /// unless [`OwnedPacket::set_ingress`] names one. `None` without a free buffer, or if the packet does not fit into
    /// one: the engine gives each thread up to `allocate` buffers (a key of `[[nf]]`) from the group's pool.
    ///
    /// The first call of a thread waits for the first buffers, some microseconds; no later one waits.
    pub fn alloc(&mut self, length: usize) -> Option<OwnedPacket> {
        let path = self.kit.path.or_else(|| self.own_path())?;
        self.make(path, Origin::Made, length)
    }

    /// As [`Outbox::alloc`], in the place of a packet that was received: with its ingress port, chain and hop. If the
    /// NF's trust group may not send to that port, the engine drops the new packet, unless it is sent out of a port.
    pub fn alloc_for(&mut self, packet: &Packet<'_>, length: usize) -> Option<OwnedPacket> {
        self.make(packet.descriptor(), Origin::MadeAsReceived, length)
    }

    /// A copy of a packet. Buffers have one owner at a time, so the bytes are copied. `None` as for [`Outbox::alloc`].
    pub fn clone_of(&mut self, packet: &Packet<'_>) -> Option<OwnedPacket> {
        let mut copy = self.make_uncleared(packet.descriptor(), Origin::MadeAsReceived, packet.len())?;
        copy.data_mut().copy_from_slice(packet.data());
        Some(copy)
    }

    /// Holds a packet of the burst: the NF has it until it sends it, and the verdict on it is ignored.
    ///
    /// # Errors
    /// Returns the packet if the thread holds as many as `hold` of its `[[nf]]` allows, by default 0, or if the packet
    /// is not the one of the burst that the NF is at.
    pub fn hold<'p>(&mut self, packet: Packet<'p>) -> Result<OwnedPacket, Packet<'p>> {
        let is_current = core::ptr::eq(packet.address(), self.current) && !self.kit.is_held(self.at);
        if !is_current || self.may_hold() == 0 {
            return Err(packet);
        }
        let kept = Kept { descriptor: packet.descriptor(), origin: Origin::Received };
        let Some(held) = OwnedPacket::new(&self.kit.owner, kept) else { return Err(packet) };
        self.kit.is_used = true;
        self.kit.owned += 1;
        self.kit.held += 1;
        self.kit.held_now.push((self.at, kept.descriptor.buffer()));
        Ok(held)
    }

    /// Number of further packets that this thread may hold.
    #[must_use]
    pub fn may_hold(&self) -> usize {
        self.kit.owner.shared.control.quota().hold.saturating_sub(self.kit.held) as usize
    }

    /// Number of packets that this thread holds.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.kit.held as usize
    }

    /// Sends a packet by a verdict, as if the NF had received it in this burst. A packet of another thread's outbox is
    /// not sent, but dropped.
    pub fn send(&mut self, packet: OwnedPacket, verdict: Verdict) {
        if !packet.is_of(&self.kit.owner) {
            return;
        }
        let kept = packet.into_kept();
        self.kit.owned = self.kit.owned.saturating_sub(1);
        let descriptor = kept.descriptor;
        let (kind, argument) = match verdict {
            Verdict::Next => (VerdictKind::Next, descriptor.argument()),
            Verdict::Drop => (VerdictKind::Drop, 0),
            Verdict::Port(port) => (VerdictKind::Port, port.0),
            Verdict::Role(role) => (VerdictKind::Role, role.0),
            Verdict::DropFlow(idle) => (VerdictKind::DropFlow, idle.0),
            Verdict::SkipFlow(idle) => (VerdictKind::SkipFlow, idle.0),
            Verdict::SteerFlow(to) => to.in_descriptor(),
        };
        if kept.origin == Origin::Received {
            self.kit.held = self.kit.held.saturating_sub(1);
        }
        let before = self.kit.place(self.at, descriptor.buffer());
        if kept.origin == Origin::MadeAsReceived {
            let ingress = Message::Ingress { buffer: descriptor.buffer(), port: descriptor.ingress() };
            self.kit.send_message(ingress, descriptor.worker(), before);
        }
        let descriptor = descriptor.with_verdict(kind, argument);
        self.kit.waiting.push(Waiting { descriptor, before });
    }

    /// Time since the thread's start; in the simulator, the time that the test has set.
    #[must_use]
    pub fn now(&self) -> Duration {
        match self.kit.time {
            Time::Since(start) => clock::duration_of(clock::cycles().wrapping_sub(start)),
            Time::Set(time) => time,
        }
    }

    fn make(&mut self, like: Descriptor, origin: Origin, length: usize) -> Option<OwnedPacket> {
        let mut packet = self.make_uncleared(like, origin, length)?;
        packet.data_mut().fill(0);
        Some(packet)
    }

    /// A packet on the path of `like`, with the bytes of an earlier one.
    fn make_uncleared(&mut self, like: Descriptor, origin: Origin, length: usize) -> Option<OwnedPacket> {
        let length = u16::try_from(length).ok()?;
        let buffer = self.kit.stock.take(like.worker(), self.tx_rings)?;
        let on_path = buffer.on_path(like.chain(), like.hop(), like.argument(), like.worker());
        let descriptor = on_path.with_span(buffer.offset(), length).with_hash(like.hash());
        let packet = OwnedPacket::new(&self.kit.owner, Kept { descriptor, origin });
        if packet.is_some() {
            self.kit.is_used = true;
            self.kit.owned += 1;
        } else {
            self.kit.stock.put(buffer);
        }
        packet
    }

    /// A place of the NF's role in a chain.
    fn own_path(&self) -> Option<Descriptor> {
        let role = self.kit.owner.shared.control.header().role;
        let chains = (0u16..).zip(&self.table.table().hop_roles);
        let mut hops =
            chains.flat_map(|(chain, roles)| (0u8..).zip(roles).map(move |(hop, of)| (chain, hop, *of)));
        let (chain, hop, _) = hops.find(|(_, _, of)| *of == role + 1)?;
        Some(Descriptor::default().on_path(chain, hop, 0, 0))
    }
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        if self.is_between_bursts && self.kit.is_used {
            self.kit.dispatch(self.tx_rings, self.table, &[], &[]);
        }
    }
}
