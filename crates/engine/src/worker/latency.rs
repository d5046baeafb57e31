//! Latency of the packet path. Each worker follows one packet at a time, by the address of its mbuf, in private memory:
//! nothing is written into packets or mbufs. In: the packets of each stage. Out: samples, into a ring that the manager
//! empties into histograms.
//!
//! ```text
//!  rx ── follow ──▶ deliver ── handed_out ──▶ NF ──▶ collect ── taken_back ──▶ leave ── left ──▶ transmit ── queued ──▶ flush ── sent
//! ```
//!
//! A packet that is dropped, copied into another memory or passed to another worker is no longer followed. If its mbuf
//! were used again unseen, a sample would be wrong: reception and drops look for that.
//!
//! Cost: nothing is measured until somebody asks, and a burst then costs a comparison or two in each stage. While a packet
//! is followed, it costs the comparison of all addresses of the burst. A packet is chosen at most every 20 microseconds.

use std::cell::Cell;

use dpdk::{Batch, MbufPtr};
use netvm_region::clock;
use rtrb::Producer;

use crate::ids::{ChainId, PortId};

/// Shortest time from the choice of one packet to that of the next.
const INTERVAL_MICROS: u64 = 20;
/// A packet that has not left for so long is given up.
const LONGEST_MICROS: u64 = 1_000_000;

/// What a sample measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// From reception by the first port until the second port's device had it.
    Ports(PortId, PortId),
    /// From the ring of a chain's first NF until the packet left the chain.
    Chain(ChainId),
    /// From the ring of the NF at the first hop until the NF at the last one returned it: more than one hop where NFs
    /// pass packets on directly.
    Hops(ChainId, u8, u8),
}

/// One measured packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencySample {
    pub(crate) span: Span,
    pub(crate) cycles: u64,
}

/// The packet that a worker follows.
pub(crate) struct Latency {
    followed: Cell<Option<MbufPtr>>,
    from: PortId,
    /// Start of the turn in which it was chosen.
    chosen: u64,
    received: u64,
    /// Chain that it entered, and when.
    chain: Option<(ChainId, u64)>,
    /// Hop whose NF has it, and since when.
    hop: Option<(u8, u64)>,
    /// Port that is about to send it.
    to: Option<PortId>,
    is_on: bool,
    /// When the next packet may be chosen.
    next: u64,
    interval: u64,
    longest: u64,
    /// Which packet of a burst is chosen.
    turn: usize,
    samples: Producer<LatencySample>,
}

impl Latency {
    pub(crate) fn new(samples: Producer<LatencySample>) -> Self {
        Self {
            followed: Cell::new(None),
            from: PortId(0),
            is_on: false,
            chosen: 0,
            received: 0,
            chain: None,
            hop: None,
            to: None,
            next: u64::MAX,
            interval: clock::cycles_in_micros(INTERVAL_MICROS),
            longest: clock::cycles_in_micros(LONGEST_MICROS),
            turn: 0,
            samples,
        }
    }

    /// Begins or ends measuring.
    pub(crate) fn measure(&mut self, is_on: bool) {
        if is_on != self.is_on {
            self.is_on = is_on;
            self.followed.set(None);
            self.next = if is_on { 0 } else { u64::MAX };
        }
    }

    /// Whether the followed packet is one of these.
    #[inline(always)]
    pub(crate) fn is_among(&self, packets: &[MbufPtr]) -> bool {
        self.followed
            .get()
            .is_some_and(|followed| packets.iter().fold(false, |found, packet| found | (*packet == followed)))
    }

    /// Packets were received by a port in a turn that began at `now`.
    #[inline(always)]
    pub(crate) fn received(&mut self, port: PortId, batch: &Batch, now: u64) {
        if self.followed.get().is_none() {
            if now >= self.next {
                self.follow(port, batch, now);
            }
        } else if self.is_among(batch.raw()) || now.wrapping_sub(self.chosen) > self.longest {
            // It was freed unseen, or it is held.
            self.followed.set(None);
        }
    }

    #[inline(never)]
    fn follow(&mut self, port: PortId, batch: &Batch, now: u64) {
        self.turn = self.turn.wrapping_add(1);
        let Some(packet) = batch.raw().get(self.turn % batch.len().max(1)) else { return };
        self.followed.set(Some(*packet));
        (self.from, self.chosen, self.received) = (port, now, clock::cycles());
        self.next = now.wrapping_add(self.interval);
        (self.chain, self.hop, self.to) = (None, None, None);
    }

    /// The followed packet was written into the ring of an NF.
    #[cold]
    pub(crate) fn handed_out(&mut self, chain: ChainId, hop: u8) {
        let now = clock::cycles();
        self.chain.get_or_insert((chain, now));
        self.hop = Some((hop, now));
    }

    /// An NF at `hop` has returned packets.
    #[inline(always)]
    pub(crate) fn taken_back(&mut self, batch: &Batch, hop: u8) {
        if self.hop.is_some()
            && self.is_among(batch.raw())
            && let Some((first, since)) = self.hop.take()
            && let Some((chain, _)) = self.chain
        {
            self.sample(Span::Hops(chain, first, hop.max(first)), since);
        }
    }

    /// Packets leave a chain.
    #[inline(always)]
    pub(crate) fn left(&mut self, batch: &Batch) {
        if self.chain.is_some()
            && self.is_among(batch.raw())
            && let Some((chain, since)) = self.chain.take()
        {
            self.sample(Span::Chain(chain), since);
        }
    }

    /// Packets are about to be sent by a port at the end of the turn.
    #[inline(always)]
    pub(crate) fn queued(&mut self, batch: &Batch, port: PortId) {
        if self.is_among(batch.raw()) {
            self.to = Some(port);
            // From here on the device has it, which may free it.
            self.followed.set(None);
            self.hold();
        }
    }

    /// No other packet is chosen until this one was sent.
    #[cold]
    fn hold(&mut self) {
        self.next = u64::MAX;
    }

    /// The devices have what was queued in this turn.
    #[inline(always)]
    pub(crate) fn flushed(&mut self) {
        if let Some(to) = self.to.take() {
            self.sample(Span::Ports(self.from, to), self.received);
            self.next = self.chosen.wrapping_add(self.interval);
        }
    }

    /// Packets are freed.
    #[inline(always)]
    pub(crate) fn dropped(&self, batch: &Batch) {
        if self.is_among(batch.raw()) {
            self.followed.set(None);
        }
    }

    /// If the manager is late, samples are lost, which does no harm.
    #[cold]
    fn sample(&mut self, span: Span, since: u64) {
        let _ = self.samples.push(LatencySample { span, cycles: clock::cycles().wrapping_sub(since) });
    }
}
