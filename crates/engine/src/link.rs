//! A link: one worker's two rings with one thread of an NF.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_notify::{RateLimit, Signaller, Wake};
use netvm_region::{Control, clock};
use netvm_ring::{Consumer, Producer};

use crate::ids::{GroupId, LinkId, MemoryId, RoleId};

/// Links that an engine can have at a time.
pub const MAX_LINKS: usize = 512;

/// A sleeping NF is woken no more often than this: an honest one stays awake for longer than that once it is, and one
/// that only claims to sleep cannot make the engine call the kernel for every burst.
const WAKE_EVERY_MICROS: u64 = 20;

/// It is woken ahead of packets so many times more seldom (5 ms), as these may go elsewhere. A core that has slept for less wakes
/// soon.
const AHEAD_EVERY: u64 = 250;

/// One worker's end of an NF thread. Made by the manager, owned by the worker.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) group: GroupId,
    pub(crate) role: RoleId,
    /// Where the buffers of this worker's packets for this group are.
    pub(crate) memory: MemoryId,
    pub(crate) to_nf: Producer,
    pub(crate) from_nf: Consumer,
    wake: Arc<OwnedFd>,
    published: bool,
    wake_pending: bool,
    woken_at: u64,
    wake_every: u64,
    /// The NF wakes nobody: the worker must look.
    silent: bool,
    // The rings' memory must outlive their ends.
    _control: Arc<Control>,
}

impl Link {
    #[allow(clippy::too_many_arguments, reason = "one place makes links, from the parts of an admission")]
    pub(crate) fn new(
        id: LinkId,
        group: GroupId,
        role: RoleId,
        memory: MemoryId,
        to_nf: Producer,
        from_nf: Consumer,
        wake: Arc<OwnedFd>,
        control: Arc<Control>,
    ) -> Self {
        let wake_every = clock::cycles_in_micros(WAKE_EVERY_MICROS);
        let (published, wake_pending, woken_at) = (false, false, 0);
        Self {
            id,
            group,
            role,
            memory,
            to_nf,
            from_nf,
            wake,
            published,
            wake_pending,
            woken_at,
            wake_every,
            silent: false,
            _control: control,
        }
    }

    /// The same of an NF that wakes nobody.
    pub(crate) fn silent(mut self, silent: bool) -> Self {
        self.silent = silent;
        self
    }

    /// Whether the NF returns packets without a wake-up.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Room for packets that can wait outside: at most `wanted`, or none while there is room for fewer (in a small ring, for
    /// fewer than a quarter of it). The NF has enough to do then, and whole bursts cost less on both sides.
    #[inline]
    pub(crate) fn room_worthwhile(&mut self, wanted: usize) -> usize {
        let wanted = wanted as u32;
        let room = self.to_nf.room(wanted).min(wanted);
        let least = wanted.min(self.to_nf.memory().capacity() / 4);
        if room < least { 0 } else { room as usize }
    }

    /// Notes that a burst was published: the NF may be asleep.
    #[inline(always)]
    pub(crate) const fn note_published(&mut self) {
        self.published = true;
    }

    /// Whether a burst was published since [`Link::look_for_sleeper`].
    #[inline(always)]
    pub(crate) const fn has_published(&self) -> bool {
        self.published
    }

    /// Sees whether the NF sleeps on what was published before the last sequentially consistent fence.
    #[inline(always)]
    pub(crate) fn look_for_sleeper(&mut self) {
        if core::mem::take(&mut self.published) {
            self.wake_pending |= self.to_nf.wants_wake_fenced();
        }
    }

    /// Packets are probably about to be handed to the NF: one that sleeps, and was not woken for long, is owed a wake-up already.
    pub(crate) fn expect_packets(&mut self, now: u64) {
        if now.wrapping_sub(self.woken_at) >= self.wake_every * AHEAD_EVERY {
            self.wake_pending |= self.to_nf.wants_wake_fenced();
        }
    }

    /// Wakes the NF if it sleeps, was not woken just now, and its group has the time for it; called once a turn. Returns
    /// whether that took what no honest group's wake does.
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

    /// Whether a wake-up is owed: the worker must not sleep for long.
    pub(crate) const fn owes_wake(&self) -> bool {
        self.wake_pending
    }
}
