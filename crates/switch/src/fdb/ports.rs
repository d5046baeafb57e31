//! What is kept per port: how many addresses, how many it may have, how fast they may come.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

use super::{Learned, TICKS_PER_SECOND};

/// A count that begins anew every second. What one second allows is exact; any span of a second sees twice that at most.
#[derive(Debug)]
pub(super) struct Window(AtomicU64);

impl Window {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether the second of `now` still has room.
    pub fn has_room(&self, now: u32, limit: u32) -> bool {
        let (second, count) = Self::split(self.0.load(Ordering::Relaxed));
        if now / TICKS_PER_SECOND > second { limit > 0 } else { count < limit }
    }

    /// Counts one, unless the second of `now` has had `limit`.
    pub fn admit(&self, now: u32, limit: u32) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (second, count) = Self::split(word);
            // A thread that is behind counts in the second of those ahead.
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

/// Adds one to a count, unless it is at its limit.
pub(super) fn reserve(count: &AtomicU32, limit: u32) -> bool {
    let mut seen = count.load(Ordering::Relaxed);
    while seen < limit {
        match count.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(found) => seen = found,
        }
    }
    false
}

/// One port. Alone on its cache line, as a port that floods writes its own often.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Port {
    /// Learnt addresses.
    pub count: AtomicU32,
    /// How many there may be.
    pub limit: AtomicU32,
    /// How many new ones a second.
    pub quota: AtomicU32,
    pub arrivals: Window,
    pub moves: Window,
}

impl Port {
    pub fn new(limit: u32, quota: u32) -> Self {
        Self {
            count: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            quota: AtomicU32::new(quota),
            arrivals: Window::new(),
            moves: Window::new(),
        }
    }

    /// Why it may bring no new address at the tick `now`, if so. Only read, so that a flood writes nothing.
    #[inline]
    pub fn refusal(&self, now: u32) -> Option<Learned> {
        if self.count.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed) {
            Some(Learned::LimitReached)
        } else if !self.arrivals.has_room(now, self.quota.load(Ordering::Relaxed)) {
            Some(Learned::OverQuota)
        } else {
            None
        }
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

    #[test]
    fn a_limit_is_not_exceeded_by_threads() {
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        reserve(&count, 999);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 999);
    }
}
