// SPDX-License-Identifier: Apache-2.0
//! Packets that the guest receives (SDM 3.2): into its buffers, with a descriptor for each buffer.
//!
//! ```text
//!  63     48 47    40 39    32 31       16 15     0
//!  special   errors   status   checksum    length            second half of a legacy descriptor
//!
//!  63     48 47     32 31        20 19       0
//!  VLAN      length    errors       status                   second half of an extended one (82574, RFCTL.EXTEN)
//! ```

use std::ops::Range;

use super::transmit::size_statistic;
use super::{RECEIVE, Ring, Turn, delays, is_receiving};
use crate::nic::registers::{
    CTRL, CTRL_VME, RCTL, RCTL_BSEX, RCTL_LPE, RCTL_SECRC, RFCTL, RFCTL_EXTEN, cause, ring, statistic,
};
use crate::nic::{Device, Direction, FRONT, Model};

/// Shortest packet on a wire, without FCS.
const MIN_PACKET: usize = 60;
/// Longest packet that is not "long" (RCTL.LPE), without FCS: with a VLAN tag.
const MAX_STANDARD_PACKET: usize = 1518;
/// Longest of all (RCTL.LPE), with FCS.
const MAX_LONG_PACKET: usize = 16_384;
const FCS: usize = 4;
/// Both addresses.
const ADDRESSES: usize = 12;
const TAG: usize = 4;

const DONE: u64 = 1;
const END_OF_PACKET: u64 = 1 << 1;
/// Checksums were not checked.
const IGNORE_CHECKSUMS: u64 = 1 << 2;
/// The VLAN tag is in `special`.
const STRIPPED: u64 = 1 << 3;
/// The second half of a descriptor that is not done, though the head has passed it: no length, no status. A guest sees
/// it only if this process is killed then.
const UNFINISHED: u64 = 0x6e76 << 48;

/// Why the guest does not get a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// Too few descriptors are free: the guest may take it later.
    Full,
    /// The driver has not enabled the receiver.
    Down,
    /// The guest's filters exclude this address or VLAN.
    Filtered,
    /// It is longer than the guest allows.
    TooLong,
    /// The ring or a buffer is not in guest memory.
    BadRing,
}

/// Packets of one burst for the guest.
#[derive(Debug)]
pub struct Receiving<'a, 'b> {
    turn: &'a mut Turn<'b>,
    ring: Option<Ring>,
    count: u32,
}

/// One packet: pieces of memory that hold it.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a>(pub &'a [(*const u8, usize)]);

impl<'b> Turn<'b> {
    /// Begins a burst of packets for the guest, which it learns about when the burst ends.
    pub fn receive<'a>(&'a mut self) -> Receiving<'a, 'b> {
        let device = &*self.device;
        let tail = device.csb().map(|csb| csb.receive_tail());
        let ring = if is_receiving(device) { Ring::read(&device.pages, RECEIVE, tail) } else { None };
        Receiving { turn: self, ring, count: 0 }
    }
}

impl Receiving<'_, '_> {
    /// Gives the guest a packet.
    ///
    /// # Errors
    /// [`NotTaken`].
    ///
    /// # Safety
    /// The pieces can be read, and are outside guest memory.
    #[inline]
    pub unsafe fn put(&mut self, pieces: Pieces<'_>) -> Result<(), NotTaken> {
        let Some(ring) = &mut self.ring else { return Err(NotTaken::Down) };
        // SAFETY: as the caller promises.
        unsafe { self.turn.device.put(ring, pieces) }?;
        self.count += 1;
        Ok(())
    }

    /// Counts packets dropped because the guest had no descriptor for them.
    pub fn count_lost(&mut self, packets: u64) {
        if packets > 0 {
            self.turn.device.count(statistic::MPC, packets);
            self.turn.device.count(statistic::RNBC, packets);
            self.turn.device.interrupts.raise_overrun();
        }
    }
}

impl Drop for Receiving<'_, '_> {
    fn drop(&mut self) {
        let Some(ring) = self.ring.filter(|_| self.count > 0) else { return };
        let device = &mut *self.turn.device;
        if device.csb().is_some_and(|csb| !csb.note_received(ring.head)) {
            return;
        }
        // RCTL.RDMTS: half, a quarter, an eighth of the ring.
        let few = ring.count >> (1 + (device.register(RCTL) >> 8 & 3).min(2));
        let delays = delays(&device.pages, RECEIVE);
        device.interrupts.announce(Direction::Received, self.count, delays);
        let causes = if ring.filled() <= few { cause::RXDMT0 } else { 0 };
        device.interrupts.raise(causes);
    }
}

/// Reads pieces of memory one after the other.
struct Reader<'a> {
    pieces: std::slice::Iter<'a, (*const u8, usize)>,
    place: *const u8,
    left: usize,
}

impl Reader<'_> {
    /// The next bytes, at most `most`.
    fn next(&mut self, most: usize) -> Option<(*const u8, usize)> {
        while self.left == 0 {
            (self.place, self.left) = *self.pieces.next()?;
        }
        let (bytes, count) = (self.place, self.left.min(most));
        (self.place, self.left) = (self.place.wrapping_add(count), self.left - count);
        Some((bytes, count))
    }

    fn skip(&mut self, mut count: usize) {
        while count > 0
            && let Some((_, skipped)) = self.next(count)
        {
            count -= skipped;
        }
    }
}

impl Device {
    /// Bytes of each of the guest's buffers (RCTL.BSIZE, BSEX).
    fn buffer_bytes(&self) -> usize {
        let control = self.register(RCTL);
        let bytes = 2048 >> (control >> 16 & 3);
        if control & RCTL_BSEX != 0 && bytes < 2048 { bytes * 16 } else { bytes }
    }

    /// # Safety
    /// As for [`Receiving::put`].
    #[inline]
    unsafe fn put(&mut self, ring: &mut Ring, pieces: Pieces<'_>) -> Result<(), NotTaken> {
        let length: usize = pieces.0.iter().map(|(_, length)| length).sum();
        let (bytes, in_first) = pieces.0.first().copied().unwrap_or((std::ptr::null(), 0));
        let mut front = [0; FRONT];
        // SAFETY: the caller says that the piece can be read.
        unsafe { std::ptr::copy_nonoverlapping(bytes, front.as_mut_ptr(), in_first.min(FRONT)) };
        if in_first < FRONT || !self.receives(&front) {
            return Err(NotTaken::Filtered);
        }
        let control = self.register(RCTL);
        let longest = if control & RCTL_LPE == 0 { MAX_STANDARD_PACKET } else { MAX_LONG_PACKET - FCS };
        if length > longest {
            self.count(statistic::ROC, 1);
            return Err(NotTaken::TooLong);
        }
        let is_tagged =
            self.register(CTRL) & CTRL_VME != 0 && front[ADDRESSES..ADDRESSES + 2] == [0x81, 0x00];
        let kept = length - if is_tagged { TAG } else { 0 };
        let fcs = if control & RCTL_SECRC == 0 { FCS } else { 0 };
        let whole = kept.max(MIN_PACKET) + fcs;
        let (buffer, room) = (self.buffer_bytes(), ring.filled() as usize);
        if whole.div_ceil(buffer) > room {
            return Err(NotTaken::Full);
        }
        let is_extended = self.model == Model::I82574 && self.register(RFCTL) & RFCTL_EXTEN != 0;
        let mut reader = Reader { pieces: pieces.0.iter(), place: std::ptr::null(), left: 0 };
        let (mut at, mut place) = (0, ring.head);
        let special = if is_tagged { u64::from(u16::from_be_bytes([front[14], front[15]])) << 48 } else { 0 };
        let stripped = if is_tagged { STRIPPED } else { 0 };
        while at < whole {
            let descriptor = ring.address(place);
            let here = (whole - at).min(buffer);
            let Some([address, _]) = self.memory.load(descriptor) else {
                self.has_bad_ring = true;
                return Err(NotTaken::BadRing);
            };
            // SAFETY: the reader gives pieces that the caller says can be read.
            if !unsafe { self.fill(address, at..at + here, &mut reader, is_tagged) } {
                self.has_bad_ring = true;
                return Err(NotTaken::BadRing);
            }
            at += here;
            let end = if at == whole { END_OF_PACKET | stripped | IGNORE_CHECKSUMS } else { 0 };
            let status = DONE | end;
            let tag = if end == 0 { 0 } else { special };
            let words = if is_extended {
                (here as u64) << 32 | status | tag
            } else {
                here as u64 | status << 32 | tag
            };
            place = ring.after(place);
            // In this order, for a process that goes on after this one: the guest fills done descriptors again.
            let is_begun = self.memory.store_second(descriptor, UNFINISHED);
            self.pages.store(RECEIVE + ring::HEAD, place);
            // An extended descriptor has the hash of the packet's flow there, and the card computes none.
            if !is_begun
                || is_extended && !self.memory.store_first(descriptor, 0)
                || !self.memory.store_second(descriptor, words)
            {
                self.has_bad_ring = true;
                return Err(NotTaken::BadRing);
            }
        }
        ring.head = place;
        self.count_received(&front, length);
        Ok(())
    }

    /// Fills a buffer of the guest with these bytes of the packet, without its tag, and with zeros behind its end.
    ///
    /// # Safety
    /// As for [`Receiving::put`].
    #[inline]
    unsafe fn fill(
        &self,
        mut address: u64,
        range: Range<usize>,
        reader: &mut Reader<'_>,
        is_tagged: bool,
    ) -> bool {
        const ZEROS: [u8; 64] = [0; 64];
        let Range { start: mut at, end } = range;
        while at < end {
            let left = end - at;
            let most = if is_tagged && at < ADDRESSES { left.min(ADDRESSES - at) } else { left };
            if is_tagged && at == ADDRESSES {
                reader.skip(TAG);
            }
            let (bytes, count) = reader.next(most).unwrap_or((ZEROS.as_ptr(), left.min(ZEROS.len())));
            // SAFETY: as the caller promises, or zeros.
            if !unsafe { self.memory.write(address, bytes, count) } {
                return false;
            }
            (address, at) = (address.wrapping_add(count as u64), at + count);
        }
        true
    }

    /// Goes back to a descriptor that another process had not finished.
    pub(super) fn repeat_received(&self) {
        /// An error of an extended descriptor: the packet is dropped.
        const ERROR: u64 = 1 << 31;
        let Some(ring) = Ring::read(&self.pages, RECEIVE, None) else { return };
        let before = ring.head.checked_sub(1).unwrap_or(ring.count - 1);
        match self.memory.load(ring.address(before)) {
            // Its buffer's address is gone.
            Some([0, UNFINISHED]) => {
                let words = (MIN_PACKET as u64) << 32 | ERROR | END_OF_PACKET | DONE;
                self.memory.store_second(ring.address(before), words);
            }
            Some([_, UNFINISHED]) => self.pages.store(RECEIVE + ring::HEAD, before),
            _ => {}
        }
    }

    fn count_received(&mut self, front: &[u8; FRONT], length: usize) {
        self.count(statistic::TPR, 1);
        self.count(statistic::GPRC, 1);
        self.count(statistic::GORC, length as u64);
        self.count(statistic::TOR, length as u64);
        self.count(size_statistic(statistic::PRC64, length), 1);
        if let Some(kind) = Self::kind_statistic(front, [statistic::MPRC, statistic::BPRC]) {
            self.count(kind, 1);
        }
    }
}
