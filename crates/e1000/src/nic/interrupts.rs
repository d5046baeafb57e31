//! Interrupts: causes, mask, delays and moderation.
//!
//! A driver is interrupted at most once per interval: the one that it sets in ITR, or one that follows the guest's
//! progress, if that is longer. The latter is twice as long as the guest took from an interrupt to enabling interrupts
//! again, while interrupts come with many packets. So handling interrupts leaves the guest half of its time, however fast
//! packets come (receive livelock: Mogul and Ramakrishnan, 1997), and a packet that comes alone is announced at once.
//!
//! The line is INTx: the client masks it when it has signalled an interrupt, and unmasks it when the guest's driver has
//! seen it.

use std::os::fd::OwnedFd;

use netvm_notify::{RateLimit, Signaller, Wake};
use netvm_region::clock;

use super::registers::cause;

/// Packets since the last interrupt from which on the guest's progress sets the interval.
const MANY: u32 = 8;
/// Longest interval that follows from the guest's progress.
const LONGEST_MICROS: u64 = 1000;
/// Units of ITR per second (256 ns), and of the delays (1.024 µs).
const ITR_UNIT_NANOS: u64 = 256;
const DELAY_UNIT_NANOS: u64 = 1024;

/// Delays of one direction, as the driver has set them, in the registers' units.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delays {
    /// Since the last packet.
    pub(crate) since_last: u32,
    /// Since the first packet; 0: no limit.
    pub(crate) since_first: u32,
}

/// An announcement that is delayed: when it is due since the last packet, and since the first.
#[derive(Clone, Copy, Debug, Default)]
struct Delayed {
    due: Option<u64>,
    limit: Option<u64>,
}

/// The interrupt logic of a card.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    causes: u32,
    mask: u32,
    /// ITR.
    pub(super) interval: u32,
    /// The client's eventfd.
    line: Option<OwnedFd>,
    signaller: Signaller,
    limit: RateLimit,
    /// An interrupt was signalled, and the client has not unmasked the line.
    is_masked: bool,
    /// An interrupt was signalled, and the driver has not enabled interrupts again.
    is_served: bool,
    /// Time of the last interrupt.
    last: u64,
    /// How long the guest takes for an interrupt, in cycles: a moving average.
    service: u64,
    /// Packets since the last interrupt.
    packets: u32,
    /// Cycles of delays: of received and of sent packets.
    delayed: [Delayed; 2],
    /// Interrupts signalled.
    pub(crate) count: u64,
}

/// A direction, for delays.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Received = 0,
    Sent = 1,
}

impl Direction {
    const fn cause(self) -> u32 {
        match self {
            Self::Received => cause::RXT0,
            Self::Sent => cause::TXDW,
        }
    }
}

fn cycles(nanos: u64) -> u64 {
    (u128::from(nanos) * u128::from(clock::cycles_per_second()) / 1_000_000_000) as u64
}

impl Interrupts {
    /// After a reset: the client keeps the line.
    pub(super) fn reset(&mut self) {
        (self.causes, self.mask, self.interval) = (0, 0, 0);
        (self.is_served, self.last, self.service, self.packets) = (false, 0, 0, 0);
        self.delayed = [Delayed::default(); 2];
    }

    /// Sets the client's eventfd.
    pub(crate) fn set_line(&mut self, line: Option<OwnedFd>) {
        (self.line, self.is_masked) = (line, false);
    }

    /// The client masks the line, or unmasks it.
    pub(crate) fn set_masked(&mut self, is_masked: bool) {
        self.is_masked = is_masked;
        self.fire(clock::cycles());
    }

    /// Reads ICR, which clears it.
    pub(super) fn take_causes(&mut self) -> u32 {
        let asserted = if self.causes & self.mask == 0 { 0 } else { cause::ASSERTED };
        std::mem::take(&mut self.causes) | asserted
    }

    /// Clears causes (a write to ICR).
    pub(super) const fn clear(&mut self, causes: u32) {
        self.causes &= !causes;
    }

    /// IMS.
    pub(super) const fn mask(&self) -> u32 {
        self.mask
    }

    /// Enables causes (IMS).
    pub(super) fn enable(&mut self, causes: u32) {
        let was_disabled = self.mask == 0;
        self.mask |= causes;
        let now = clock::cycles();
        if self.is_served && was_disabled {
            self.is_served = false;
            let took = now.wrapping_sub(self.last).min(clock::cycles_in_micros(LONGEST_MICROS));
            self.service = self.service - self.service / 8 + took / 8;
        }
        self.fire(now);
    }

    /// Disables causes (IMC).
    pub(super) const fn disable(&mut self, causes: u32) {
        self.mask &= !causes;
    }

    /// Adds causes, and interrupts if it is time.
    pub(crate) fn raise(&mut self, causes: u32) {
        self.causes |= causes;
        self.fire(clock::cycles());
    }

    /// Packets were received, or descriptors of sent ones written back: announces them after the delays.
    pub(crate) fn announce(&mut self, direction: Direction, packets: u32, delays: Delays) {
        self.packets = self.packets.saturating_add(packets);
        if delays.since_last == 0 {
            self.delayed[direction as usize] = Delayed::default();
            self.causes |= direction.cause();
            return;
        }
        let now = clock::cycles();
        let after = |units: u32| now.wrapping_add(cycles(u64::from(units) * DELAY_UNIT_NANOS));
        let Delayed { due, limit } = &mut self.delayed[direction as usize];
        *due = Some(after(delays.since_last));
        if limit.is_none() && delays.since_first > 0 {
            *limit = Some(after(delays.since_first));
        }
    }

    /// Whether something waits for its time.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.causes & self.mask != 0 && !self.is_masked
            || self.delayed.iter().any(|delayed| delayed.due.is_some())
    }

    /// What is due by now: the worker calls it in each turn.
    #[inline]
    pub(crate) fn tick(&mut self) {
        if !self.is_pending() {
            return;
        }
        let now = clock::cycles();
        let is_past = |time: Option<u64>| time.is_some_and(|time| now.wrapping_sub(time) as i64 >= 0);
        for direction in [Direction::Received, Direction::Sent] {
            let Delayed { due, limit } = self.delayed[direction as usize];
            if is_past(due) || is_past(limit) {
                self.delayed[direction as usize] = Delayed::default();
                self.causes |= direction.cause();
            }
        }
        self.fire(now);
    }

    /// The shortest time between interrupts, in cycles.
    fn least_interval(&self) -> u64 {
        let set = cycles(u64::from(self.interval & 0xffff) * ITR_UNIT_NANOS);
        let follows = if self.packets >= MANY { 2 * self.service } else { 0 };
        set.max(follows.min(clock::cycles_in_micros(LONGEST_MICROS)))
    }

    fn fire(&mut self, now: u64) {
        if self.causes & self.mask == 0 || self.is_masked {
            return;
        }
        let Some(line) = &self.line else { return };
        if self.last != 0 && now.wrapping_sub(self.last) < self.least_interval() {
            return;
        }
        // A client that makes signals expensive gets fewer.
        if matches!(self.limit.signal(&self.signaller, line), Wake::Later | Wake::Omitted) {
            return;
        }
        (self.is_masked, self.is_served, self.last, self.packets) = (true, true, now, 0);
        self.count += 1;
    }
}
