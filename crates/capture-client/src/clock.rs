// SPDX-License-Identifier: Apache-2.0
//! From a worker's cycle counter to the time of day.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netvm_capture::Timestamp;
use netvm_clock::{cycles, cycles_per_second};

/// How often both clocks are compared.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct ClockPair {
    cycles: u64,
    nanos: u64,
}

impl ClockPair {
    /// The best of some looks: the one that took the fewest cycles.
    fn now() -> Self {
        let read = || {
            let before = cycles();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let after = cycles();
            let took = after.wrapping_sub(before);
            (took, Self { cycles: before.wrapping_add(took / 2), nanos: now.as_nanos() as u64 })
        };
        let reads = [read(), read(), read()];
        reads.into_iter().min_by_key(|(took, _)| *took).map_or_else(|| read().1, |(_, pair)| pair)
    }
}

/// Converts cycles to times. It follows a clock that is set or slewed within a second.
#[derive(Debug)]
pub(crate) struct Clock {
    anchor: ClockPair,
    nanos_per_cycle: f64,
    next: Instant,
    last: (u64, Timestamp),
}

impl Clock {
    pub(crate) fn new() -> Self {
        let nanos_per_cycle = 1e9 / cycles_per_second() as f64;
        let anchor = ClockPair::now();
        Self { anchor, nanos_per_cycle, next: Instant::now() + COMPARE_INTERVAL, last: (0, Timestamp(0)) }
    }

    /// Compares both clocks if it is time to.
    pub(crate) fn follow(&mut self) {
        if Instant::now() < self.next {
            return;
        }
        let now = ClockPair::now();
        let (cycles, nanos) =
            (now.cycles.wrapping_sub(self.anchor.cycles), now.nanos.wrapping_sub(self.anchor.nanos));
        let measured = nanos as f64 / cycles.max(1) as f64;
        // A clock that was set says nothing about its rate.
        if (measured / self.nanos_per_cycle - 1.0).abs() < 1e-3 {
            self.nanos_per_cycle = measured;
        }
        (self.anchor, self.next, self.last) = (now, Instant::now() + COMPARE_INTERVAL, (0, Timestamp(0)));
    }

    /// The time of a cycle count of the last seconds.
    #[inline]
    pub(crate) fn time(&mut self, cycles: u64) -> Timestamp {
        if self.last.0 != cycles {
            let passed = cycles.wrapping_sub(self.anchor.cycles) as i64;
            let nanos = (passed as f64 * self.nanos_per_cycle) as i64;
            self.last = (cycles, Timestamp(self.anchor.nanos.wrapping_add_signed(nanos)));
        }
        self.last.1
    }

    /// The time now.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.time(cycles())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_day() {
        let mut clock = Clock::new();
        for _ in 0..3 {
            let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
            let time = clock.now().as_nanos();
            let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
            // A millisecond for the 20 ms over which the rate was measured while the machine did other things.
            assert!(time + 1_000_000 > before && time < after + 1_000_000, "{before} {time} {after}");
            std::thread::sleep(Duration::from_millis(400));
            clock.next = Instant::now();
            clock.follow();
        }
        let later = clock.time(clock.anchor.cycles + cycles_per_second());
        let earlier = clock.time(clock.anchor.cycles.wrapping_sub(cycles_per_second()));
        let between = later.as_nanos() - earlier.as_nanos();
        assert!((1_900_000_000..2_100_000_000).contains(&between), "{between}");
    }
}
