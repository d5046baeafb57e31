// SPDX-License-Identifier: Apache-2.0
//! Packet capture. In: packets at a capture point, or packets about to be dropped, with their metadata. Out: a copy
//! of each matching packet in the ring of the capture's reader. The packets themselves do not change.
//!
//! Cost without captures: one branch per burst and capture point. With captures: a time stamp and a lookup per burst,
//! capture point and capture, and one copy of at most `snaplen` bytes per packet. Filters ([`filtering`]) have a share
//! of the worker's time, for which they cost another time stamp per burst, or per packet if they are long.

mod budget;
pub(crate) mod filtering;
pub(crate) mod points;

use std::cell::RefCell;
use std::sync::Arc;

use dpdk::Mbuf;
use netvm_capture_ring::{Direction, Filter, NONE_U8, NONE_U16, Origin, Record, RingError, Writer};
use netvm_clock as clock;

use crate::drop_reason::DropReason;
use crate::ids::{CaptureId, ChainId, PortId, RoleId, RouterId};
use crate::memory::mark::maker_of;
use filtering::Filtering;
use points::CapturePoints;

/// Most captures that run at a time.
pub(crate) const MAX_CAPTURES: usize = 16;

/// A point of the packet path at which a capture can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapturePoint {
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

/// Metadata that packets at one capture point have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaptureMeta {
    pub(crate) point: CapturePoint,
    pub(crate) direction: Direction,
    /// The drop reason, if they are dropped.
    pub(crate) reason: Option<DropReason>,
    /// An NF's verdict and its argument.
    pub(crate) verdict: Option<(u8, u16)>,
}

impl CaptureMeta {
    pub(crate) const fn at(point: CapturePoint, direction: Direction) -> Self {
        Self { point, direction, reason: None, verdict: None }
    }

    pub(crate) const fn dropped(point: CapturePoint, reason: DropReason) -> Self {
        Self { point, direction: Direction::None, reason: Some(reason), verdict: None }
    }

    pub(crate) const fn by_verdict(self, kind: u8, argument: u16) -> Self {
        Self { verdict: Some((kind, argument)), ..self }
    }

    /// The record of these packets at an interface.
    fn record(&self, interface: u16) -> Record {
        let (chain, hop) = match self.point {
            CapturePoint::Hop { chain, hop, .. } => (chain.0, hop),
            CapturePoint::Chain(chain) => (chain.0, NONE_U8),
            CapturePoint::Port(_) | CapturePoint::Router(_) => (NONE_U16, NONE_U8),
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
pub(crate) struct WorkerCapture {
    pub(crate) id: CaptureId,
    pub(crate) points: Arc<CapturePoints>,
    filtering: Option<Filtering>,
    /// Longest copy of a packet.
    snaplen: usize,
    ring: Writer,
}

impl WorkerCapture {
    pub(crate) fn new(id: CaptureId, points: Arc<CapturePoints>, parts: CaptureParts) -> Self {
        let CaptureParts { ring, filter, snaplen } = parts;
        Self { id, points, filtering: filter.map(Filtering::new), snaplen, ring }
    }

    /// Allocates all of its ring, if it is not allocated yet.
    pub(crate) fn allocate(&self) -> Result<(), RingError> {
        self.ring.allocate()
    }

    /// `captures`: so many run on this worker.
    fn capture(&mut self, meta: &CaptureMeta, packets: &[Mbuf], captures: usize) {
        let Some(interface) = self.points.interface(meta) else { return };
        let record = meta.record(interface);
        self.ring.count_seen(interface, packets.len() as u64);
        if let Some(mut filtering) = self.filtering.take() {
            filtering.fill(record.cycles, captures);
            let mut left = packets;
            while let Some((some, rest)) = filtering.next(left) {
                let wanted = filtering.wanted(some, meta.direction);
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
        let origin = match maker_of(mbuf) {
            Some(role) => Origin::Nf(role.0),
            None => Origin::Port(mbuf.port().0),
        };
        let record = Record { original: mbuf.pkt_len(), origin, ..*record };
        let length = usize::from(mbuf.data_len()).min(self.snaplen);
        // SAFETY: the engine owns the packet, whose first segment has `data_len` bytes. NFs of its group may write to
        // them at the same time; then the copy is as inconsistent as the packet.
        unsafe { self.ring.write(record, mbuf.data(), length) };
    }
}

/// A capture that has ended. Dropping it, which may take long, frees the ring's memory, whether or not the client keeps
/// it.
#[derive(Debug)]
pub(crate) struct EndedCapture(pub(crate) Box<WorkerCapture>);

impl Drop for EndedCapture {
    fn drop(&mut self) {
        self.0.ring.release();
    }
}

/// What a capture has on a worker.
#[derive(Debug)]
pub(crate) struct CaptureParts {
    pub(crate) ring: Writer,
    pub(crate) filter: Option<Filter>,
    /// Longest copy of a packet.
    pub(crate) snaplen: usize,
}

/// The captures that run on a worker.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "the manager allocates and frees them; the worker only moves pointers")]
pub(crate) struct WorkerCaptures(RefCell<Vec<Box<WorkerCapture>>>);

impl Default for WorkerCaptures {
    fn default() -> Self {
        Self(RefCell::new(Vec::with_capacity(MAX_CAPTURES)))
    }
}

impl WorkerCaptures {
    pub(crate) fn add(&mut self, capture: Box<WorkerCapture>) {
        self.0.get_mut().push(capture);
    }

    /// Returns the points that the capture had.
    pub(crate) fn set_points(&mut self, id: CaptureId, points: Arc<CapturePoints>) -> Arc<CapturePoints> {
        match self.0.get_mut().iter_mut().find(|capture| capture.id == id) {
            Some(capture) => core::mem::replace(&mut capture.points, points),
            None => points,
        }
    }

    pub(crate) fn remove(&mut self, id: CaptureId) -> Option<Box<WorkerCapture>> {
        let captures = self.0.get_mut();
        let at = captures.iter().position(|capture| capture.id == id)?;
        Some(captures.swap_remove(at))
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.0.get_mut().is_empty()
    }

    /// Copies packets into the captures that match them.
    #[cold]
    #[inline(never)]
    pub(crate) fn capture(&self, meta: &CaptureMeta, packets: &[Mbuf]) {
        if packets.is_empty() {
            return;
        }
        let mut captures = self.0.borrow_mut();
        let count = captures.len();
        for capture in captures.iter_mut() {
            capture.capture(meta, packets, count);
        }
    }
}
