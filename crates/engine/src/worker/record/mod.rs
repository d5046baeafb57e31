// SPDX-License-Identifier: Apache-2.0
//! Follows packets, for traces. In: packets before each stage, and where they are dropped. Out: events, of which the
//! manager makes steps.
//!
//! ```text
//!  an NF that makes a packet ── received ──▶ stage …
//!  rx ── received ──▶ stage ── visited ──▶ NF ── visited ──▶ stage ── visited ──▶ tx
//!                       ├── dropped          └── copied ──▶ stage ── visited ──▶ tx
//!                       └── handed_over ══ a record ══▶ another worker ── taken_over ──▶ stage ── visited ──▶ tx
//! ```
//!
//! A packet that goes into a program with ports comes back as another one: the next packet of its flow that the
//! program's other port receives. That is a guess, and the trace says so. The worker waits that has this port.
//!
//! A hypothetical packet is alone in a worker of its own. Live traces follow packets of traffic. Both note the same
//! events.
//!
//! Cost: without a trace, one branch per burst and stage, and one for each burst that an NF returns, that is dropped,
//! that goes to another worker, or that a port without a device receives or sends. While traces run, a received burst
//! costs their filters, and a burst at a stage a multiplication and a comparison for each of its packets. A packet that
//! is followed costs a time stamp and 100 bytes for each stage.

mod event;
mod following;
mod live;
mod peers;

use std::cell::RefCell;

use arrayvec::ArrayVec;
use dpdk::{Batch, Mbuf, MbufPtr};
use netvm_capture_ring::Direction;

use super::trace::Step;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, RoleId, TraceId, WorkerId};
use crate::snapshot::Snapshot;
pub(crate) use event::{Events, PacketEvent, PacketNumber, RawEvent, Share, TraceRecord};
pub(crate) use live::LiveTrace;

/// Most traces that run at a time.
pub(crate) const MAX_TRACES: usize = 16;
/// Events of a hypothetical packet: enough for a copy to each port of the largest VLAN.
const HYPOTHETICAL_EVENTS: usize = 8 * netvm_region::MAX_PORTS;

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The device of a port.
    Device(PortId),
    /// A port without a device: another one has sent them, or received them with a tag.
    Passed(PortId),
    /// An NF that has made them, at a position in a chain.
    Nf { role: RoleId, hop: u8 },
}

impl Source {
    /// The first step of such packets.
    const fn step(self) -> Step {
        match self {
            Self::Device(port) | Self::Passed(port) => Step::In(port),
            Self::Nf { role, hop } => Step::Made { role, hop },
        }
    }

    /// The port; `None` for what an NF has made.
    const fn port(self) -> Option<PortId> {
        match self {
            Self::Device(port) | Self::Passed(port) => Some(port),
            Self::Nf { .. } => None,
        }
    }

    /// For filters.
    const fn direction(self) -> Direction {
        match self {
            Self::Device(_) | Self::Passed(_) => Direction::In,
            Self::Nf { .. } => Direction::Out,
        }
    }

    /// Whether a trace of packets from `from` is to follow such packets, and one of all packets that arrive.
    fn is_wanted(self, from: Option<PortId>) -> bool {
        match (self, from) {
            (Self::Device(port) | Self::Passed(port), Some(from)) => port == from,
            (Self::Device(_) | Self::Nf { .. }, None) => true,
            (Self::Passed(_), None) | (Self::Nf { .. }, Some(_)) => false,
        }
    }
}

/// Packets that a port has received, or an NF has made.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    /// The number of the snapshot in force.
    pub(crate) snapshot: u32,
    pub(crate) source: Source,
    pub(crate) packets: &'a [Mbuf],
}

impl<'a> Arrival<'a> {
    pub(crate) const fn of(snapshot: &Snapshot, source: Source, packets: &'a [Mbuf]) -> Self {
        Self { snapshot: snapshot.number, source, packets }
    }
}

/// Packets before a stage.
#[derive(Clone, Copy)]
pub(crate) struct Visit<'a> {
    /// The number of the snapshot in force; `None`: of the packet's last event.
    pub(crate) snapshot: Option<u32>,
    pub(crate) packets: &'a [Mbuf],
    /// The stage copies them for a mirror port.
    pub(crate) is_mirror: bool,
    /// The stage sends them.
    pub(crate) is_end: bool,
    /// The stage sends them into a program, and they should come back.
    pub(crate) comes_back: Option<ComesBack>,
}

/// Where packets come back that have gone into a program.
#[derive(Clone, Copy)]
pub(crate) struct ComesBack {
    /// The port that receives them.
    pub(crate) by: PortId,
    /// The worker that has the port; `None`: this one.
    pub(crate) worker: Option<WorkerId>,
}

impl<'a> Visit<'a> {
    /// Packets that are followed further.
    pub(crate) fn of(snapshot: &Snapshot, batch: &'a Batch) -> Self {
        Self { snapshot: Some(snapshot.number), ..Self::later(batch) }
    }

    /// The same, under the snapshot of their last events.
    pub(crate) fn later(batch: &'a Batch) -> Self {
        let packets = batch.as_slice();
        Self { snapshot: None, packets, is_mirror: false, is_end: false, comes_back: None }
    }
}

/// Notes what happens to packets.
#[derive(Debug)]
pub(crate) enum Recorder {
    /// The only packet, which is hypothetical, and its copies.
    Hypothetical(RefCell<Events>),
    /// Packets of each trace.
    Live(RefCell<ArrayVec<Box<LiveTrace>, MAX_TRACES>>),
}

impl Recorder {
    pub(crate) const fn hypothetical() -> Self {
        Self::Hypothetical(RefCell::new(Events::up_to(HYPOTHETICAL_EVENTS)))
    }

    /// Without a trace yet.
    pub(crate) const fn live() -> Self {
        Self::Live(RefCell::new(ArrayVec::new_const()))
    }

    /// The events of the hypothetical packet.
    pub(crate) fn into_events(self) -> Events {
        match self {
            Self::Hypothetical(events) => events.into_inner(),
            Self::Live(_) => Events::default(),
        }
    }

    /// Begins a trace. Returns it if too many run.
    pub(crate) fn add(&mut self, trace: Box<LiveTrace>) -> Option<Box<LiveTrace>> {
        match self {
            Self::Hypothetical(_) => Some(trace),
            Self::Live(traces) => {
                traces.get_mut().try_push(trace).err().map(arrayvec::CapacityError::element)
            }
        }
    }

    /// Ends a trace.
    pub(crate) fn remove(&mut self, id: TraceId) -> Option<Box<LiveTrace>> {
        let Self::Live(traces) = self else { return None };
        let traces = traces.get_mut();
        let at = traces.iter().position(|trace| trace.id == id)?;
        Some(traces.swap_remove(at))
    }

    /// Whether it has nothing to note.
    pub(crate) fn is_unused(&mut self) -> bool {
        match self {
            Self::Hypothetical(_) => false,
            Self::Live(traces) => traces.get_mut().is_empty(),
        }
    }

    /// Takes a record to fill. Returns it if its trace has ended.
    pub(crate) fn reuse(&mut self, record: TraceRecord) -> Option<TraceRecord> {
        let Self::Live(traces) = self else { return Some(record) };
        match traces.get_mut().iter_mut().find(|trace| trace.id == record.trace) {
            Some(trace) => trace.reuse(record),
            None => Some(record),
        }
    }

    /// The record of a packet that has ended by `now`.
    pub(crate) fn take_ended(&mut self, now: u64) -> Option<TraceRecord> {
        let Self::Live(traces) = self else { return None };
        traces.get_mut().iter_mut().find_map(|trace| trace.take_ended(now))
    }

    /// Notes that a port has received packets, or an NF has made them.
    pub(crate) fn received(&self, arrival: &Arrival<'_>) {
        match self {
            Self::Hypothetical(_) => self.note(arrival.snapshot, PacketEvent::Step(arrival.source.step())),
            Self::Live(traces) => {
                let mut traces = traces.borrow_mut();
                let filters = traces.len();
                traces.iter_mut().for_each(|trace| trace.received(arrival, filters));
            }
        }
    }

    /// Notes what happens to packets at a stage.
    pub(crate) fn visited(&self, visit: &Visit<'_>, what: impl Fn(&Mbuf) -> Option<PacketEvent>) {
        match self {
            Self::Hypothetical(_) => {
                let what = visit.packets.first().and_then(what);
                what.into_iter().for_each(|what| self.note(visit.snapshot.unwrap_or_default(), what));
            }
            Self::Live(_) => self.each(|trace| trace.visited(visit, &what)),
        }
    }

    /// Notes an event of the hypothetical packet.
    pub(crate) fn note(&self, snapshot: u32, what: PacketEvent) {
        if let Self::Hypothetical(events) = self {
            events.borrow_mut().note(snapshot, what);
        }
    }

    /// Notes that packets are dropped.
    pub(crate) fn dropped(&self, reason: DropReason, packets: &[Mbuf]) {
        if !packets.is_empty() {
            self.note(0, PacketEvent::Step(Step::Dropped(reason)));
            self.each(|trace| trace.dropped(packets, reason));
        }
    }

    /// Notes that a port gets a copy of a packet as well; `None`: it does not, for want of a buffer.
    pub(crate) fn copied(&self, packet: &Mbuf, copy: Option<&Mbuf>) {
        if copy.is_none() {
            self.note(0, PacketEvent::Step(Step::Dropped(DropReason::NoBuffer)));
        }
        self.each(|trace| trace.copied(packet.as_ptr(), copy.map(Mbuf::as_ptr)));
    }

    /// Notes that a packet has been copied into another buffer, and that the copy goes on in its place.
    pub(crate) fn replaced(&self, packet: MbufPtr, copy: &Mbuf) {
        self.each(|trace| trace.replaced(packet, copy.as_ptr(), None));
    }

    /// Notes that a packet is cut into so many, of which `first` is one.
    pub(crate) fn cut(&self, packet: &Mbuf, first: &Mbuf, packets: usize) {
        self.each(|trace| trace.replaced(packet.as_ptr(), first.as_ptr(), Some(packets)));
    }

    /// Notes that another worker is about to get packets.
    pub(crate) fn handed_over(&self, to: WorkerId, batch: &Batch) {
        self.each(|trace| trace.hand_over(to, batch.as_slice()));
    }

    /// Follows packets that other workers have handed over.
    pub(crate) fn taken_over(&self) {
        self.each(LiveTrace::take_over);
    }

    fn each(&self, mut note: impl FnMut(&mut LiveTrace)) {
        if let Self::Live(traces) = self {
            traces.borrow_mut().iter_mut().for_each(|trace| note(trace));
        }
    }
}
