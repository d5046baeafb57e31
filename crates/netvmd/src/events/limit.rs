// SPDX-License-Identifier: Apache-2.0
//! Limits how often netvmd writes what peers can cause: guests, NFs, clients of the API. In: each occurrence. Out:
//! whether to write it, and how many before it were not written.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many at once, and how often then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// At once, after a quiet time.
    pub(crate) burst: u32,
    /// One in this time.
    pub(crate) interval: Duration,
}

/// A token bucket that counts what it suppresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    tokens: u32,
    /// When the last token came.
    refilled: Instant,
    /// Suppressed since the last one that was allowed.
    suppressed: u64,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, tokens: rate.burst, refilled: now, suppressed: 0 }
    }

    /// Whether one more is allowed now: `Some` with the number of those suppressed before it.
    pub(crate) fn allows(&mut self, now: Instant) -> Option<u64> {
        let allowed = self.takes(now);
        self.suppressed += u64::from(allowed.is_none());
        allowed
    }

    /// The same for one that was counted as suppressed before.
    pub(crate) fn takes(&mut self, now: Instant) -> Option<u64> {
        self.refill(now);
        self.tokens = self.tokens.checked_sub(1)?;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Those suppressed since the last one that was allowed.
    pub(crate) const fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Whether there was nothing for so long that it is like a new one.
    pub(crate) fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.tokens == self.rate.burst && self.suppressed == 0
    }

    fn refill(&mut self, now: Instant) {
        let interval = self.rate.interval;
        let passed = now.saturating_duration_since(self.refilled);
        let more = u32::try_from(passed.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX);
        if more >= self.rate.burst - self.tokens {
            (self.tokens, self.refilled) = (self.rate.burst, now);
        } else {
            self.tokens += more;
            self.refilled += interval * more;
        }
    }
}

/// Log lines of one kind about one peer.
#[derive(Debug)]
pub(crate) struct LogLimit(Mutex<Bucket>);

impl LogLimit {
    /// Lines about a peer that reconnects or resets again and again.
    pub(crate) const LINES: Rate = Rate { burst: 10, interval: Duration::from_secs(10) };

    pub(crate) fn new(rate: Rate) -> Self {
        Self(Mutex::new(Bucket::new(rate, Instant::now())))
    }

    /// Writes a line by `write`, which appends the text that it gets, unless there were too many.
    pub(crate) fn log(&self, write: impl FnOnce(&str)) {
        let allowed = self.0.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now());
        if let Some(suppressed) = allowed {
            write(&more(suppressed));
        }
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(Self::LINES)
    }
}

/// What a line says of those suppressed before it.
pub(crate) fn more(suppressed: u64) -> String {
    match suppressed {
        0 => String::new(),
        n => format!(" ({n} more suppressed)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_an_interval_and_the_rest_is_counted() {
        let (rate, start) = (Rate { burst: 3, interval: Duration::from_secs(10) }, Instant::now());
        let mut bucket = Bucket::new(rate, start);
        let mut at = |seconds| bucket.allows(start + Duration::from_secs(seconds));
        assert_eq!([at(0), at(0), at(0), at(0), at(9)], [Some(0), Some(0), Some(0), None, None]);
        assert_eq!([at(10), at(11), at(25), at(29), at(30)], [Some(2), None, Some(1), None, Some(1)]);
        // After a quiet time, a burst again, and no more than one.
        assert_eq!([at(1000), at(1000), at(1000), at(1000)], [Some(0), Some(0), Some(0), None]);
        assert!(!bucket.is_full(start + Duration::from_secs(1001)));
        bucket.allows(start + Duration::from_secs(1010));
        assert!(bucket.is_full(start + Duration::from_secs(2000)));
    }
}
