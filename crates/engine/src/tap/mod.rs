//! Packet capture. In: packets at a place of the packet path, or packets about to be dropped, with their metadata. Out: a copy
//! of each matching packet in the ring of the capture's reader. The packets themselves do not change.
//!
//! Cost without captures: one branch per burst and place. With captures: a time stamp and a lookup per burst, place
//! and capture, and one copy of at most `snaplen` bytes per packet. Filters ([`filtering`]) have a share of the
//! worker's time, for which they cost another time stamp per burst, or per packet if they are long.

mod budget;
pub(crate) mod filtering;
pub(crate) mod places;

use std::cell::RefCell;
use std::sync::Arc;

use dpdk::Mbuf;
use netvm_clock as clock;
use netvm_tap::{Direction, Filter, NONE_U8, NONE_U16, Record, RingError, Writer};

use crate::drop_reason::DropReason;
use crate::ids::{CaptureId, ChainId, PortId, RoleId, RouterId};
use filtering::Filtering;
use places::Places;

/// Most captures that run at a time.
pub(crate) const MAX_CAPTURES: usize = 16;

/// A place in the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Port(PortId),
    /// At the NF of a chain's hop.
    Hop {
        chain: ChainId,
        hop: u8,
        role: RoleId,
    },
    /// In a chain, at no hop.
    Chain(ChainId),
    Router(RouterId),
}

/// Metadata that packets at one place have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing {
    pub(crate) place: Place,
    pub(crate) direction: Direction,
    /// The drop reason, if they are dropped.
    pub(crate) reason: Option<DropReason>,
    /// An NF's verdict and its argument.
    pub(crate) verdict: Option<(u8, u16)>,
}

impl Passing {
    pub(crate) const fn at(place: Place, direction: Direction) -> Self {
        Self { place, direction, reason: None, verdict: None }
    }

    pub(crate) const fn dropped(place: Place, reason: DropReason) -> Self {
        Self { place, direction: Direction::None, reason: Some(reason), verdict: None }
    }

    pub(crate) const fn by_verdict(self, kind: u8, argument: u16) -> Self {
        Self { verdict: Some((kind, argument)), ..self }
    }

    /// The record of these packets at an interface.
    fn record(&self, interface: u16) -> Record {
        let (chain, hop) = match self.place {
            Place::Hop { chain, hop, .. } => (chain.0, hop),
            Place::Chain(chain) => (chain.0, NONE_U8),
            Place::Port(_) | Place::Router(_) => (NONE_U16, NONE_U8),
        };
        let (verdict, argument) = self.verdict.unwrap_or((NONE_U8, NONE_U16));
        let reason = self.reason.map_or(NONE_U8, |reason| reason as u8);
        Record {
            chain,
            hop,
            verdict,
            argument,
            reason,
            cycles: clock::cycles(),
            ..Record::at(interface, self.direction)
        }
    }
}

/// One capture's state in a worker.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) id: CaptureId,
    pub(crate) places: Arc<Places>,
    filtering: Option<Filtering>,
    /// Longest copy of a packet.
    snaplen: usize,
    ring: Writer,
}

impl Tap {
    pub(crate) fn new(id: CaptureId, places: Arc<Places>, parts: TapParts) -> Self {
        let TapParts { ring, filter, snaplen } = parts;
        Self { id, places, filtering: filter.map(Filtering::new), snaplen, ring }
    }

    /// Allocates all of its ring, if it is not allocated yet.
    pub(crate) fn allocate(&self) -> Result<(), RingError> {
        self.ring.allocate()
    }

    /// `captures`: so many run on this worker.
    fn capture(&mut self, passing: &Passing, packets: &[Mbuf], captures: usize) {
        let Some(interface) = self.places.interface(passing) else { return };
        let record = passing.record(interface);
        self.ring.count_seen(interface, packets.len() as u64);
        if let Some(mut filtering) = self.filtering.take() {
            filtering.fill(record.cycles, captures);
            let mut left = packets;
            while let Some((some, rest)) = filtering.next(left) {
                let wanted = filtering.wanted(some, passing.direction);
                let chosen = some.iter().zip(0..).filter(|(_, n)| wanted >> n & 1 == 1);
                chosen.for_each(|(mbuf, _)| self.write(&record, mbuf));
                left = rest;
            }
            self.ring.count_missed(interface, left.len() as u64);
            self.filtering = Some(filtering);
        } else {
            packets.iter().for_each(|mbuf| self.write(&record, mbuf));
        }
        self.ring.publish(interface);
    }

    #[inline]
    fn write(&mut self, record: &Record, mbuf: &Mbuf) {
        let record = Record { original: mbuf.pkt_len(), port: mbuf.port().0, ..*record };
        let length = usize::from(mbuf.data_len()).min(self.snaplen);
        // SAFETY: the engine owns the packet, whose first segment has `data_len` bytes. NFs of its group may write to
        // them at the same time; then the copy is as inconsistent as the packet.
        unsafe { self.ring.write(record, mbuf.data(), length) };
    }
}

/// A tap of a capture that has ended. Dropping it, which may take long, frees the ring's memory, whether or not the client keeps it.
#[derive(Debug)]
pub(crate) struct EndedTap(pub(crate) Box<Tap>);

impl Drop for EndedTap {
    fn drop(&mut self) {
        self.0.ring.release();
    }
}

/// What a capture has on a worker.
#[derive(Debug)]
pub(crate) struct TapParts {
    pub(crate) ring: Writer,
    pub(crate) filter: Option<Filter>,
    /// Longest copy of a packet.
    pub(crate) snaplen: usize,
}

/// The captures that run on a worker.
#[derive(Debug)]
#[expect(
    clippy::vec_box,
    reason = "the manager allocates a tap and frees it; the worker only moves its pointer"
)]
pub(crate) struct Taps(RefCell<Vec<Box<Tap>>>);

impl Default for Taps {
    fn default() -> Self {
        Self(RefCell::new(Vec::with_capacity(MAX_CAPTURES)))
    }
}

impl Taps {
    pub(crate) fn add(&mut self, tap: Box<Tap>) {
        self.0.get_mut().push(tap);
    }

    /// Returns the places that the capture had.
    pub(crate) fn set_places(&mut self, id: CaptureId, places: Arc<Places>) -> Arc<Places> {
        match self.0.get_mut().iter_mut().find(|tap| tap.id == id) {
            Some(tap) => core::mem::replace(&mut tap.places, places),
            None => places,
        }
    }

    pub(crate) fn remove(&mut self, id: CaptureId) -> Option<Box<Tap>> {
        let taps = self.0.get_mut();
        let at = taps.iter().position(|tap| tap.id == id)?;
        Some(taps.swap_remove(at))
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.0.get_mut().is_empty()
    }

    /// Shows packets to the captures.
    #[cold]
    #[inline(never)]
    pub(crate) fn show(&self, passing: &Passing, packets: &[Mbuf]) {
        if packets.is_empty() {
            return;
        }
        let mut taps = self.0.borrow_mut();
        let captures = taps.len();
        for tap in taps.iter_mut() {
            tap.capture(passing, packets, captures);
        }
    }
}
