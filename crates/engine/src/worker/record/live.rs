// SPDX-License-Identifier: Apache-2.0
//! Follows real packets, a few at a time, of those that a filter accepts, by the addresses of their mbufs, in private
//! memory. In: the packets of each stage. Out: a record for each packet, for the manager.
//!
//! Copies for other ports are followed with the packet, but not those for mirrors. In place of a packet that is copied
//! into another memory, or cut, its copy or first part is followed. A packet that an NF has is followed until the NF
//! returns it, and one in the shaper of a port without a device until that releases it. When a packet goes to another
//! worker, that worker follows it, with a record of this one. What is freed unnoticed, as with an NF that ends, is lost
//! when its mbuf is received again, or after [`LIMIT_MICROS`].

use arrayvec::ArrayVec;
use dpdk::{Mbuf, MbufPtr};
use netvm_capture_ring::Filter;
use netvm_clock as clock;

use super::event::{PacketEvent, PacketNumber, TraceRecord};
use super::following::{Awaited, Following};
use super::peers::{Handed, HandedOver, Peers, RECORDS};
use super::{Arrival, ComesBack, Visit};
use crate::capture::filtering::Filtering;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, TraceId, WorkerId};
use crate::worker::packet::digest::flow_hash;
use crate::worker::packet::keys::key_of;
use crate::worker::packet::probe::is_probe;
use crate::worker::trace::{Lost, Step};

/// A worker gives up on a packet that has not ended within this time.
const LIMIT_MICROS: u64 = 5_000_000;
/// It gives up on a packet that has not come back from a program within this time.
const BACK_WITHIN_MICROS: u64 = 1_000_000;
/// Events of a packet: enough for a copy to each of some hundred ports.
const EVENTS: usize = 512;
/// Those of its [`RECORDS`] that are left for packets that the worker hands over. The others are the packets that it
/// can follow before the client has read what became of them.
const FOR_COPIES: usize = 4;

/// One trace on one worker.
#[derive(Debug)]
pub(crate) struct LiveTrace {
    pub(super) id: TraceId,
    worker: WorkerId,
    /// Only packets that this port receives; `None`: that devices receive, and that NFs make.
    from: Option<PortId>,
    filtering: Option<Filtering>,
    /// Packets chosen so far.
    count: u32,
    /// Records to fill.
    free: ArrayVec<TraceRecord, RECORDS>,
    /// With room for all records of all workers.
    following: Vec<Following>,
    /// A bit for each followed mbuf ([`bit_of`]), and perhaps others.
    mask: u64,
    /// The last stage has sent a followed packet.
    has_leaving: bool,
    peers: Peers,
    /// Cycles after which it gives up on a packet.
    limit: u64,
}

impl LiveTrace {
    /// A trace on each of so many workers, of packets that this port receives, and that a filter accepts; `None`: that
    /// any port receives or an NF makes, and of all packets.
    pub(crate) fn for_workers(workers: usize, from: Option<PortId>, filter: Option<&Filter>) -> Vec<Self> {
        let trace = |(n, peers)| Self {
            id: TraceId(0),
            worker: WorkerId(n),
            from,
            filtering: filter.cloned().map(Filtering::new),
            count: 0,
            free: (0..RECORDS).map(|_| TraceRecord::new(WorkerId(n), EVENTS)).collect(),
            following: Vec::with_capacity(RECORDS * workers),
            mask: 0,
            has_leaving: false,
            peers,
            limit: clock::cycles_in_micros(LIMIT_MICROS),
        };
        (0..).zip(Peers::mesh(workers)).map(trace).collect()
    }

    /// Gives it its number.
    pub(crate) fn set_id(&mut self, id: TraceId) {
        self.id = id;
        self.free.iter_mut().for_each(|record| record.trace = id);
    }

    /// Chooses packets of those that a port has received, or an NF has made. `filters`: so many share their time.
    pub(super) fn received(&mut self, arrival: &Arrival<'_>, filters: usize) {
        self.settle();
        self.each_of(arrival.packets, |following, mbuf| following.received(arrival, mbuf.as_ptr()));
        self.come_back(arrival);
        if !arrival.source.is_wanted(self.from) || !self.has_records() {
            return;
        }
        let packets = arrival.packets;
        let Some(mut filtering) = self.filtering.take() else {
            return packets.iter().for_each(|packet| self.follow(arrival, packet));
        };
        filtering.fill(clock::cycles(), filters);
        let mut left = packets;
        while self.has_records()
            && let Some((some, rest)) = filtering.next(left)
        {
            let wanted = filtering.wanted(some, arrival.source.direction());
            let is_wanted = |(n, _): &(u32, &Mbuf)| wanted >> n & 1 != 0;
            (0..).zip(some).filter(is_wanted).for_each(|(_, packet)| self.follow(arrival, packet));
            left = rest;
        }
        self.filtering = Some(filtering);
    }

    /// Whether it can follow one more packet.
    fn has_records(&self) -> bool {
        self.free.len() > FOR_COPIES
    }

    /// Follows a packet, if there is a record for it, and it is not followed yet.
    fn follow(&mut self, arrival: &Arrival<'_>, packet: &Mbuf) {
        if is_probe(packet) || self.following_of(packet.as_ptr()).is_some() {
            return;
        }
        let Some(mut record) = self.has_records().then(|| self.free.pop()).flatten() else { return };
        let number = PacketNumber { worker: self.worker, count: self.count };
        self.count = self.count.wrapping_add(1);
        record.begin(number, packet.pkt_len(), arrival.snapshot);
        record.note(PacketEvent::Step(arrival.source.step()));
        self.add(record, packet.as_ptr());
    }

    fn add(&mut self, record: TraceRecord, mbuf: MbufPtr) {
        self.mask |= bit_of(mbuf);
        self.following.push(Following::new(record, mbuf));
    }

    /// Notes that packets go to a stage.
    pub(super) fn visited(&mut self, visit: &Visit<'_>, what: &impl Fn(&Mbuf) -> Option<PacketEvent>) {
        self.settle();
        let found =
            self.each_of(visit.packets, |following, mbuf| following.visits(visit, mbuf.as_ptr(), what(mbuf)));
        self.has_leaving = found && visit.is_end;
        if let Some(back) = visit.comes_back.filter(|_| found) {
            self.go_into_program(visit, back);
        }
    }

    /// Waits for packets that go into a program, or has the worker wait that will receive them.
    #[cold]
    fn go_into_program(&mut self, visit: &Visit<'_>, back: ComesBack) {
        let ComesBack { by, worker } = back;
        let until = clock::cycles() + clock::cycles_in_micros(BACK_WITHIN_MICROS);
        let Self { following, free, peers, mask, .. } = self;
        each_of(following, *mask, visit.packets, |following, packet| {
            let Ok(key) = key_of(packet) else { return };
            let awaited = Awaited { by, flow: flow_hash(&key), mbuf: packet.as_ptr(), until };
            let Some(worker) = worker else { return following.wait_for(awaited) };
            let part =
                peers.ring_to(worker).and_then(|ring| Some((ring, part_of(&mut following.record, free)?)));
            if let Some((ring, record)) = part {
                // The ring has a slot.
                drop(ring.push(HandedOver { record, followed: Handed::Awaited(awaited) }));
            }
        });
    }

    /// Takes packets that come back from a program for those that have gone in: of the same flow, in the same order.
    fn come_back(&mut self, arrival: &Arrival<'_>) {
        self.take_over();
        let Some(by) = arrival.source.port() else { return };
        for packet in arrival.packets {
            if self.following.iter().all(|following| !following.waits_at(by)) {
                return;
            }
            let Ok(key) = key_of(packet) else { continue };
            let flow = flow_hash(&key);
            let waits = |following: &&mut Following| following.waits_for(by, flow);
            let first = self.following.iter_mut().filter(|following| waits(following).is_some());
            if let Some(following) = first.min_by_key(waits) {
                following.comes_back(arrival.snapshot, by, packet.as_ptr());
                self.mask |= bit_of(packet.as_ptr());
            }
        }
    }

    /// Notes that packets are dropped.
    pub(super) fn dropped(&mut self, packets: &[Mbuf], reason: DropReason) {
        self.each_of(packets, |following, mbuf| following.dropped(mbuf.as_ptr(), reason));
    }

    /// Follows the copy of a packet for a port as well; `None`: there is none, for want of a buffer.
    pub(super) fn copied(&mut self, from: MbufPtr, copy: Option<MbufPtr>) {
        let Some(following) = self.following_of(from) else { return };
        following.copied(copy);
        self.mask |= copy.map_or(0, bit_of);
    }

    /// Follows a copy in place of a packet. Notes that the packet was cut into `cut` parts, of which the copy is the
    /// first.
    pub(super) fn replaced(&mut self, from: MbufPtr, copy: MbufPtr, cut: Option<usize>) {
        let Some(following) = self.following_of(from) else { return };
        following.replaced(from, copy);
        if let Some(parts) = cut {
            following.record.note(PacketEvent::Step(Step::Cut(parts)));
        }
        self.mask |= bit_of(copy);
    }

    /// Hands followed packets over with a record of each, before another worker gets the packets.
    pub(super) fn hand_over(&mut self, to: WorkerId, packets: &[Mbuf]) {
        let Self { following, free, peers, mask, .. } = self;
        each_of(following, *mask, packets, |following, mbuf| {
            let mbuf = mbuf.as_ptr();
            following.ends(mbuf, Step::HandedOver(to));
            let part = peers.ring_to(to).and_then(|ring| Some((ring, part_of(&mut following.record, free)?)));
            match part {
                // The ring has a slot.
                Some((ring, record)) => {
                    drop(ring.push(HandedOver { record, followed: Handed::Packet(mbuf) }));
                }
                None => following.record.note(PacketEvent::Step(Step::Lost(Lost::Elsewhere))),
            }
        });
    }

    /// Follows the packets that other workers have handed over.
    pub(super) fn take_over(&mut self) {
        self.settle();
        while let Some(HandedOver { mut record, followed }) = self.peers.pop() {
            record.by = self.worker;
            match followed {
                Handed::Packet(mbuf) => self.add(record, mbuf),
                Handed::Awaited(awaited) => {
                    self.following.push(Following::awaiting(record, Some(awaited)));
                }
            }
        }
    }

    /// The record of a packet that has ended by `now`, or was followed for too long.
    pub(super) fn take_ended(&mut self, now: u64) -> Option<TraceRecord> {
        self.settle();
        let limit = self.limit;
        let is_late = |following: &Following| now.saturating_sub(following.record.received) >= limit;
        let is_over =
            |following: &Following| following.has_ended() || following.is_overdue(now) || is_late(following);
        let at = self.following.iter().position(is_over)?;
        let mut ended = self.following.swap_remove(at);
        if ended.is_overdue(now) {
            ended.give_up(Step::Lost(Lost::InProgram));
        } else if !ended.has_ended() {
            ended.give_up(Step::Lost(Lost::Held));
        }
        self.mask =
            self.following.iter().flat_map(Following::mbufs).fold(0, |mask, mbuf| mask | bit_of(mbuf));
        Some(ended.record)
    }

    /// Takes a record to fill. Returns it if it has enough.
    pub(super) fn reuse(&mut self, record: TraceRecord) -> Option<TraceRecord> {
        self.free.try_push(record).err().map(arrayvec::CapacityError::element)
    }

    /// Forgets packets that were sent: their devices may free them.
    fn settle(&mut self) {
        if std::mem::take(&mut self.has_leaving) {
            self.following.iter_mut().for_each(Following::settle);
        }
    }

    /// Calls `note` for each followed packet of these. Returns whether there are any.
    fn each_of(&mut self, packets: &[Mbuf], note: impl FnMut(&mut Following, &Mbuf)) -> bool {
        each_of(&mut self.following, self.mask, packets, note)
    }

    fn following_of(&mut self, mbuf: MbufPtr) -> Option<&mut Following> {
        self.following.iter_mut().find(|following| following.follows(mbuf))
    }
}

/// Calls `note` for each packet that is followed. Returns whether there are any. `mask`: see [`LiveTrace::mask`].
fn each_of(
    following: &mut [Following],
    mask: u64,
    packets: &[Mbuf],
    mut note: impl FnMut(&mut Following, &Mbuf),
) -> bool {
    let mut found = false;
    if mask != 0 {
        for mbuf in packets {
            let address = mbuf.as_ptr();
            if mask & bit_of(address) != 0
                && let Some(following) = following.iter_mut().find(|following| following.follows(address))
            {
                note(following, mbuf);
                found = true;
            }
        }
    }
    found
}

/// One of 64 bits, by the address of an mbuf.
fn bit_of(mbuf: MbufPtr) -> u64 {
    let hash = (mbuf.as_ptr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 << (hash >> 58)
}

/// A free record for a copy of the packet of `record`.
fn part_of(record: &mut TraceRecord, free: &mut ArrayVec<TraceRecord, RECORDS>) -> Option<TraceRecord> {
    let mut part = free.pop()?;
    if !part.begin_part(record) {
        free.push(part);
        return None;
    }
    Some(part)
}
