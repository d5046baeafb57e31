// SPDX-License-Identifier: Apache-2.0
//! Latency of the packet path. Each worker follows one packet at a time, by the address of its mbuf, in private memory:
//! nothing is written into packets or mbufs. In: the packets of each stage. Out: samples, into a ring that the manager
//! empties into histograms.
//!
//! ```text
//!  rx ── follow ──▶ deliver ── handed_out ──▶ NF ──▶ collect ── taken_back ──▶ leave ── left ──┐
//!  ┌───────────────────────────────────────────────────────────────────────────────────────────┘
//!  └──▶ transmit ── queued ──▶ flush ── sent
//! ```
//!
//! A packet that goes into a program with ports comes back as another one, by another port, perhaps to another worker.
//! It is known again by its [digest](super::packet::digest), and followed further ([`awaited`]). One that the program
//! changes in what the digest covers, as a proxy or NAT does, is not known again; of equal packets, the first that
//! comes back counts.
//!
//! A worker stops following a packet that is dropped, and follows the copy of one that is copied into another memory.
//! An unnoticed reuse of its mbuf would make a sample wrong, so reception and drops check for it. A packet for another
//! worker's port carries its stamp, and that worker follows it.
//!
//! While a worker follows a slow packet, it follows no other. A sample therefore includes the number of received
//! packets that would have been chosen in the meantime. The manager counts these with the times that they must have
//! waited if packets keep their order. Otherwise, a delay of a millisecond for thousands of packets would count only
//! once (coordinated omission).
//!
//! Cost: measurement is off until a client requests it. Then a burst costs one comparison in each of rx, collect, leave
//! and tx. While a worker follows a packet, these stages compare all addresses of the burst. A packet is chosen at most
//! every 20 microseconds.

mod awaited;

use std::cell::Cell;
use std::sync::Arc;

use dpdk::{Batch, Mbuf, MbufPtr};
use netvm_clock as clock;
use rtrb::Producer;

use super::packet::digest::digest_of;
use super::trace::Origin;
use crate::ids::{ChainId, PortId, RoleId, WorkerId};
use awaited::AwaitedPacket;
pub(crate) use awaited::AwaitedPackets;

/// Shortest interval between the choices of two packets.
const INTERVAL_MICROS: u64 = 20;
/// A worker gives up on a packet that has not left within this time.
const MAX_MICROS: u64 = 1_000_000;

/// What a sample measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// From reception by the first port until the second port's device had the packet.
    Ports(PortId, PortId),
    /// From the ring of an NF of a role that has made the packet until the port's device had it.
    Made(RoleId, PortId),
    /// From the ring of a chain's first NF until the packet left the chain.
    Chain(ChainId),
    /// From the ring of the NF at the first hop until the NF at the last hop returned it: several hops if NFs pass
    /// packets on directly. Of a program with ports: until the packet came back by the other port.
    Hops(ChainId, u8, u8),
}

/// One measured packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencySample {
    pub(crate) span: Span,
    pub(crate) cycles: u64,
    /// Packets that would have been chosen in the meantime.
    pub(crate) missed: u32,
}

/// A measured packet that waits for the device of its port to take it.
#[derive(Clone, Copy)]
struct Queued {
    from: Origin,
    to: PortId,
    received: u64,
    since: u64,
    missed: u32,
}

/// The way of packets through a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramPassage {
    pub(crate) chain: ChainId,
    pub(crate) hop: u8,
    /// The port by which they should come back.
    pub(crate) by: PortId,
}

/// The packet that a worker follows.
pub(crate) struct Latency {
    own_id: WorkerId,
    followed: Cell<Option<MbufPtr>>,
    from: Origin,
    /// Start of the turn in which it was chosen.
    chosen: u64,
    received: u64,
    /// Chain that it entered, and when.
    chain: Option<(ChainId, u64)>,
    /// The hop whose NF has it, and since when.
    hop: Option<(u8, u64)>,
    /// A packet of this worker that was queued.
    own: Option<Queued>,
    /// A queued packet that another worker handed over.
    taken: Option<Queued>,
    is_on: bool,
    /// When the next packet may be chosen.
    next: u64,
    /// Packets that would have been chosen since this one was.
    missed: u32,
    interval: u64,
    longest: u64,
    /// Number of chosen packets, which decides which packet of a burst is next.
    count: usize,
    /// Bursts to skip, so that the first of several ports is not the only one measured.
    skip: u8,
    samples: Producer<LatencySample>,
    /// The packets that programs have.
    awaited: Arc<AwaitedPackets>,
}

impl Latency {
    /// Of a worker, which shares `awaited` with the others.
    pub(crate) fn new(
        own_id: WorkerId,
        samples: Producer<LatencySample>,
        awaited: Arc<AwaitedPackets>,
    ) -> Self {
        Self {
            own_id,
            awaited,
            followed: Cell::new(None),
            from: Origin::Port(PortId(0)),
            chosen: 0,
            received: 0,
            chain: None,
            hop: None,
            own: None,
            taken: None,
            is_on: false,
            next: u64::MAX,
            missed: 0,
            interval: clock::cycles_in_micros(INTERVAL_MICROS),
            longest: clock::cycles_in_micros(MAX_MICROS),
            count: 0,
            skip: 0,
            samples,
        }
    }

    /// Turns the measurement on or off.
    pub(crate) fn measure(&mut self, is_on: bool) {
        if is_on != self.is_on {
            self.is_on = is_on;
            self.followed.set(None);
            (self.own, self.taken) = (None, None);
            self.awaited.cancel(self.own_id);
            self.next = if is_on { 0 } else { u64::MAX };
        }
    }

    /// Whether it measures.
    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether the followed packet is one of these.
    #[inline(always)]
    pub(crate) fn is_among(&self, packets: &[MbufPtr]) -> bool {
        self.followed
            .get()
            .is_some_and(|followed| packets.iter().fold(false, |found, packet| found | (*packet == followed)))
    }

    /// Handles packets that a port received in a turn that began at `now`.
    #[inline(always)]
    pub(crate) fn received(&mut self, port: PortId, batch: &Batch, now: u64) {
        self.arrived(Origin::Port(port), batch.raw(), now);
    }

    /// Handles packets that an NF has made, in a turn that began at `now`.
    pub(crate) fn made(&mut self, role: RoleId, packets: &[MbufPtr], now: u64) {
        self.arrived(Origin::Nf(role), packets, now);
    }

    #[inline(always)]
    fn arrived(&mut self, from: Origin, packets: &[MbufPtr], now: u64) {
        if self.followed.get().is_none() {
            if now >= self.next && self.own.is_none() {
                self.choose(from, packets, now);
            }
        } else if self.is_among(packets) || now.wrapping_sub(self.chosen) > self.longest {
            // The followed packet was freed unnoticed, or is held somewhere.
            self.followed.set(None);
        } else if now >= self.next {
            self.missed = self.missed.saturating_add(1);
            self.next = now.wrapping_add(self.interval);
        }
    }

    /// Chooses a packet, unless a program has the last one.
    #[inline(never)]
    fn choose(&mut self, from: Origin, packets: &[MbufPtr], now: u64) {
        if !self.awaited.waits(self.own_id) {
            self.follow(from, packets, now);
        } else if now.wrapping_sub(self.chosen) > self.longest {
            // The program has dropped it, or changed it.
            self.awaited.cancel(self.own_id);
        } else {
            self.awaited.miss(self.own_id);
            self.next = now.wrapping_add(self.interval);
        }
    }

    fn follow(&mut self, from: Origin, packets: &[MbufPtr], now: u64) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        let Some(packet) = packets.get(self.count % packets.len().max(1)) else { return };
        self.count = self.count.wrapping_add(1);
        self.skip = (self.count % 4) as u8;
        self.followed.set(Some(*packet));
        (self.from, self.chosen, self.received) = (from, now, clock::cycles());
        (self.chain, self.hop, self.missed) = (None, None, 0);
        self.next = now.wrapping_add(self.interval);
    }

    /// Follows the copy of a packet, if it is the followed one.
    #[cold]
    pub(crate) fn copied(&self, from: &Mbuf, to: &Mbuf) {
        if self.followed.get() == Some(from.as_ptr()) {
            self.followed.set(Some(to.as_ptr()));
        }
    }

    /// Records that the followed packet was written into the ring of an NF.
    #[cold]
    pub(crate) fn handed_out(&mut self, chain: ChainId, hop: u8) {
        let now = clock::cycles();
        self.chain.get_or_insert((chain, now));
        self.hop = Some((hop, now));
    }

    /// Handles packets that enter a program.
    #[cold]
    pub(crate) fn entered_program(&mut self, batch: &Batch, passage: ProgramPassage) {
        let found = batch.as_slice().iter().find(|mbuf| Some(mbuf.as_ptr()) == self.followed.get());
        // What an NF has made is not known again.
        let (Some(mbuf), Origin::Port(from)) = (found, self.from) else { return };
        let now = clock::cycles();
        let ProgramPassage { chain, hop, by } = passage;
        let chain = self.chain.filter(|(of, _)| *of == chain).unwrap_or((chain, now));
        let Self { received, missed, .. } = *self;
        let digest = digest_of(mbuf);
        let packet = AwaitedPacket { digest, by, from, received, chain, hop: (hop, now), missed };
        self.awaited.put(self.own_id, &packet);
    }

    /// Handles packets that a program's port has received in a turn that began at `now`.
    #[inline(always)]
    pub(crate) fn came_back(&mut self, by: PortId, batch: &Batch, now: u64) {
        if self.is_on {
            self.know_again(by, batch, now);
        }
    }

    #[inline(never)]
    fn know_again(&mut self, by: PortId, batch: &Batch, now: u64) {
        let Some((position, packet)) = self.awaited.take(by, || batch.as_slice().iter().map(digest_of))
        else {
            return;
        };
        let AwaitedPacket { from, received, chain, hop: (hop, since), missed, .. } = packet;
        self.sample(Span::Hops(chain.0, hop, hop), since, missed);
        let follows_older = self.followed.get().is_some() && self.chosen != now;
        if let Some(packet) = batch.raw().get(position).filter(|_| !follows_older && self.own.is_none()) {
            self.followed.set(Some(*packet));
            (self.from, self.chosen, self.received) = (Origin::Port(from), now, received);
            (self.chain, self.hop, self.missed) = (Some(chain), None, missed);
        }
    }

    /// Handles packets that an NF at `hop` has returned.
    #[inline(always)]
    pub(crate) fn taken_back(&mut self, batch: &Batch, hop: u8) {
        if self.hop.is_some()
            && self.is_among(batch.raw())
            && let Some((first, since)) = self.hop.take()
            && let Some((chain, _)) = self.chain
        {
            self.sample(Span::Hops(chain, first, hop.max(first)), since, self.missed);
        }
    }

    /// Handles packets that leave a chain.
    #[inline(always)]
    pub(crate) fn left(&mut self, batch: &Batch) {
        if self.chain.is_some()
            && self.is_among(batch.raw())
            && let Some((chain, since)) = self.chain.take()
        {
            // A packet that an NF has made was not in all of the chain.
            if matches!(self.from, Origin::Port(_)) {
                self.sample(Span::Chain(chain), since, self.missed);
            }
        }
    }

    /// Handles packets that a port of this worker is about to send, at the end of the turn or later.
    #[inline(always)]
    pub(crate) fn queued(&mut self, batch: &Batch, to: PortId) {
        if self.is_among(batch.raw()) {
            let Self { from, received, chosen, missed, .. } = *self;
            self.own = Some(Queued { from, to, received, since: chosen, missed });
            // From now on the device has the packet, and may free it.
            self.followed.set(None);
        }
    }

    /// Discards the last queued packet, because it waits in the port's shaper.
    #[cold]
    pub(crate) fn shaped(&mut self) {
        (self.own, self.taken) = (None, None);
    }

    /// The stamp of a packet that goes to another worker: the low bits of its reception time, or 0 if it is not the
    /// followed packet, or an NF has made it.
    #[inline(always)]
    pub(crate) fn hand_over(&self, packet: MbufPtr) -> u32 {
        if self.followed.get() != Some(packet) {
            return 0;
        }
        self.followed.set(None);
        if matches!(self.from, Origin::Port(_)) { self.received as u32 | 1 } else { 0 }
    }

    /// Handles a packet that came from another worker with its stamp, and is about to be sent.
    #[cold]
    pub(crate) fn take_over(&mut self, from: PortId, to: PortId, stamp: u32) {
        let now = clock::cycles();
        let passed = u64::from((now as u32).wrapping_sub(stamp));
        // If the counters of two cores differ, the elapsed time may be impossibly long.
        if self.is_on && self.taken.is_none() && passed < self.longest {
            let from = Origin::Port(from);
            self.taken = Some(Queued { from, to, received: now.wrapping_sub(passed), since: now, missed: 0 });
        }
    }

    /// Called when the devices have taken what they could. `is_flushed`: whether the device of a port has taken
    /// everything; `None` without a device.
    #[inline(always)]
    pub(crate) fn flushed(&mut self, now: u64, is_flushed: impl Fn(PortId) -> Option<bool>) {
        if self.own.is_some() || self.taken.is_some() {
            let (own, taken) = (self.own.take(), self.taken.take());
            self.own = own.filter(|queued| self.waits(queued, now, is_flushed(queued.to)));
            self.taken = taken.filter(|queued| self.waits(queued, now, is_flushed(queued.to)));
        }
    }

    #[inline(never)]
    fn waits(&mut self, queued: &Queued, now: u64, is_flushed: Option<bool>) -> bool {
        if is_flushed == Some(true) {
            let span = match queued.from {
                Origin::Port(from) => Span::Ports(from, queued.to),
                Origin::Nf(role) => Span::Made(role, queued.to),
            };
            self.sample(span, queued.received, queued.missed);
        }
        is_flushed == Some(false) && now.wrapping_sub(queued.since) < self.longest
    }

    /// Handles packets that are about to be freed.
    #[inline(always)]
    pub(crate) fn dropped(&self, batch: &Batch) {
        if self.is_among(batch.raw()) {
            self.followed.set(None);
            self.awaited.cancel(self.own_id);
        }
    }

    /// Sends a sample. If the manager is late, the sample is lost, which is harmless.
    #[cold]
    fn sample(&mut self, span: Span, since: u64, missed: u32) {
        let cycles = clock::cycles().wrapping_sub(since);
        let _ = self.samples.push(LatencySample { span, cycles, missed });
    }
}
