// SPDX-License-Identifier: Apache-2.0
//! One packet that a worker follows, with its copies there, by the addresses of their mbufs. One that has gone into a
//! program comes back as another one: the next packet of its flow that comes back counts as this one.

use arrayvec::ArrayVec;
use dpdk::MbufPtr;

use super::event::{PacketEvent, TraceRecord};
use super::{Arrival, Source, Visit};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::MAX_PASSED;
use crate::worker::trace::{Lost, Step};

/// A packet and copies of it that are followed at once. A flooded packet has a copy for one port at a time, and so may
/// the copy, where a port without a device has led it.
const MAX_MBUFS: usize = 2 * (MAX_PASSED as usize + 1);

#[derive(Clone, Copy, Debug)]
struct Followed {
    mbuf: MbufPtr,
    /// The running stage sends it: that stage alone can still drop it. Afterwards, its device has it, and may free it.
    is_leaving: bool,
}

/// A packet that a program has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// The port by which it should come back.
    pub(super) by: PortId,
    /// Its flow, by [`flow_hash`](crate::worker::packet::digest::flow_hash).
    pub(super) flow: u64,
    /// What has gone in, and may still be dropped on the way there.
    pub(super) mbuf: MbufPtr,
    /// When it is given up, in cycles.
    pub(super) until: u64,
}

/// A packet, and what happened to it.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) record: TraceRecord,
    mbufs: ArrayVec<Followed, MAX_MBUFS>,
    /// The running stage copies it for a mirror port.
    is_mirrored: bool,
    awaited: Option<Awaited>,
}

impl Following {
    pub(super) fn new(record: TraceRecord, mbuf: MbufPtr) -> Self {
        let mut following = Self::awaiting(record, None);
        following.mbufs.push(Followed { mbuf, is_leaving: false });
        following
    }

    /// Of a packet that a program has.
    pub(super) fn awaiting(record: TraceRecord, awaited: Option<Awaited>) -> Self {
        Self { record, mbufs: ArrayVec::new(), is_mirrored: false, awaited }
    }

    /// Whether nothing of it is left to follow.
    pub(super) fn has_ended(&self) -> bool {
        self.mbufs.is_empty() && self.awaited.is_none()
    }

    /// Whether it is only waited for, and has not come back by `now`.
    pub(super) fn is_overdue(&self, now: u64) -> bool {
        self.mbufs.is_empty() && self.awaited.is_some_and(|awaited| now >= awaited.until)
    }

    /// Waits for it to come back from a program.
    pub(super) fn wait_for(&mut self, awaited: Awaited) {
        self.awaited = Some(awaited);
    }

    /// Whether it should come back by a port.
    pub(super) fn waits_at(&self, by: PortId) -> bool {
        self.awaited.is_some_and(|awaited| awaited.by == by)
    }

    /// When it is given up, if a packet of this flow at this port is taken for it.
    pub(super) fn waits_for(&self, by: PortId, flow: u64) -> Option<u64> {
        self.awaited.filter(|awaited| (awaited.by, awaited.flow) == (by, flow)).map(|awaited| awaited.until)
    }

    /// Takes a packet for the one that a program has had.
    pub(super) fn comes_back(&mut self, snapshot: u32, by: PortId, mbuf: MbufPtr) {
        self.awaited = None;
        self.record.snapshot = snapshot;
        self.record.note(PacketEvent::Step(Step::CameBack(by)));
        // As many as it can follow at once have room: one for each copy.
        let _ = self.mbufs.try_push(Followed { mbuf, is_leaving: false });
    }

    pub(super) fn follows(&self, mbuf: MbufPtr) -> bool {
        self.mbufs.iter().any(|followed| followed.mbuf == mbuf)
    }

    pub(super) fn mbufs(&self) -> impl Iterator<Item = MbufPtr> {
        self.mbufs.iter().map(|followed| followed.mbuf)
    }

    /// The stage that sent it has ended.
    pub(super) fn settle(&mut self) {
        self.mbufs.retain(|followed| !followed.is_leaving);
    }

    /// A port has received this one, in the same turn as the one before, if it has no device. Otherwise the mbuf was
    /// freed unnoticed: its device has received a packet in it, or an NF has made one.
    pub(super) fn received(&mut self, arrival: &Arrival<'_>, mbuf: MbufPtr) {
        if matches!(arrival.source, Source::Passed(_)) {
            self.record.snapshot = arrival.snapshot;
            self.record.note(PacketEvent::Step(arrival.source.step()));
        } else {
            self.ends(mbuf, Step::Lost(Lost::Freed));
        }
    }

    /// Notes what is to be noted of one of them at a stage.
    pub(super) fn visits(&mut self, visit: &Visit<'_>, mbuf: MbufPtr, what: Option<PacketEvent>) {
        self.is_mirrored = visit.is_mirror;
        self.record.snapshot = visit.snapshot.unwrap_or(self.record.snapshot);
        if let Some(what) = what {
            self.record.note(what);
        }
        let found = self.mbufs.iter_mut().find(|followed| followed.mbuf == mbuf);
        found.into_iter().for_each(|followed| followed.is_leaving = visit.is_end);
    }

    /// Notes a last step of this one, which is not followed any longer.
    pub(super) fn ends(&mut self, mbuf: MbufPtr, step: Step) {
        self.record.note(PacketEvent::Step(step));
        self.mbufs.retain(|followed| followed.mbuf != mbuf);
    }

    /// Notes that this one is dropped.
    pub(super) fn dropped(&mut self, mbuf: MbufPtr, reason: DropReason) {
        self.awaited = self.awaited.filter(|awaited| awaited.mbuf != mbuf);
        if self.mbufs.iter().any(|followed| followed.mbuf == mbuf && followed.is_leaving) {
            // It did not get so far.
            self.record.events.forget_out();
        }
        self.ends(mbuf, Step::Dropped(reason));
    }

    /// Also follows a copy for a port; `None`: no buffer was free for it. Copies for mirrors are not followed.
    pub(super) fn copied(&mut self, copy: Option<MbufPtr>) {
        match copy {
            _ if self.is_mirrored => {}
            Some(mbuf) => {
                // More copies than it can follow at once end unnoticed.
                let _ = self.mbufs.try_push(Followed { mbuf, is_leaving: false });
            }
            None => self.record.note(PacketEvent::Step(Step::Dropped(DropReason::NoBuffer))),
        }
    }

    /// Follows a copy in place of this one.
    pub(super) fn replaced(&mut self, mbuf: MbufPtr, copy: MbufPtr) {
        let found = self.mbufs.iter_mut().find(|followed| followed.mbuf == mbuf);
        found.into_iter().for_each(|followed| followed.mbuf = copy);
    }

    /// Follows nothing of it any longer.
    pub(super) fn give_up(&mut self, step: Step) {
        self.record.note(PacketEvent::Step(step));
        self.mbufs.clear();
        self.awaited = None;
    }
}
