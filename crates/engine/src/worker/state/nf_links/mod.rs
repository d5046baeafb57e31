// SPDX-License-Identifier: Apache-2.0
//! A worker's links to NF threads, and whether it waits for packets from them.

pub(crate) mod start_queue;

use netvm_notify::{RateLimit, Signaller};

use super::BURST;
use crate::ids::put;
use crate::ids::{GroupId, LinkId};
use crate::link::{Link, MAX_LINKS};

/// What NFs got since they last returned packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Nothing,
    /// A wake-up, for packets that may come.
    WokenAhead,
    /// Packets, while all of them were awake.
    OfAwake,
    /// Packets and a wake-up.
    OfWoken,
}

pub(crate) struct NfLinks {
    /// By [`LinkId`].
    by_id: Vec<Option<Box<Link>>>,
    /// The links in `by_id`.
    pub(crate) active: Vec<LinkId>,
    /// Wakes NFs.
    pub(crate) signaller: Signaller,
    /// By [`GroupId`]: when this worker may wake its NFs.
    rate_limits: Vec<Option<RateLimit>>,
    pub(crate) awaited: Awaited,
}

impl NfLinks {
    pub(crate) fn new(signaller: Signaller) -> Self {
        Self {
            by_id: (0..MAX_LINKS).map(|_| None).collect(),
            active: Vec::with_capacity(MAX_LINKS),
            signaller,
            rate_limits: Vec::new(),
            awaited: Awaited::Nothing,
        }
    }

    pub(crate) fn add(&mut self, link: Box<Link>) {
        let id = link.id;
        self.by_id[id.index()] = Some(link);
        self.active.push(id);
    }

    pub(crate) fn remove(&mut self, id: LinkId) -> Option<Box<Link>> {
        self.active.retain(|active| *active != id);
        self.by_id[id.index()].take()
    }

    /// Adds a group whose NFs this worker may wake.
    pub(crate) fn add_group(&mut self, group: GroupId) {
        put(&mut self.rate_limits, group.index(), RateLimit::new());
    }

    #[inline(always)]
    pub(crate) fn get(&self, link: LinkId) -> Option<&Link> {
        self.by_id[link.index()].as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.by_id[link.index()].as_deref_mut()
    }

    #[inline(always)]
    pub(crate) fn each(&mut self, mut each: impl FnMut(&mut Link)) {
        for id in &self.active {
            if let Some(link) = self.by_id[id.index()].as_deref_mut() {
                each(link);
            }
        }
    }

    /// Number of packets that wait for an NF thread; the maximum if it is gone.
    #[inline(always)]
    pub(crate) fn occupancy(&mut self, link: LinkId) -> u32 {
        self.get_mut(link).map_or(u32::MAX, |link| link.to_nf.occupancy())
    }

    /// Prefetches a burst of each NF's returned descriptors.
    #[inline(always)]
    pub(crate) fn prefetch_returned(&mut self) {
        self.each(|link| link.from_nf.prefetch(BURST as u32));
    }

    /// Wakes an NF thread if a wake-up is pending. Returns whether the kernel took longer than for any correct group.
    #[inline(always)]
    pub(crate) fn wake(&mut self, link: LinkId, now: u64) -> bool {
        let Self { by_id, rate_limits, signaller, .. } = self;
        by_id[link.index()].as_deref_mut().is_some_and(|link| {
            let rate_limit = rate_limits.get_mut(link.group.index()).and_then(Option::as_mut);
            rate_limit.is_some_and(|rate_limit| link.wake_if_pending(signaller, rate_limit, now))
        })
    }
}
