//! The packet path: bursts out of a guest and into it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use dpdk_sys as sys;

use super::Served;
use super::adaptive_burst::AdaptiveBurst;
use super::calls::Caller;
use super::gate::{Gate, Pass};
use super::guests::Kicks;
use crate::{Batch, Pool};

/// What a guest takes besides plain packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepts {
    /// TCP and UDP whose checksum is still to be computed.
    pub checksum: bool,
    /// TCP segments of up to 64 KiB over IPv4.
    pub tso4: bool,
    /// The same over IPv6.
    pub tso6: bool,
}

impl Accepts {
    /// Everything.
    pub const ALL: Self = Self { checksum: true, tso4: true, tso6: true };

    #[inline(always)]
    pub(super) const fn from_bits(bits: u8) -> Self {
        Self {
            checksum: bits & sys::NETVM_VHOST_CSUM as u8 != 0,
            tso4: bits & sys::NETVM_VHOST_TSO4 as u8 != 0,
            tso6: bits & sys::NETVM_VHOST_TSO6 as u8 != 0,
        }
    }
}

/// One queue of a port. It has one owner, and keeps its port open.
#[derive(Debug)]
pub struct VhostQueue {
    served: Arc<Served>,
    number: u16,
    fenced: bool,
    /// The pair that was last received by.
    turn: u32,
    adaptive_burst: AdaptiveBurst,
    /// What was known of the guest when it was last told that it need not tell of packets.
    quiet: Option<Pass>,
    /// The guest has been asked to tell of packets.
    telling: bool,
    /// Between being asked and being waited for: the pairs that have not been found empty since, a bit each.
    unseen: Option<u64>,
    caller: Caller,
    copier: Option<i32>,
    /// The pairs to which packets may be under way by the copier, a bit each.
    copying: u64,
    /// The queue's owner may move, not share it.
    _one_thread: PhantomData<Cell<()>>,
}

impl VhostQueue {
    pub(super) fn new(served: Arc<Served>, number: u16, fenced: bool, copier: Option<i32>) -> Self {
        Self {
            served,
            number,
            fenced,
            turn: 0,
            adaptive_burst: AdaptiveBurst::new(),
            quiet: None,
            telling: false,
            unseen: None,
            caller: Caller::new(),
            copier,
            copying: 0,
            _one_thread: PhantomData,
        }
    }

    #[inline(always)]
    fn gate(&self) -> &Gate {
        // As many gates as queues have been made.
        &self.served.guests.gates[usize::from(self.number)]
    }

    /// Adds packets of the guest to the batch, copied to mbufs of the pool: at most `most`, and what the batch has room for;
    /// returns how many.
    #[inline]
    pub fn receive(&mut self, pool: &Pool, batch: &mut Batch, most: usize) -> usize {
        if self.gate().glance().is_none() {
            return 0;
        }
        let (spare, room) = batch.spare();
        let most = most.min(room) as u16;
        let (turn, quiet) = (self.turn, self.quiet);
        let (mut known, mut telling) = (quiet, self.telling);
        let (adaptive_burst, caller) = (&mut self.adaptive_burst, &mut self.caller);
        // As many gates as queues have been made.
        let gate = &self.served.guests.gates[usize::from(self.number)];
        let received = gate.enter(self.fenced, |pass, pairs| {
            if caller.owes() {
                caller.pay(pass.device);
            }
            if quiet != Some(pass) {
                suppress(pass, pairs);
                (known, telling) = (Some(pass), false);
            }
            let pair = next_pair(pairs, turn)?;
            let vring = 2 * pair as u16 + 1;
            let count = adaptive_burst.gather(pair, most, |before, more| {
                let spare = spare.wrapping_add(before.into());
                // SAFETY: the device is there until the gate is left; there is room for `before` pointers and `more`, and
                // the pool is alive.
                unsafe { sys::netvm_vhost_receive(pass.device, vring, pool.mempool(), spare, more) }
            });
            caller.after_burst(pass.device, vring);
            if count > 0 && telling {
                suppress(pass, pairs);
                telling = false;
            }
            Some((pair, usize::from(count)))
        });
        self.quiet = known;
        if self.telling && !telling {
            self.end_wait();
        }
        let Some((pair, count)) = received.flatten() else { return 0 };
        self.turn = pair;
        if let Some(unseen) = &mut self.unseen {
            *unseen &= !(1 << pair);
        }
        // SAFETY: the calls have written so many mbufs, which nobody else has.
        unsafe { batch.assume_added(count) };
        count
    }

    /// Copies packets from the front of the batch to the guest and frees them; returns how many these are, and their bytes.
    /// The others stay in the batch: the guest's ring is full, the first of them longer than what it has room for, or the guest
    /// is just changing its memory or rings ([`VhostQueue::is_paused`]). `None` if no guest is there.
    ///
    /// With a copier, packets are only handed to it, and freed by [`VhostQueue::reap`] once they are copied.
    #[inline]
    pub fn send(&mut self, batch: &mut Batch) -> Option<(usize, u64)> {
        self.gate().accepts()?;
        let (count, mut bytes, mut copying) = (batch.len() as u16, 0, 0);
        let (copier, caller) = (self.copier, &mut self.caller);
        // As many gates as queues have been made.
        let gate = &self.served.guests.gates[usize::from(self.number)];
        let sent = gate.enter(self.fenced, |pass, _| {
            let (vring, mbufs) = (2 * pass.send_pair, batch.as_mut_ptr());
            let sent = if let Some(copier) = copier.filter(|_| pass.copied()) {
                copying = 1u64.checked_shl(pass.send_pair.into()).unwrap_or(0);
                // SAFETY: as below; what is handed over is the library's until it is reaped, or the device is gone.
                unsafe { sys::netvm_copier_send(pass.device, vring, copier, mbufs, count, &raw mut bytes) }
            } else {
                // SAFETY: the device is there until the gate is left; the first `count` pointers are mbufs that the batch
                // owns, each within its buffer.
                unsafe { sys::netvm_vhost_send(pass.device, vring, mbufs, count, &raw mut bytes) }
            };
            caller.after_burst(pass.device, vring);
            sent
        });
        let Some(sent) = sent else {
            // Closed for a moment, or for good.
            return self.gate().accepts().map(|_| (0, 0));
        };
        self.copying |= copying;
        // SAFETY: so many were freed or handed over, which is at most `count`.
        unsafe { batch.forget_front(sent.into()) };
        Some((sent.into(), bytes))
    }

    /// Tells the guest of packets that the copier has copied, and frees them; once a turn.
    #[inline(always)]
    pub fn reap(&mut self) {
        if self.copying != 0 {
            self.reap_copied();
        }
    }

    #[cold]
    fn reap_copied(&mut self) {
        let (copier, copying, caller) = (self.copier, self.copying, &mut self.caller);
        // As many gates as queues have been made.
        let gate = &self.served.guests.gates[usize::from(self.number)];
        let left = gate.enter(self.fenced, |pass, _| {
            // What was under way has been taken back when the copier was told to stop.
            let Some(copier) = copier.filter(|_| pass.copied()) else { return 0 };
            let mut under_way = |pair: &u16| {
                if copying >> pair & 1 == 0 {
                    return false;
                }
                // SAFETY: the device is there until the gate is left, and its rings are the copier's.
                let left = unsafe { sys::netvm_copier_reap(pass.device, 2 * pair, copier) };
                caller.after_burst(pass.device, 2 * pair);
                left != 0
            };
            (0..64).filter(|pair| under_way(pair)).fold(0, |left, pair| left | 1 << pair)
        });
        // Closed for a moment: they are under way still.
        if left.is_some() || self.gate().accepts().is_none() {
            self.copying = left.unwrap_or(0);
        }
    }

    /// Whether packets may be under way by the copier.
    #[inline(always)]
    #[must_use]
    pub const fn is_copying(&self) -> bool {
        self.copying != 0
    }

    /// Whether the guest has not been told yet of what it wants to be told of, as that takes too much time: it is, by
    /// [`VhostQueue::receive`].
    #[inline(always)]
    #[must_use]
    pub const fn owes_call(&self) -> bool {
        self.caller.owes()
    }

    /// What the guest takes; `None` if none is there. It may be another by the time that packets are sent.
    #[inline(always)]
    #[must_use]
    pub fn accepts(&self) -> Option<Accepts> {
        self.gate().accepts().map(Accepts::from_bits)
    }

    /// Whether the guest is just changing its memory or rings.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.gate().is_paused()
    }

    /// Asks the guest to tell when it sends, until packets are received; whether packets may be waiting already, so that one
    /// is to look ([`VhostQueue::receive`]) and then call this again. `false`: the guest will tell of the next packet.
    pub fn begin_wait(&mut self) -> bool {
        if self.unseen.is_none() || self.gate().glance().is_none() {
            self.ask();
        }
        let may_wait = self.unseen != Some(0);
        if !may_wait {
            // What has been told by the next time ends one wait only.
            self.unseen = None;
        }
        may_wait
    }

    fn ask(&mut self) {
        self.kicks().waiter.drain();
        let asked = self.gate().enter(self.fenced, |pass, pairs| {
            for vring in vrings(pairs) {
                // SAFETY: the device is there until the gate is left.
                unsafe { sys::netvm_vring_notify(pass.device, vring, 1) };
            }
            pairs
        });
        self.telling = asked.is_some();
        self.unseen = Some(asked.unwrap_or(0));
        // Either the guest sees that notifications are on, or this look sees its packet.
        fence(Ordering::SeqCst);
    }

    /// What becomes readable when a guest sends that has been asked to tell, to be polled and not to be read; `None` if it
    /// cannot tell.
    #[must_use]
    pub fn arrival(&self) -> Option<BorrowedFd<'_>> {
        let kicks = self.kicks();
        (self.telling && kicks.are_heard()).then(|| kicks.waiter.as_fd())
    }

    fn kicks(&self) -> &Kicks {
        // As many as queues have been made.
        &self.served.guests.kicks[usize::from(self.number)]
    }

    /// The guest does not tell any more.
    #[cold]
    fn end_wait(&mut self) {
        (self.telling, self.unseen) = (false, None);
    }
}

/// Tells a guest that it need not tell of packets, nor, ever, of room for packets. Inside of the gate only.
#[cold]
fn suppress(pass: Pass, pairs: u64) {
    for vring in vrings(pairs).flat_map(|vring| [vring - 1, vring]) {
        // SAFETY: the device is there until the gate is left.
        unsafe { sys::netvm_vring_notify(pass.device, vring, 0) };
    }
}

/// Transmit rings of the pairs.
fn vrings(pairs: u64) -> impl Iterator<Item = u16> {
    (0..64).filter(move |pair| pairs >> pair & 1 == 1).map(|pair: u16| 2 * pair + 1)
}

/// The pair after `turn` of those that there are, round about.
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
