//! Limits that keep one port from harming the others: addresses, new addresses, moves, and the hold-down of moved
//! addresses.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

use super::mix::BucketPair;
use super::{Learned, TICKS_PER_SECOND};

/// A count that restarts every second. Exact per second; any interval of one second sees at most twice the limit.
#[derive(Debug)]
pub(super) struct Window(AtomicU64);

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

/// Adds one to a count below its limit.
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

/// One port. Aligned to its own cache line, as a flooding port writes it often.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct PortLimits {
    /// Learned addresses.
    pub count: AtomicU32,
    /// Most learned addresses.
    pub limit: AtomicU32,
    /// Most new addresses per second.
    pub quota: AtomicU32,
    pub arrivals: Window,
    pub moves: Window,
}

impl PortLimits {
    pub fn new(limit: u32, quota: u32) -> Self {
        Self {
            count: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            quota: AtomicU32::new(quota),
            arrivals: Window::new(),
            moves: Window::new(),
        }
    }

    /// Why the port may not learn a new address at tick `now`. Reads only, so a flood causes no writes.
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

/// How long a moved address stays at its new port.
const HOLD: u32 = TICKS_PER_SECOND;
/// Remembered moves, a power of two. A later move may overwrite an earlier one.
const MOVES: usize = if cfg!(loom) { 1 } else { 1024 };

/// The latest moves by hash: a tag in the upper half, the tick in the lower.
#[derive(Debug)]
pub(super) struct HoldDown(Box<[AtomicU64]>);

impl HoldDown {
    pub fn new() -> Self {
        Self((0..MOVES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Records a move unless the address moved within the hold time; returns whether it may move.
    pub fn may_move(&self, pair: &BucketPair, now: u32) -> bool {
        let slot = &self.0[pair.primary & (MOVES - 1)];
        let address = pair.tag << 32;
        let word = slot.load(Ordering::Relaxed);
        // Compares in both directions, as the clocks of threads differ.
        let lately = now.wrapping_sub(word as u32).wrapping_add(HOLD) < 2 * HOLD;
        let held = lately && word >> 32 << 32 == address && word != 0;
        let next = address | u64::from(now);
        !held && slot.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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
