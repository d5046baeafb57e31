// SPDX-License-Identifier: Apache-2.0
//! Packets that the guest sends (SDM 3.3): legacy and data descriptors, and context descriptors for offloads.
//!
//! ```text
//!          63          48 47   40 39   36 35   32 31    24 23  20 19       0
//!  legacy   special       CSS     0       status  command  CSO    length (15:0)
//!  data     special       options 0       status  command  1      length
//!  context  MSS           headers 0       status  command  0      payload
//! ```

use arrayvec::ArrayVec;

use super::{Ring, TRANSMIT, Turn, delays, is_sending};
use crate::MAX_PACKET;
use crate::memory::GuestMemory;
use crate::nic::registers::{CTRL, CTRL_VME, cause, ring, statistic};
use crate::nic::{Delays, Device, Direction, FRONT, Sum, TxContext};

/// Most descriptors of a packet: Linux needs 18 for a segment of 64 KB, and one more for each fragment.
const MAX_PARTS: usize = 64;

const END_OF_PACKET: u8 = 1;
/// Insert a checksum (legacy); segment (data, context).
const INSERT_OR_SEGMENT: u8 = 1 << 2;
const REPORT: u8 = 1 << 3;
const EXTENDED: u8 = 1 << 5;
const INSERT_VLAN: u8 = 1 << 6;
const DELAY: u8 = 1 << 7;
/// Options of a data descriptor.
const OPTION_IP: u8 = 1;
const OPTION_TRANSPORT: u8 = 1 << 1;
/// Commands of a context descriptor.
const CONTEXT_TCP: u8 = 1;
const DONE: u8 = 1;
/// Shortest packet: a header.
const MIN_PACKET: usize = 14;

/// A transmit descriptor.
#[derive(Clone, Copy, Debug)]
struct Descriptor([u64; 2]);

impl Descriptor {
    const fn command(self) -> u8 {
        (self.0[1] >> 24) as u8
    }

    const fn is_extended(self) -> bool {
        self.command() & EXTENDED != 0
    }

    const fn is_context(self) -> bool {
        self.is_extended() && self.0[1] >> 20 & 15 == 0
    }

    const fn segments(self) -> bool {
        self.is_extended() && self.command() & INSERT_OR_SEGMENT != 0
    }

    const fn length(self) -> usize {
        (self.0[1] & if self.is_extended() { 0xf_ffff } else { 0xffff }) as usize
    }

    const fn special(self) -> u16 {
        (self.0[1] >> 48) as u16
    }

    const fn status(self) -> u8 {
        (self.0[1] >> 32) as u8
    }

    /// Options of a data descriptor; start of the checksum of a legacy one.
    const fn options(self) -> u8 {
        (self.0[1] >> 40) as u8
    }

    const fn legacy_checksum_offset(self) -> u8 {
        (self.0[1] >> 16) as u8
    }
}

/// Offloads that a packet's sender requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The IP header's checksum, or any of a legacy descriptor.
    pub ip: Option<Sum>,
    /// That of TCP or UDP.
    pub transport: Option<Sum>,
    /// Bytes of payload per packet of a segment; 0: the packet is sent as it is.
    pub segment: u16,
    /// TCP, else UDP (segments).
    pub tcp: bool,
}

/// What a context descriptor says.
fn context_of(descriptor: Descriptor) -> TxContext {
    let [low, high] = descriptor.0;
    let sum = |half: u64| {
        let end = (half >> 16) as u16;
        let [from, at, ..] = half.to_le_bytes();
        Sum { from: from.into(), at: at.into(), end: (end != 0).then_some(end) }
    };
    TxContext {
        ip: sum(low),
        transport: sum(low >> 32),
        segment: (high >> 48) as u16,
        tcp: descriptor.command() & CONTEXT_TCP != 0,
    }
}

/// The offloads of a packet with this first descriptor.
fn request_of(context: &TxContext, first: Descriptor) -> Request {
    if !first.is_extended() {
        let at = first.legacy_checksum_offset().into();
        let ip = (first.command() & INSERT_OR_SEGMENT != 0).then(|| Sum {
            from: first.options().into(),
            at,
            end: None,
        });
        return Request { ip, ..Request::default() };
    }
    let wants = |option, sum| (first.options() & option != 0).then_some(sum);
    Request {
        ip: wants(OPTION_IP, context.ip),
        transport: wants(OPTION_TRANSPORT, context.transport),
        segment: if first.segments() { context.segment } else { 0 },
        tcp: context.tcp,
    }
}

/// A packet that the guest sends.
#[derive(Debug)]
pub struct Sent<'a> {
    memory: &'a GuestMemory,
    parts: &'a [(u64, usize)],
    /// Bytes; at least 14 and at most [`MAX_PACKET`].
    pub length: usize,
    /// A VLAN tag to be inserted.
    pub tag: Option<[u8; 4]>,
    /// Work left to the card.
    pub request: Request,
}

impl Sent<'_> {
    /// Copies the packet, one piece of memory after the other. Returns whether all of it was in guest memory and there
    /// was room for it.
    ///
    /// # Safety
    /// Each piece may be written, and is outside guest memory.
    #[must_use]
    pub unsafe fn copy(&self, mut to: impl Iterator<Item = (*mut u8, usize)>) -> bool {
        let (mut place, mut room) = (std::ptr::null_mut::<u8>(), 0);
        for (mut address, mut length) in self.parts.iter().copied() {
            while length > 0 {
                if room == 0 {
                    let Some(next) = to.next() else { return false };
                    (place, room) = next;
                    continue;
                }
                let count = length.min(room);
                // SAFETY: `place` has `room` bytes, as the caller promises.
                if !unsafe { self.memory.read(address, place, count) } {
                    return false;
                }
                (address, length) = (address.wrapping_add(count as u64), length - count);
                (place, room) = (place.wrapping_add(count), room - count);
            }
        }
        true
    }
}

/// The outcome of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Sent,
    /// The packet is dropped: it is malformed.
    Malformed,
    /// Nothing more can be taken now.
    Stop,
}

impl Turn<'_> {
    /// Offers up to `most` packets that the guest sends, in order, to `take`, until it returns `None`: then the packet
    /// stays in the ring. `Some(false)` from it means that the packet is malformed. Returns how many were malformed.
    pub fn transmit(&mut self, most: usize, mut take: impl FnMut(&Sent<'_>) -> Option<bool>) -> u64 {
        let device = &mut *self.device;
        if !is_sending(device) {
            return 0;
        }
        let tail = device.csb().map(|csb| csb.transmit_tail());
        let Some(mut ring) = Ring::read(&device.pages, TRANSMIT, tail) else { return 0 };
        let (begin, mut malformed, mut reports) = (ring.head, 0, Reports::default());
        for _ in 0..most {
            match device.transmit_one(&mut ring, &mut reports, &mut take) {
                Step::Sent => {}
                Step::Malformed => malformed += 1,
                Step::Stop => break,
            }
        }
        if ring.head == begin {
            return malformed;
        }
        if device.csb().is_some_and(|csb| !csb.note_sent(begin, ring.head, ring.count)) {
            return malformed;
        }
        let empty = if ring.filled() == 0 { cause::TXQE } else { 0 };
        if reports.count > 0 {
            let delays = if reports.is_delayed { delays(&device.pages, TRANSMIT) } else { Delays::default() };
            device.interrupts.announce(Direction::Sent, reports.count, delays);
        }
        device.interrupts.raise(empty);
        malformed
    }
}

/// Descriptors written back in a burst.
#[derive(Clone, Copy, Debug, Default)]
struct Reports {
    count: u32,
    /// All of them allow a delayed interrupt.
    is_delayed: bool,
}

impl Device {
    /// Takes the packet at the head of the ring, with the context descriptors before it.
    #[inline]
    fn transmit_one(
        &mut self,
        ring: &mut Ring,
        reports: &mut Reports,
        take: &mut impl FnMut(&Sent<'_>) -> Option<bool>,
    ) -> Step {
        let mut parts: ArrayVec<(u64, usize), MAX_PARTS> = ArrayVec::new();
        let (mut first, mut length, mut is_good) = (None, 0usize, true);
        let mut place = ring.head;
        let last = loop {
            if place == ring.tail {
                // The rest of the packet is not in the ring yet; if it can never be, the ring would be stuck.
                if first.is_none() || ring.filled() < ring.count - 1 {
                    return Step::Stop;
                }
                is_good = false;
                break None;
            }
            let Some(descriptor) = self.memory.load(ring.address(place)).map(Descriptor) else {
                self.has_bad_ring = true;
                return Step::Stop;
            };
            place = ring.after(place);
            if descriptor.is_context() {
                self.set_context(context_of(descriptor));
                if first.is_none() {
                    self.write_back(ring, place, reports);
                    continue;
                }
                // In the middle of a packet.
                is_good = false;
                continue;
            }
            first = first.or(Some(descriptor));
            length = length.saturating_add(descriptor.length());
            is_good &= length <= MAX_PACKET;
            if descriptor.length() > 0 {
                is_good &= parts.try_push((descriptor.0[0], descriptor.length())).is_ok();
            }
            if descriptor.command() & END_OF_PACKET != 0 {
                break Some(descriptor);
            }
        };
        let taken = match (first, last) {
            (Some(first), Some(last)) if is_good && length >= MIN_PACKET => {
                let tags = last.command() & INSERT_VLAN != 0 && self.register(CTRL) & CTRL_VME != 0;
                let tag = tags.then(|| {
                    let ([a, b], [c, d]) = ([0x81, 0x00], last.special().to_be_bytes());
                    [a, b, c, d]
                });
                let request = request_of(self.context(), first);
                take(&Sent { memory: &self.memory, parts: &parts, length, tag, request })
            }
            _ => Some(false),
        };
        let Some(is_good) = taken else { return Step::Stop };
        self.write_back(ring, place, reports);
        if !is_good {
            return Step::Malformed;
        }
        if first.is_some_and(Descriptor::segments) {
            self.count(statistic::TSCTC, 1);
        }
        self.count_sent(length, parts.first().copied());
        Step::Sent
    }

    /// Marks the descriptors from the head to `end` as done where the guest wants to know, and moves the head there
    /// first: the guest fills done descriptors again, and a process that goes on after this one must not take these for
    /// others.
    #[inline]
    fn write_back(&self, ring: &mut Ring, end: u32, reports: &mut Reports) {
        self.state.set_sending(Some(ring.head));
        self.pages.store(TRANSMIT + ring::HEAD, end);
        let mut place = ring.head;
        ring.head = end;
        while place != end {
            let address = ring.address(place);
            place = ring.after(place);
            let Some(descriptor) = self.memory.load(address).map(Descriptor) else { continue };
            let command = descriptor.command();
            if command & REPORT != 0 && self.memory.store_status(address, descriptor.status() | DONE) {
                let is_delayed = command & DELAY != 0;
                reports.is_delayed = is_delayed && (reports.is_delayed || reports.count == 0);
                reports.count += 1;
            }
        }
        self.state.set_sending(None);
    }

    /// Completes what another process had begun to mark as done.
    pub(super) fn complete_sent(&self) {
        let ring = Ring::read(&self.pages, TRANSMIT, None);
        let (Some(ring), Some(mut place)) = (ring, self.state.sending()) else { return };
        while place != ring.head && place < ring.count && !ring.has_filled(place) {
            let address = ring.address(place);
            place = ring.after(place);
            let Some(descriptor) = self.memory.load(address).map(Descriptor) else { return };
            if descriptor.command() & REPORT != 0 {
                self.memory.store_status(address, descriptor.status() | DONE);
            }
        }
        self.state.set_sending(None);
    }

    fn count_sent(&mut self, length: usize, first: Option<(u64, usize)>) {
        let mut front = [0; FRONT];
        let (address, in_first) = first.unwrap_or_default();
        // SAFETY: not more bytes than the array has. What is not in guest memory counts as unicast.
        let _ = unsafe { self.memory.read(address, front.as_mut_ptr(), in_first.min(FRONT)) };
        if let Some(kind) = Self::kind_statistic(&front, [statistic::MPTC, statistic::BPTC]) {
            self.count(kind, 1);
        }
        self.count(statistic::TPT, 1);
        self.count(statistic::GPTC, 1);
        self.count(statistic::GOTC, length as u64);
        self.count(statistic::TOT, length as u64);
        self.count(size_statistic(statistic::PTC64, length), 1);
    }
}

/// The statistic of packets of this size: one of six from `first` on.
pub(super) const fn size_statistic(first: u32, length: usize) -> u32 {
    first
        + 4 * match length + 4 {
            0..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            _ => 5,
        }
}
