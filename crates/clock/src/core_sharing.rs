// SPDX-License-Identifier: Apache-2.0
//! How a thread shares its core. In: how long its yields take. Out: whether to yield, or to sleep.
//!
//! Threads that yield to each other take turns within microseconds. But Linux gives a thread that yields nothing until
//! every other thread of the core has used up its time slice of milliseconds (EEVDF: a yield forfeits the rest of the
//! slice, so the thread is picked last). Beside one thread that does not yield, such as a compiler, a thread that
//! yields after 2 µs runs 200 times a second and gets half a percent of the core; a thread that sleeps for 5 µs instead
//! gets its half. So a thread whose yields take that long is on a contended core, where it must not yield, but sleep
//! until it is woken.

use crate::{cycles, cycles_in_micros};

/// A yield that took longer gave the core to others: the call alone takes a third of a microsecond.
const ALONE_MICROS: u64 = 3;
/// A yield that took longer gave the core to threads that do not yield. NFs yield after 200 µs; a time slice lasts 1.4
/// ms or longer.
const SLICE_MICROS: u64 = 1300;
/// For how long a core counts as contended before the thread tries to yield again. Doubles if that takes long again:
/// yields right after a sleep may return at once.
const FIRST_CONTENDED_MICROS: u64 = 20_000;
const MAX_CONTENDED_MICROS: u64 = 1_280_000;

/// How a yield ended.
#[derive(Clone, Copy, Debug)]
pub struct Yielded {
    /// When the thread got the core back, in [`cycles`].
    pub at: u64,
    /// Others ran meanwhile.
    pub others_ran: bool,
}

/// What a thread knows of the other threads on its core.
#[derive(Clone, Debug, Default)]
pub struct CoreSharing {
    /// The end of the time for which the core counts as contended, and its length.
    until: u64,
    micros: u64,
}

impl CoreSharing {
    /// Whether threads that do not yield share the core: sleep instead of yielding to them.
    #[inline]
    #[must_use]
    pub const fn is_contended(&self, now: u64) -> bool {
        now < self.until
    }

    /// Lets other threads run that want this core, and tells by the clock whether any did.
    #[cold]
    pub fn yield_core(&mut self) -> Yielded {
        let before = cycles();
        std::thread::yield_now();
        let at = cycles();
        let taken = at.wrapping_sub(before);
        self.note(at, taken);
        Yielded { at, others_ran: taken > cycles_in_micros(ALONE_MICROS) }
    }

    /// Notes a yield that took so many cycles.
    fn note(&mut self, at: u64, taken: u64) {
        if taken <= cycles_in_micros(SLICE_MICROS) {
            return;
        }
        let is_still_contended = at < self.until.saturating_add(cycles_in_micros(self.micros));
        let micros = if is_still_contended { self.micros * 2 } else { 0 };
        self.micros = micros.clamp(FIRST_CONTENDED_MICROS, MAX_CONTENDED_MICROS);
        self.until = at.saturating_add(cycles_in_micros(self.micros));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_that_take_a_time_slice_make_a_core_contended_for_longer_and_longer() {
        let (short, long) = (cycles_in_micros(900), cycles_in_micros(4000));
        let mut sharing = CoreSharing::default();
        let mut at = 1 << 50;
        // A yield, `pause` after the core was contended; for how long it is contended then, in milliseconds.
        let mut yields = |taken, pause| {
            at = at.max(sharing.until) + cycles_in_micros(pause);
            sharing.note(at, taken);
            (sharing.until.saturating_sub(at) + 1) / cycles_in_micros(1000)
        };
        assert_eq!(yields(short, 0), 0);
        assert_eq!([long, short, long, long].map(|taken| yields(taken, 100)), [20, 0, 40, 80]);
        assert_eq!((0..20).map(|_| yields(long, 100)).last(), Some(1280));
        assert_eq!(yields(long, 2_000_000), 20, "from the start");
    }
}
