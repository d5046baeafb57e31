// SPDX-License-Identifier: Apache-2.0
//! CoDel (RFC 8289): drops packets at the head of a queue whose delay has been too long for too long a time.
//!
//! A burst passes untouched: only a delay above `target` during a whole `interval` is a standing queue. The longer it
//! stands, the more often a packet is dropped (RFC 8289 section 4.1: at `interval / sqrt(count)`), which is how TCP
//! senders learn to slow down.

/// When CoDel drops, in cycles of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelOptions {
    /// Acceptable delay; RFC 8289 section 4.4 recommends 5 ms.
    pub target: u64,
    /// Time that a delay above the target must last: about a round trip, by RFC 8289 100 ms.
    pub interval: u64,
}

/// The head of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// When it was queued.
    pub(super) since: u64,
    /// Whether packets of another full frame wait behind it. The last frame is never dropped.
    pub(super) is_followed: bool,
}

/// The state for one queue.
#[derive(Debug)]
pub(super) struct Codel {
    options: CodelOptions,
    /// When the delay will have been above the target for an interval.
    above_until: Option<u64>,
    /// While CoDel drops: the time of the next drop.
    next_drop: Option<u64>,
    /// When CoDel last decided to drop.
    last_drop: u64,
    /// Drops since CoDel began to drop, and their number when it last began.
    count: u32,
    count_at_start: u32,
}

impl Codel {
    pub(super) const fn new(options: CodelOptions) -> Self {
        let (above_until, next_drop) = (None, None);
        Self { options, above_until, next_drop, last_drop: 0, count: 0, count_at_start: 0 }
    }

    /// Notes that the queue is empty.
    pub(super) const fn on_empty(&mut self) {
        self.above_until = None;
        self.next_drop = None;
    }

    /// Whether to drop the head.
    pub(super) fn drops(&mut self, head: Head, now: u64) -> bool {
        let is_standing = self.is_standing(head, now);
        match self.next_drop {
            Some(_) if !is_standing => {
                self.next_drop = None;
                false
            }
            Some(next) if now < next => false,
            Some(next) => {
                self.count = self.count.saturating_add(1);
                self.schedule(next);
                true
            }
            None if !is_standing => false,
            None => {
                self.begin(now);
                true
            }
        }
    }

    fn is_standing(&mut self, head: Head, now: u64) -> bool {
        if now.saturating_sub(head.since) < self.options.target || !head.is_followed {
            self.above_until = None;
            return false;
        }
        now >= *self.above_until.get_or_insert(now + self.options.interval)
    }

    /// Begins to drop, at the rate of the previous time if that was not long ago.
    fn begin(&mut self, now: u64) {
        let grown = self.count - self.count_at_start;
        let is_recent = now.saturating_sub(self.last_drop) < 16 * self.options.interval;
        self.count = if grown > 1 && is_recent { grown } else { 1 };
        self.count_at_start = self.count;
        self.schedule(now);
    }

    fn schedule(&mut self, after: u64) {
        self.last_drop = after;
        self.next_drop = Some(after + (self.options.interval as f64 / f64::from(self.count).sqrt()) as u64);
    }
}
