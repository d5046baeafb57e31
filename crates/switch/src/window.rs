// SPDX-License-Identifier: Apache-2.0
//! A count of events that restarts every second, shared by all workers.

use crate::TICKS_PER_SECOND;
use crate::sync::{AtomicU64, Ordering};

/// A count that restarts every second. Exact per second; any interval of one second sees at most twice the limit.
#[derive(Debug)]
pub(crate) struct Window(AtomicU64);

impl Window {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether the second of `now` has room below `limit`.
    pub fn has_room(&self, now: u32, limit: u32) -> bool {
        let (second, count) = Self::split(self.0.load(Ordering::Relaxed));
        if now / TICKS_PER_SECOND > second { limit > 0 } else { count < limit }
    }

    /// Counts one event unless the second of `now` has reached `limit`.
    pub fn admit(&self, now: u32, limit: u32) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (second, count) = Self::split(word);
            // A thread whose clock is behind counts in the later second.
            let (second, count) =
                if now / TICKS_PER_SECOND > second { (now / TICKS_PER_SECOND, 0) } else { (second, count) };
            if count >= limit {
                return false;
            }
            let next = u64::from(second) << 32 | u64::from(count + 1);
            match self.0.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    const fn split(word: u64) -> (u32, u32) {
        ((word >> 32) as u32, word as u32)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_its_limit_each_second() {
        let window = Window::new();
        let admitted = |now, limit| (0..20).filter(|_| window.admit(now, limit)).count();
        assert_eq!(admitted(0, 7), 7);
        assert_eq!(admitted(TICKS_PER_SECOND - 1, 7), 0);
        assert!(!window.has_room(3, 7) && window.has_room(TICKS_PER_SECOND, 7));
        assert_eq!(admitted(TICKS_PER_SECOND, 7), 7);
        assert_eq!(admitted(0, 7), 0, "a thread that is behind");
        assert_eq!(admitted(0, 9), 2, "a limit that was raised");
        assert_eq!(admitted(u32::MAX, 0), 0);
        assert!(!window.has_room(u32::MAX, 0));
    }
}
