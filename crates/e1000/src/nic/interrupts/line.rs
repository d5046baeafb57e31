// SPDX-License-Identifier: Apache-2.0
//! A line to the guest, INTx or an MSI-X vector: its eventfd, and how often it may be signalled.

use std::os::fd::OwnedFd;

use netvm_clock as clock;
use netvm_notify::{RateLimit, Signaller, Wake};

/// From this number of packets received since the last interrupt, the guest's progress sets the interval.
const MIN_PACKETS_TO_PACE: u32 = 2;
/// Longest interval that follows from the guest's progress, if packets were received. A guest for which register
/// accesses are expensive takes half a millisecond for an interrupt with few packets, so a shorter one would leave it
/// no time.
const MAX_MICROS: u64 = 4000;
/// The same, if packets were only sent: their ring must not fill up meanwhile.
const MAX_SENT_MICROS: u64 = 1000;

/// When a signal that was refused, because the client makes signals expensive, is tried again.
const RETRY_MICROS: u64 = 100;

/// One line.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The client's eventfd.
    eventfd: Option<OwnedFd>,
    signaller: Signaller,
    limit: RateLimit,
    /// An interrupt was signalled, and the driver has not enabled interrupts again.
    is_served: bool,
    /// Time of the last interrupt.
    last: u64,
    /// How long the guest takes for an interrupt, in cycles: a moving average.
    service: u64,
    /// Packets received since the last interrupt.
    packets: u32,
    /// A signal was refused: when to try again.
    retry: u64,
}

impl Line {
    pub(super) fn connect(&mut self, eventfd: Option<OwnedFd>) {
        self.eventfd = eventfd;
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.eventfd.is_some()
    }

    /// After a reset: the client keeps its eventfd.
    pub(super) const fn reset(&mut self) {
        (self.is_served, self.last, self.service, self.packets, self.retry) = (false, 0, 0, 0, 0);
    }

    pub(super) const fn count(&mut self, packets: u32) {
        self.packets = self.packets.saturating_add(packets);
    }

    /// The driver has enabled its interrupts, after it had them disabled.
    pub(super) fn note_service(&mut self, now: u64) {
        if std::mem::take(&mut self.is_served) {
            let took = now.wrapping_sub(self.last).min(clock::cycles_in_micros(MAX_MICROS));
            self.service = self.service - self.service / 8 + took / 8;
        }
    }

    /// When it may be signalled: `least` cycles after the last interrupt, or later. `is_urgent`: there is more to
    /// announce than sent packets.
    pub(super) fn due(&self, least: u64, is_urgent: bool) -> u64 {
        if self.last == 0 { self.retry } else { self.retry.max(self.last + self.interval(least, is_urgent)) }
    }

    /// Cycles between the last interrupt and the next one.
    fn interval(&self, least: u64, is_urgent: bool) -> u64 {
        let follows = if self.packets >= MIN_PACKETS_TO_PACE || !is_urgent { 2 * self.service } else { 0 };
        let longest = if is_urgent { MAX_MICROS } else { MAX_SENT_MICROS };
        least.max(follows.min(clock::cycles_in_micros(longest)))
    }

    /// Signals an interrupt, if it is time: see [`Self::due`]. Returns whether it signalled.
    pub(super) fn signal(&mut self, least: u64, is_urgent: bool, now: u64) -> bool {
        let Some(eventfd) = &self.eventfd else { return false };
        if self.last != 0 && now.wrapping_sub(self.last) < self.interval(least, is_urgent) {
            return false;
        }
        // A client that makes signals expensive gets fewer.
        if matches!(self.limit.signal(&self.signaller, eventfd), Wake::Later | Wake::Omitted) {
            self.retry = now + clock::cycles_in_micros(RETRY_MICROS);
            return false;
        }
        (self.is_served, self.last, self.packets) = (true, now, 0);
        true
    }
}
