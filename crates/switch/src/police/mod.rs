//! Policers: token buckets that workers share.
//!
//! A bucket is kept as the generic buffer rate algorithm keeps it (GCRA, virtual scheduling: ITU-T I.371 annex A.1), which is
//! equivalent and needs one number, the theoretical arrival time (TAT): when the bucket will be full again. What is
//! admitted moves it ahead by its cost, and it may lie no further ahead of now than the burst lasts. So a run of packets
//! takes one compare-and-swap on one word.
//!
//! It must be right in one direction: whatever threads do, no more is admitted than rate × time + burst and one
//! unit. Rounding, and clocks of workers that disagree, make it admit less.

mod meter;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::sync::{AtomicU64, Ordering};

pub use meter::Meter;

use thiserror::Error;

/// Bits of the fraction in the cost of a unit.
const FRACTION: u32 = 20;
/// A second has at least `1 << (SECOND_BITS - 1)` and fewer than `1 << SECOND_BITS` steps: below a picosecond each, so that
/// 64 bits wrap after 48 days or more.
const SECOND_BITS: u32 = 42;
/// Longest burst in steps, 68 to 136 minutes: a small part of the time after which they wrap, as the wrap may make a bucket
/// that was idle that long look partly empty.
const LONGEST: u64 = 1 << 54;

/// A token bucket of one rate.
///
/// Alone on its cache line, as several workers write it.
#[derive(Debug)]
#[repr(align(64))]
pub struct Policer {
    /// When the bucket will be full, in steps, modulo 2^64.
    tat: AtomicU64,
    /// Steps that a unit takes to come in, times `1 << FRACTION`, rounded up.
    cost: u64,
    /// Steps that an empty bucket takes to fill.
    depth: u64,
    /// How much later than now the TAT can be; what seems beyond that is long past.
    horizon: u64,
    /// Steps of a clock cycle, as a shift.
    shift: u32,
}

/// Why there is no such policer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicerError {
    /// The rate is 0 or too high.
    #[error("a rate of {0} a second cannot be policed: it must be 1 to {max}; leave it out for no limit", max = Policer::MAX_RATE)]
    Rate(u64),
    /// Nothing would ever be admitted.
    #[error("a burst of 0 admits nothing: write a drop rule, or a burst of at least the largest packet")]
    NoBurst,
    /// The bucket takes too long to fill.
    #[error("a burst of {burst} takes more than an hour at {rate} a second: lower it")]
    BurstTooLong {
        /// Units a second.
        rate: u64,
        /// Units at once.
        burst: u64,
    },
    /// The clock is none.
    #[error("a clock of {0} Hz cannot time a policer: it must be 1 Hz to 1 THz")]
    Clock(u64),
}

impl Policer {
    /// Highest rate: 2.2 × 10^12 units a second.
    pub const MAX_RATE: u64 = 1 << (SECOND_BITS - 1);
    /// Highest rate of the clock: 1.1 × 10^12 Hz.
    pub const MAX_CLOCK: u64 = 1 << 40;

    /// A full bucket of `burst` units into which `rate` come a second, by a clock of `clock_hz`.
    ///
    /// Units are packets, bits, or whatever the caller counts. A packet of more units than `burst` is never admitted.
    ///
    /// # Errors
    /// [`PolicerError`] for numbers outside its bounds.
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
        // Half a unit more, so that a burst may come in parts, each of which rounds up by less than a step.
        policer.depth = policer.cost_of(burst).saturating_add(policer.cost >> (FRACTION + 1));
        if policer.depth > LONGEST {
            return Err(PolicerError::BurstTooLong { rate, burst });
        }
        // A worker may come with a time that another has overtaken, by up to a second.
        policer.horizon = policer.depth + second;
        Ok(policer)
    }

    /// Takes `units`, all or none.
    #[inline]
    pub fn admit(&self, now: u64, units: u64) -> bool {
        let cost = self.cost_of(units);
        self.take(now, |room| (cost <= room).then_some((1, cost))) == 1
    }

    /// Takes the units of each of a run of packets, from the front, until one does not conform: how many do.
    ///
    /// A smaller one behind it may still conform: call again with those.
    #[inline]
    #[must_use]
    pub fn admit_run(&self, now: u64, units: &[u32]) -> usize {
        self.admit_sized(now, units, 1)
    }

    /// As [`Policer::admit_run`], each packet having `scale` times the units.
    #[inline]
    fn admit_sized(&self, now: u64, units: &[u32], scale: u64) -> usize {
        let all = self.cost_of(units.iter().map(|units| u64::from(*units)).sum::<u64>() * scale);
        self.take(
            now,
            |room| if all <= room { Some((units.len(), all)) } else { self.front(room, units, scale) },
        )
    }

    /// Takes one unit each for up to `count` packets: for how many.
    #[inline]
    fn admit_count(&self, now: u64, count: usize) -> usize {
        self.take(now, |room| {
            let count = self.count_in(room, count);
            (count > 0).then(|| (count, self.cost_of(count as u64)))
        })
    }

    /// For how many of `count` packets of one unit there is room, without taking any.
    #[inline]
    fn fits(&self, now: u64, count: usize) -> usize {
        let ahead = self.ahead(now << self.shift, self.tat.load(Ordering::Relaxed));
        self.count_in(self.depth.saturating_sub(ahead), count)
    }

    /// How many packets at the front fit into `room` steps, and what they cost together.
    #[cold]
    fn front(&self, room: u64, units: &[u32], scale: u64) -> Option<(usize, u64)> {
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
    fn count_in(&self, room: u64, count: usize) -> usize {
        if self.cost_of(count as u64) <= room {
            return count;
        }
        // Fewer than `count`, hence no wider than it.
        ((u128::from(room) << FRACTION) / u128::from(self.cost)) as usize
    }

    /// Takes as many as `choose` says fit into the steps that there is room for, with their cost.
    #[inline]
    fn take(&self, now: u64, choose: impl Fn(u64) -> Option<(usize, u64)>) -> usize {
        let now = now << self.shift;
        let mut tat = self.tat.load(Ordering::Relaxed);
        loop {
            let ahead = self.ahead(now, tat);
            let Some((count, cost)) = choose(self.depth.saturating_sub(ahead)) else { return 0 };
            let next = now.wrapping_add(ahead + cost);
            // Relaxed: the word guards nothing but itself.
            match self.tat.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return count,
                Err(found) => tat = found,
            }
        }
    }

    /// How far ahead of now the TAT is: 0 when it is past.
    #[inline]
    const fn ahead(&self, now: u64, tat: u64) -> u64 {
        let ahead = tat.wrapping_sub(now);
        if ahead > self.horizon { 0 } else { ahead }
    }

    /// Steps that `units` take to come in, rounded up.
    #[inline]
    const fn cost_of(&self, units: u64) -> u64 {
        let cost = ((units as u128 * self.cost as u128) + ((1 << FRACTION) - 1)) >> FRACTION;
        if cost > u64::MAX as u128 { u64::MAX } else { cost as u64 }
    }
}
