// SPDX-License-Identifier: Apache-2.0
//! Policers: token buckets that workers share.
//!
//! A policer runs GCRA in its virtual scheduling form (ITU-T I.371 annex A.1). GCRA is equivalent to a token bucket and
//! stores one number, the theoretical arrival time (TAT): when the bucket will be full again. An admitted packet moves
//! the TAT ahead by its cost, at most as far ahead of now as the burst lasts. So a run of packets costs one
//! compare-and-swap on one word.
//!
//! However threads interleave, a policer never admits more than rate × time + burst and one unit. Rounding, and workers
//! whose clocks disagree, only make it admit less.

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::sync::{AtomicU64, Ordering};

use thiserror::Error;

/// Fraction bits in the cost of a unit.
const FRACTION: u32 = 20;
/// A second has at least `1 << (SECOND_BITS - 1)` and fewer than `1 << SECOND_BITS` steps. A step is below a
/// picosecond, and 64 bits wrap after 48 days or more.
const SECOND_BITS: u32 = 42;
/// Longest burst in steps, 68 to 136 minutes: far below the wrap, which may make a bucket idle for that long look
/// partly empty.
const MAX_BURST_STEPS: u64 = 1 << 54;

/// A token bucket.
///
/// Aligned to its own cache line, as several workers write it.
#[derive(Debug)]
#[repr(align(64))]
pub struct Policer {
    /// When the bucket will be full, in steps, modulo 2^64.
    tat: AtomicU64,
    /// Steps to refill one unit, times `1 << FRACTION`, rounded up.
    cost: u64,
    /// Steps to fill an empty bucket.
    depth: u64,
    /// Maximum distance of the TAT ahead of now; a larger distance means that the TAT is long past.
    horizon: u64,
    /// A clock cycle is `1 << shift` steps.
    shift: u32,
}

/// Why a policer cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum PolicerError {
    /// The rate is 0 or too high.
    #[error("a rate of {0} a second cannot be policed: it must be 1 to {max}; leave it out for no limit", max = Policer::MAX_RATE)]
    Rate(u64),
    /// The burst is 0.
    #[error("a burst of 0 admits nothing: write a drop rule, or a burst of at least the largest packet")]
    NoBurst,
    /// The bucket takes too long to fill.
    #[error("a burst of {burst} takes more than an hour at {rate} a second: lower it")]
    BurstTooLong { rate: u64, burst: u64 },
    /// The clock rate is 0 or too high.
    #[error("a clock of {0} Hz cannot time a policer: it must be 1 Hz to 1 THz")]
    Clock(u64),
}

impl Policer {
    /// Highest rate: 2.2 × 10^12 units a second.
    pub const MAX_RATE: u64 = 1 << (SECOND_BITS - 1);
    /// Highest clock rate: 1.1 × 10^12 Hz.
    pub const MAX_CLOCK: u64 = 1 << 40;

    /// A full bucket of `burst` units that refills at `rate` units per second of a clock of `clock_hz`.
    ///
    /// A unit is whatever the caller counts, such as packets or bits. A packet of more than `burst` units is never
    /// admitted.
    ///
    /// # Errors
    /// [`PolicerError`] for a number out of range.
    pub fn new(rate: u64, burst: u64, clock_hz: u64) -> Result<Self, PolicerError> {
        if !(1..=Self::MAX_RATE).contains(&rate) {
            return Err(PolicerError::Rate(rate));
        }
        if burst == 0 {
            return Err(PolicerError::NoBurst);
        }
        if !(1..=Self::MAX_CLOCK).contains(&clock_hz) {
            return Err(PolicerError::Clock(clock_hz));
        }
        let shift = SECOND_BITS - 1 - clock_hz.ilog2();
        let second = clock_hz << shift;
        let mut policer = Self {
            tat: AtomicU64::new(0),
            cost: (second << FRACTION).div_ceil(rate),
            depth: 0,
            horizon: 0,
            shift,
        };
        // Half a unit more, so that a burst may arrive in parts, each of which rounds up by less than a step.
        policer.depth = policer.cost_of(burst).saturating_add(policer.cost >> (FRACTION + 1));
        if policer.depth > MAX_BURST_STEPS {
            return Err(PolicerError::BurstTooLong { rate, burst });
        }
        // Another worker may have seen a time up to a second later than ours.
        policer.horizon = policer.depth + second;
        Ok(policer)
    }

    /// Admits all of `units` or none.
    #[inline]
    pub fn admit(&self, now: u64, units: u64) -> bool {
        let cost = self.cost_of(units);
        self.take(now, |room| (cost <= room).then_some((1, cost))) == 1
    }

    /// Admits the longest conforming prefix of a run of packets and returns its length.
    ///
    /// A smaller packet after it may still conform: call again with the rest.
    #[inline]
    #[must_use]
    pub fn admit_run(&self, now: u64, units: &[u32]) -> usize {
        self.admit_sized(now, units, 1)
    }

    /// Like [`Policer::admit_run`], with `scale` times the units for each packet.
    #[inline]
    fn admit_sized(&self, now: u64, units: &[u32], scale: u64) -> usize {
        let all = self.cost_of(units.iter().map(|units| u64::from(*units)).sum::<u64>() * scale);
        self.take(now, |room| {
            if all <= room { Some((units.len(), all)) } else { self.longest_prefix(room, units, scale) }
        })
    }

    /// Admits up to `count` packets of one unit each and returns how many.
    #[inline]
    fn admit_count(&self, now: u64, count: usize) -> usize {
        self.take(now, |room| {
            let count = self.count_fitting(room, count);
            (count > 0).then(|| (count, self.cost_of(count as u64)))
        })
    }

    /// How many of `count` packets of one unit conform, without charging for them.
    #[inline]
    fn fits(&self, now: u64, count: usize) -> usize {
        let ahead = self.ahead(now << self.shift, self.tat.load(Ordering::Relaxed));
        self.count_fitting(self.depth.saturating_sub(ahead), count)
    }

    /// The longest prefix that fits into `room` steps, and its cost.
    #[cold]
    fn longest_prefix(&self, room: u64, units: &[u32], scale: u64) -> Option<(usize, u64)> {
        let mut sum = 0;
        let mut found = None;
        for (before, units) in units.iter().enumerate() {
            sum += u64::from(*units) * scale;
            let cost = self.cost_of(sum);
            if cost > room {
                break;
            }
            found = Some((before + 1, cost));
        }
        found
    }

    #[inline]
    fn count_fitting(&self, room: u64, count: usize) -> usize {
        if self.cost_of(count as u64) <= room {
            return count;
        }
        // At most `count`, so it fits.
        ((u128::from(room) << FRACTION) / u128::from(self.cost)) as usize
    }

    /// Charges what `choose` selects for the available steps: a number of packets and their cost.
    #[inline]
    fn take(&self, now: u64, choose: impl Fn(u64) -> Option<(usize, u64)>) -> usize {
        let now = now << self.shift;
        let mut tat = self.tat.load(Ordering::Relaxed);
        loop {
            let ahead = self.ahead(now, tat);
            let Some((count, cost)) = choose(self.depth.saturating_sub(ahead)) else { return 0 };
            let next = now.wrapping_add(ahead + cost);
            // Relaxed: the word orders no other memory.
            match self.tat.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return count,
                Err(found) => tat = found,
            }
        }
    }

    /// Distance of the TAT ahead of now; 0 if it is past.
    #[inline]
    const fn ahead(&self, now: u64, tat: u64) -> u64 {
        let ahead = tat.wrapping_sub(now);
        if ahead > self.horizon { 0 } else { ahead }
    }

    /// Steps to refill `units`, rounded up.
    #[inline]
    const fn cost_of(&self, units: u64) -> u64 {
        let cost = ((units as u128 * self.cost as u128) + ((1 << FRACTION) - 1)) >> FRACTION;
        if cost > u64::MAX as u128 { u64::MAX } else { cost as u64 }
    }
}

/// A policer for packets and one for bits; admits what conforms to both.
#[derive(Debug)]
pub struct Meter {
    packets: Option<Policer>,
    bits: Option<Policer>,
}

impl Meter {
    /// Limits on packets and on bits, each a rate per second and a burst; `None` is unlimited. [`Policer::new`]
    /// describes the clock.
    ///
    /// # Errors
    /// [`PolicerError`] of either policer.
    pub fn new(
        packets: Option<(u64, u64)>,
        bits: Option<(u64, u64)>,
        clock_hz: u64,
    ) -> Result<Self, PolicerError> {
        let policer = |(rate, burst)| Policer::new(rate, burst, clock_hz);
        Ok(Self { packets: packets.map(policer).transpose()?, bits: bits.map(policer).transpose()? })
    }

    /// Admits the longest conforming prefix of a run of frames, charges for it only, and returns its length. `lengths`
    /// are in bytes and include what the rate counts: netvm's rates count frames without FCS.
    ///
    /// Workers that compete for the last conforming packets may admit fewer than conform.
    #[inline]
    #[must_use]
    pub fn admit_run(&self, now: u64, lengths: &[u32]) -> usize {
        const BITS: u64 = 8;
        match (&self.packets, &self.bits) {
            (None, None) => lengths.len(),
            (Some(packets), None) => packets.admit_count(now, lengths.len()),
            (None, Some(bits)) => bits.admit_sized(now, lengths, BITS),
            (Some(packets), Some(bits)) => {
                // Charges bits only for packets that the other policer will admit, unless another worker takes its
                // tokens meanwhile.
                let room = packets.fits(now, lengths.len());
                let count = bits.admit_sized(now, &lengths[..room], BITS);
                packets.admit_count(now, count)
            }
        }
    }

    /// Whether one frame of `length` bytes conforms; charges for it.
    #[inline]
    pub fn admit(&self, now: u64, length: u32) -> bool {
        self.admit_run(now, &[length]) == 1
    }
}
