// SPDX-License-Identifier: Apache-2.0
//! A link: one worker's two rings with one thread of an NF, and the NF's eventfd.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_clock as clock;
use netvm_notify::{RateLimit, Signaller, Wake};
use netvm_region::Control;
use netvm_ring::{Consumer, Producer};

use crate::ids::{GroupId, LinkId, MemoryId, RoleId};

/// Links that an engine can have at a time.
pub const MAX_LINKS: usize = 512;

/// Shortest interval between two wake-ups of an NF thread. A correct NF stays awake for longer. The interval prevents
/// an NF that only claims to sleep from making the engine call the kernel for every burst.
const WAKE_EVERY_MICROS: u64 = 20;

/// Factor on the interval for wake-ups ahead of packets (5 ms): the packets may go elsewhere, and a core that slept for
/// less wakes up quickly anyway.
const AHEAD_EVERY: u64 = 250;

/// What a link is made of.
pub(crate) struct LinkParts {
    pub(crate) id: LinkId,
    pub(crate) group: GroupId,
    pub(crate) role: RoleId,
    /// The memory of this group that this worker uses.
    pub(crate) memory: MemoryId,
    pub(crate) to_nf: Producer,
    pub(crate) from_nf: Consumer,
    /// The ring of empty buffers, if the NF may have some.
    pub(crate) stock: Option<Producer>,
    pub(crate) wake: Arc<OwnedFd>,
    /// The NF never signals, so the worker must poll.
    pub(crate) poll_only: bool,
    /// The memory of the rings.
    pub(crate) control: Arc<Control>,
}

/// The worker's side of the link. The manager creates it, the worker owns it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) group: GroupId,
    pub(crate) role: RoleId,
    /// The memory of this group that this worker uses.
    pub(crate) memory: MemoryId,
    pub(crate) to_nf: Producer,
    pub(crate) from_nf: Consumer,
    pub(crate) stock: Option<Producer>,
    wake: Arc<OwnedFd>,
    published: bool,
    wake_pending: bool,
    woken_at: u64,
    wake_every: u64,
    /// The NF never signals, so the worker must poll.
    poll_only: bool,
    // Keeps the rings mapped.
    _control: Arc<Control>,
}

impl Link {
    pub(crate) fn new(parts: LinkParts) -> Self {
        let LinkParts { id, group, role, memory, to_nf, from_nf, stock, wake, poll_only, control } = parts;
        Self {
            id,
            group,
            role,
            memory,
            to_nf,
            from_nf,
            stock,
            wake,
            published: false,
            wake_pending: false,
            woken_at: 0,
            wake_every: clock::cycles_in_micros(WAKE_EVERY_MICROS),
            poll_only,
            _control: control,
        }
    }

    /// Whether the NF returns packets without signalling.
    pub(crate) const fn is_poll_only(&self) -> bool {
        self.poll_only
    }

    /// Room for packets that can wait at their source: `wanted`, or 0 while the ring has less room (in a small ring,
    /// less than a quarter). The NF then has enough to do, and whole bursts cost less on both sides.
    #[inline]
    pub(crate) fn room_worthwhile(&mut self, wanted: usize) -> usize {
        let wanted = wanted as u32;
        let room = self.to_nf.room(wanted).min(wanted);
        let least = wanted.min(self.to_nf.memory().capacity() / 4);
        if room < least { 0 } else { room as usize }
    }

    /// Records that a burst was published: the NF may be asleep.
    #[inline(always)]
    pub(crate) const fn note_published(&mut self) {
        self.published = true;
    }

    /// Whether a burst was published since [`Link::look_for_sleeper`].
    #[inline(always)]
    pub(crate) const fn has_published(&self) -> bool {
        self.published
    }

    /// Checks whether the NF sleeps although something was published before the last sequentially consistent fence.
    #[inline(always)]
    pub(crate) fn look_for_sleeper(&mut self) {
        if core::mem::take(&mut self.published) {
            self.wake_pending |= self.to_nf.needs_wakeup_fenced();
        }
    }

    /// Packets for the NF are probably on their way: schedules a wake-up if it sleeps and was not woken recently.
    pub(crate) fn expect_packets(&mut self, now: u64) {
        if now.wrapping_sub(self.woken_at) >= self.wake_every * AHEAD_EVERY {
            self.wake_pending |= self.to_nf.needs_wakeup_fenced();
        }
    }

    /// Sends a pending wake-up unless the last one is too recent or the group has used up its share; called once a
    /// turn. Returns whether the wake-up took longer than for any correct group.
    #[inline(always)]
    pub(crate) fn wake_if_pending(
        &mut self,
        signaller: &Signaller,
        rate_limit: &mut RateLimit,
        now: u64,
    ) -> bool {
        if !self.wake_pending || now.wrapping_sub(self.woken_at) < self.wake_every {
            return false;
        }
        self.woken_at = now;
        let wake = rate_limit.signal(signaller, &self.wake);
        self.wake_pending = wake == Wake::Later;
        wake == Wake::Costly
    }

    /// Whether a wake-up is pending: the worker must not sleep for long.
    pub(crate) const fn is_wake_pending(&self) -> bool {
        self.wake_pending
    }
}
