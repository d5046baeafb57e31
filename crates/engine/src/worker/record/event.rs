// SPDX-License-Identifier: Apache-2.0
//! What is noted of a packet: facts, without names. The manager makes steps of them (`manager/traces/render.rs`),
//! with the rules and names of the snapshot that was in force.

use netvm_clock as clock;
use netvm_wire::FlowKey;

use crate::ids::{PortId, RoleId, TraceId, WorkerId};
use crate::worker::trace::{Lost, NfVerdict, Step, Translated};

/// Something that happened to a packet, and when.
#[derive(Clone, Debug)]
pub(crate) struct RawEvent {
    pub(crate) cycles: u64,
    /// The number of the snapshot in force.
    pub(crate) snapshot: u32,
    pub(crate) what: PacketEvent,
}

/// What happens to a packet.
#[derive(Clone, Debug)]
pub(crate) enum PacketEvent {
    /// The rules of the port that received it have decided. `key`: the header fields that they saw. `translated`: by
    /// NAT before they did, or by NAT64 afterwards.
    Ingress { port: PortId, decision: u32, key: Option<FlowKey>, translated: Option<Translated> },
    /// The rules of the port that it is about to leave by have decided. `from`: the port that received it.
    Egress { out: PortId, from: PortId, decision: u32 },
    /// An NF gets it, with these header fields.
    ToNf { role: RoleId, hop: u8, key: Option<FlowKey> },
    /// An NF has returned it, with these header fields.
    FromNf { role: RoleId, hop: u8, verdict: NfVerdict, key: Option<FlowKey> },
    /// Any other step. Workers note only steps that own no memory.
    Step(Step),
}

/// The events of one packet and its copies, in order.
#[derive(Debug, Default)]
pub(crate) struct Events {
    list: Vec<RawEvent>,
    limit: usize,
}

impl Events {
    /// So many at most; grows.
    pub(crate) const fn up_to(limit: usize) -> Self {
        Self { list: Vec::new(), limit }
    }

    /// With room for so many, which never grows: workers do not allocate.
    pub(crate) fn with_room(limit: usize) -> Self {
        let none = RawEvent { cycles: 0, snapshot: 0, what: PacketEvent::Step(Step::Passed) };
        // Writes to all of it, so that the kernel need not find pages later.
        let mut list = vec![none; limit];
        list.clear();
        Self { list, limit }
    }

    pub(crate) fn list(&self) -> &[RawEvent] {
        &self.list
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// Adds an event of now. The last one that fits says that there were more.
    pub(super) fn note(&mut self, snapshot: u32, what: PacketEvent) {
        let left = self.limit - self.list.len();
        let what = if left == 1 { PacketEvent::Step(Step::Lost(Lost::TooLong)) } else { what };
        if left > 0 {
            self.list.push(RawEvent { cycles: clock::cycles(), snapshot, what });
        }
    }

    /// Removes the last event, if it says that a port sends the packet.
    pub(super) fn forget_out(&mut self) {
        self.list.pop_if(|event| matches!(event.what, PacketEvent::Step(Step::Out(_))));
    }
}

/// A packet of a trace: the worker that received it, and how many it had followed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketNumber {
    pub(crate) worker: WorkerId,
    pub(crate) count: u32,
}

/// The share of a packet that a record describes. A worker that hands a copy over halves the share of its record:
/// when the manager has shares that add up to the whole packet, nobody follows it any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u64);

impl Share {
    const WHOLE: Self = Self(1 << 63);

    /// Takes half of it; `None` if it is too small.
    fn split(&mut self) -> Option<Self> {
        let half = self.0 / 2;
        self.0 -= half;
        (half > 0).then_some(Self(half))
    }

    /// Whether shares add up to the whole.
    pub(crate) fn are_whole(shares: impl Iterator<Item = Self>) -> bool {
        shares.fold(0u64, |sum, share| sum.saturating_add(share.0)) >= Self::WHOLE.0
    }
}

/// The events of a packet that a worker has followed, or of a copy that another worker has handed over. The manager
/// makes it, and gives it back to its worker.
#[derive(Debug)]
pub(crate) struct TraceRecord {
    pub(crate) trace: TraceId,
    /// The worker that gets it back.
    pub(crate) home: WorkerId,
    /// The worker that has followed the packet.
    pub(crate) by: WorkerId,
    pub(crate) packet: PacketNumber,
    pub(crate) share: Share,
    /// When the packet was received, in cycles.
    pub(crate) received: u64,
    /// The packet's length in bytes.
    pub(crate) bytes: u32,
    /// The number of the snapshot in force at the last event.
    pub(super) snapshot: u32,
    pub(crate) events: Events,
}

impl TraceRecord {
    /// Without a packet yet.
    pub(super) fn new(home: WorkerId, events: usize) -> Self {
        Self {
            trace: TraceId(0),
            home,
            by: home,
            packet: PacketNumber { worker: home, count: 0 },
            share: Share::WHOLE,
            received: 0,
            bytes: 0,
            snapshot: 0,
            events: Events::with_room(events),
        }
    }

    /// Begins with a packet of so many bytes, under the snapshot with this number.
    pub(super) fn begin(&mut self, packet: PacketNumber, bytes: u32, snapshot: u32) {
        (self.by, self.packet, self.share) = (self.home, packet, Share::WHOLE);
        (self.received, self.bytes, self.snapshot) = (clock::cycles(), bytes, snapshot);
        self.events.clear();
    }

    /// Begins with a copy of the packet of `other`, whose share it takes half of. Returns whether that has enough.
    pub(super) fn begin_part(&mut self, other: &mut Self) -> bool {
        let Some(share) = other.share.split() else { return false };
        (self.packet, self.share) = (other.packet, share);
        (self.received, self.bytes, self.snapshot) = (other.received, other.bytes, other.snapshot);
        self.events.clear();
        true
    }

    /// Adds an event of now.
    pub(super) fn note(&mut self, what: PacketEvent) {
        self.events.note(self.snapshot, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_when_all_parts_are_there() {
        let mut first = Share::WHOLE;
        let mut second = first.split().unwrap();
        let third = second.split().unwrap();
        assert!(Share::are_whole([first, second, third].into_iter()));
        assert!(
            !Share::are_whole([first, third].into_iter()) && !Share::are_whole([second, third].into_iter())
        );
        let splits = std::iter::from_fn(|| first.split()).count();
        assert!(splits > 32 && first.split().is_none());
    }
}
