// SPDX-License-Identifier: Apache-2.0
//! The packet path of a vhost-user queue: bursts from a guest into a batch, and from a batch to the guest.
//!
//! Each packet is copied once; a burst costs one RCU read section, and an eventfd write only if the guest wants a call.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use dpdk_sys as sys;

use super::calls::CallSignaller;
use super::guests::Kicks;
use super::rcu::{ActiveDevice, RcuSlot};
use super::{Served, announcement};
use crate::{Batch, Mbuf, Pool};

/// Offloads that a guest or a kernel interface accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepts {
    /// TCP and UDP packets with an unfinished checksum.
    pub checksum: bool,
    /// TCP segments of up to 64 KiB over IPv4.
    pub tso4: bool,
    /// The same over IPv6.
    pub tso6: bool,
    /// UDP datagrams of up to 64 KiB, to be cut into datagrams.
    pub uso: bool,
}

impl Accepts {
    /// All offloads.
    pub const ALL: Self = Self { checksum: true, tso4: true, tso6: true, uso: true };

    #[inline(always)]
    pub(super) const fn from_bits(bits: u8) -> Self {
        Self {
            checksum: bits & sys::NETVM_VHOST_CSUM as u8 != 0,
            tso4: bits & sys::NETVM_VHOST_TSO4 as u8 != 0,
            tso6: bits & sys::NETVM_VHOST_TSO6 as u8 != 0,
            uso: false,
        }
    }
}

/// Bytes of a virtio-net header without its number of buffers (virtio 1.2 section 5.1.6).
const HEADER: usize = sys::NETVM_VHOST_HEADER as usize;

/// One queue of a port. It has one owner, and keeps its port open.
#[derive(Debug)]
pub struct VhostQueue {
    served: Arc<Served>,
    number: u16,
    fenced: bool,
    /// The pair received from last.
    turn: u32,
    /// The device for which kicks are suppressed.
    quiet: Option<ActiveDevice>,
    /// Kicks are enabled.
    kicks_enabled: bool,
    /// Bit mask of the pairs that were not seen empty since kicks were enabled, before a wait.
    unseen: Option<u64>,
    calls: CallSignaller,
    dma: Option<i32>,
    /// Bit mask of the pairs with DMA copies in progress.
    copying: u64,
    // The owner may move the queue, not share it.
    _one_thread: PhantomData<Cell<()>>,
}

impl VhostQueue {
    pub(super) fn new(served: Arc<Served>, number: u16, fenced: bool, dma: Option<i32>) -> Self {
        Self {
            served,
            number,
            fenced,
            turn: 0,
            quiet: None,
            kicks_enabled: false,
            unseen: None,
            calls: CallSignaller::new(),
            dma,
            copying: 0,
            _one_thread: PhantomData,
        }
    }

    #[inline(always)]
    fn rcu_slot(&self) -> &RcuSlot {
        // One per queue.
        &self.served.guests.rcu_slots[usize::from(self.number)]
    }

    /// Copies packets from the guest into mbufs of the pool and adds them to the batch: at most `most`, and at most its
    /// room. Calls `note` with each packet that leaves checksums or segmentation to netvm, and with its virtio-net
    /// header, which may be anything; packets for which it returns false are dropped. Returns how many packets were
    /// malformed.
    #[inline]
    pub fn receive(
        &mut self,
        pool: &Pool,
        batch: &mut Batch,
        most: usize,
        note: impl FnMut(&mut Mbuf, [u8; HEADER]) -> bool,
    ) -> u64 {
        if self.rcu_slot().peek().is_none() {
            return 0;
        }
        let first = batch.len();
        let (spare, room) = batch.spare();
        let most = most.min(room) as u16;
        let (turn, quiet) = (self.turn, self.quiet);
        let (mut known, mut kicks_enabled) = (quiet, self.kicks_enabled);
        let mut others = sys::netvm_vhost_received { malformed: 0, requests: 0 };
        let calls = &mut self.calls;
        // One per queue.
        let rcu_slot = &self.served.guests.rcu_slots[usize::from(self.number)];
        let mut announced = None;
        let received = rcu_slot.read(self.fenced, |active, pairs| {
            if calls.has_pending() {
                calls.send_pending(active.device);
            }
            if quiet != Some(active) {
                suppress(active, pairs);
                (known, kicks_enabled) = (Some(active), false);
                announced = self.served.guests.announcement.take();
                if announced.is_some() {
                    return None;
                }
            }
            let pair = next_pair(pairs, turn)?;
            let vring = 2 * pair as u16 + 1;
            let mempool = pool.mempool();
            // SAFETY: the device is there until the read section ends; there is room for `most` pointers, and the pool
            // is alive.
            let count = unsafe {
                sys::netvm_vhost_receive(active.device, vring, mempool, spare, most, &raw mut others)
            };
            calls.after_burst(active.device, vring);
            if count > 0 && kicks_enabled {
                suppress(active, pairs);
                kicks_enabled = false;
            }
            Some((pair, usize::from(count)))
        });
        self.quiet = known;
        if self.kicks_enabled && !kicks_enabled {
            self.end_wait();
        }
        if let Some(mac) = announced {
            announcement::add(pool, batch, mac);
        }
        let Some((pair, count)) = received.flatten() else { return 0 };
        self.turn = pair;
        if let Some(unseen) = &mut self.unseen {
            *unseen &= !(1 << pair);
        }
        // SAFETY: the calls have written `count` mbufs and given them up.
        unsafe { batch.assume_added(count) };
        if others.requests != 0 {
            others.malformed += note_requests(batch, first, others.requests, note);
        }
        others.malformed
    }

    /// Copies packets from the front of the batch to the guest and frees them; returns their number and bytes. The
    /// others stay in the batch: the guest's ring is full, the first of them is longer than its room, or the guest is
    /// reconfiguring ([`VhostQueue::is_paused`]). `None` without a guest.
    ///
    /// A DMA channel only starts the copies; [`VhostQueue::reap`] frees the packets when they are done.
    #[inline]
    pub fn send(&mut self, batch: &mut Batch) -> Option<(usize, u64)> {
        self.rcu_slot().accepts()?;
        let (count, mut bytes, mut copying) = (batch.len() as u16, 0, 0);
        let (dma, calls) = (self.dma, &mut self.calls);
        // One per queue.
        let rcu_slot = &self.served.guests.rcu_slots[usize::from(self.number)];
        let sent = rcu_slot.read(self.fenced, |active, _| {
            let (vring, mbufs) = (2 * active.send_pair, batch.as_mut_ptr());
            let sent = if let Some(dma) = dma.filter(|_| active.copied()) {
                copying = 1u64.checked_shl(active.send_pair.into()).unwrap_or(0);
                // SAFETY: as below; the ring owns the mbufs until they are reaped or the device is gone.
                unsafe { sys::netvm_dma_send(active.device, vring, dma, mbufs, count, &raw mut bytes) }
            } else {
                // SAFETY: the device is there until the read section ends; the first `count` pointers are mbufs that
                // the batch owns, each within its buffer.
                unsafe { sys::netvm_vhost_send(active.device, vring, mbufs, count, &raw mut bytes) }
            };
            calls.after_burst(active.device, vring);
            sent
        });
        let Some(sent) = sent else {
            // The device is paused or gone.
            return self.rcu_slot().accepts().map(|_| (0, 0));
        };
        self.copying |= copying;
        // SAFETY: this many were freed or handed to the DMA channel, at most `count`.
        unsafe { batch.forget_front(sent.into()) };
        Some((sent.into(), bytes))
    }

    /// Publishes packets that the DMA channel has copied, and frees them; call it once a turn.
    #[inline(always)]
    pub fn reap(&mut self) {
        if self.copying != 0 {
            self.reap_copied();
        }
    }

    #[cold]
    fn reap_copied(&mut self) {
        let (dma, copying, calls) = (self.dma, self.copying, &mut self.calls);
        // One per queue.
        let rcu_slot = &self.served.guests.rcu_slots[usize::from(self.number)];
        let left = rcu_slot.read(self.fenced, |active, _| {
            // If the channel was stopped, the copies in progress were taken back.
            let Some(dma) = dma.filter(|_| active.copied()) else { return 0 };
            let mut under_way = |pair: &u16| {
                if copying >> pair & 1 == 0 {
                    return false;
                }
                // SAFETY: the device is there until the read section ends, and its rings are the DMA channel's.
                let left = unsafe { sys::netvm_dma_reap(active.device, 2 * pair, dma) };
                calls.after_burst(active.device, 2 * pair);
                left != 0
            };
            (0..64).filter(|pair| under_way(pair)).fold(0, |left, pair| left | 1 << pair)
        });
        // While the device is paused, copies are still in progress.
        if left.is_some() || self.rcu_slot().accepts().is_none() {
            self.copying = left.unwrap_or(0);
        }
    }

    /// Whether DMA copies may be in progress.
    #[inline(always)]
    #[must_use]
    pub const fn is_copying(&self) -> bool {
        self.copying != 0
    }

    /// Whether a call is pending because of the rate limit; [`VhostQueue::receive`] sends it.
    #[inline(always)]
    #[must_use]
    pub const fn has_pending_call(&self) -> bool {
        self.calls.has_pending()
    }

    /// What the guest accepts; `None` without a guest. It may change before packets are sent.
    #[inline(always)]
    #[must_use]
    pub fn accepts(&self) -> Option<Accepts> {
        self.rcu_slot().accepts().map(Accepts::from_bits)
    }

    /// Whether the guest is reconfiguring its memory or rings.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.rcu_slot().is_paused()
    }

    /// Enables kicks until packets are received. `true`: packets may be waiting; call [`VhostQueue::receive`] and then
    /// this again. `false`: the guest will kick for the next packet.
    pub fn begin_wait(&mut self) -> bool {
        if self.unseen.is_none() || self.rcu_slot().peek().is_none() {
            self.enable_kicks();
        }
        let may_wait = self.unseen != Some(0);
        if !may_wait {
            // A kick ends one wait only.
            self.unseen = None;
        }
        may_wait
    }

    fn enable_kicks(&mut self) {
        self.kicks().waiter.drain();
        let asked = self.rcu_slot().read(self.fenced, |active, pairs| {
            for vring in vrings(pairs) {
                // SAFETY: the device is there until the read section ends.
                unsafe { sys::netvm_vhost_notify(active.device, vring, 1) };
            }
            pairs
        });
        self.kicks_enabled = asked.is_some();
        self.unseen = Some(asked.unwrap_or(0));
        // Either the guest sees that notifications are on, or the next receive sees its packet.
        fence(Ordering::SeqCst);
    }

    /// A descriptor that becomes readable when the guest kicks, to be polled and not read; `None` if kicks are off or
    /// impossible.
    #[must_use]
    pub fn arrival(&self) -> Option<BorrowedFd<'_>> {
        let kicks = self.kicks();
        (self.kicks_enabled && kicks.all_watched()).then(|| kicks.waiter.as_fd())
    }

    fn kicks(&self) -> &Kicks {
        // One per queue.
        &self.served.guests.kicks[usize::from(self.number)]
    }

    /// Ends a wait: suppresses kicks again.
    #[cold]
    fn end_wait(&mut self) {
        (self.kicks_enabled, self.unseen) = (false, None);
    }
}

/// Suppresses kicks for packets, and for free buffers. Only in a read section.
#[cold]
fn suppress(active: ActiveDevice, pairs: u64) {
    for vring in vrings(pairs).flat_map(|vring| [vring - 1, vring]) {
        // SAFETY: the device is there until the read section ends.
        unsafe { sys::netvm_vhost_notify(active.device, vring, 0) };
    }
}

/// Calls `note` for the packets of a burst that begins at `first` whose bits are set, and drops those for which it
/// returns false. Returns how many it dropped.
fn note_requests(
    batch: &mut Batch,
    first: usize,
    requests: u64,
    mut note: impl FnMut(&mut Mbuf, [u8; HEADER]) -> bool,
) -> u64 {
    let mut refused = 0u64;
    for (n, packet) in batch.as_mut_slice()[first..].iter_mut().enumerate() {
        if requests >> n & 1 == 1 {
            let mut header = [0; HEADER];
            // SAFETY: `netvm_vhost_receive` wrote the header to the headroom of this packet; see `Mbuf::copy_to`.
            unsafe { packet.data().sub(HEADER).copy_to_nonoverlapping(header.as_mut_ptr(), HEADER) };
            refused |= u64::from(!note(packet, header)) << n;
        }
    }
    if refused != 0 {
        let mut received = batch.split_off(first);
        let mut n = 0;
        received.retain(|_| {
            let is_refused = refused >> n & 1 == 1;
            n += 1;
            !is_refused
        });
        batch.append(&mut received);
    }
    refused.count_ones().into()
}

/// Transmit rings of the pairs.
fn vrings(pairs: u64) -> impl Iterator<Item = u16> {
    (0..64).filter(move |pair| pairs >> pair & 1 == 1).map(|pair: u16| 2 * pair + 1)
}

/// The pair after `turn`, round robin.
#[inline(always)]
fn next_pair(pairs: u64, turn: u32) -> Option<u32> {
    let after = pairs & u64::MAX.checked_shl(turn + 1).unwrap_or(0);
    let from = if after == 0 { pairs } else { after };
    (from != 0).then(|| from.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_take_turns() {
        let mut turn = 0;
        let mut order = Vec::new();
        for _ in 0..5 {
            turn = next_pair(1 << 63 | 0b101, turn).unwrap();
            order.push(turn);
        }
        assert_eq!(order, [2, 63, 0, 2, 63]);
        assert_eq!(next_pair(0, 3), None);
    }
}
