// SPDX-License-Identifier: Apache-2.0
//! The pause before a process is restarted.

use std::time::Duration;

/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// After a run of this length, the next pause is the first again.
const RESET_AFTER: Duration = Duration::from_secs(10);

/// Exponential back-off.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST_PAUSE }
    }
}

impl Backoff {
    /// The pause after a run of `ran`.
    pub fn after(&mut self, ran: Duration) -> Duration {
        if ran >= RESET_AFTER {
            self.next = FIRST_PAUSE;
        }
        let pause = self.next;
        self.next = (pause * 2).min(MAX_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_ten_seconds_and_reset_after_a_long_run() {
        let mut backoff = Backoff::default();
        let millis: Vec<u128> = (0..9).map(|_| backoff.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.after(RESET_AFTER), FIRST_PAUSE);
        assert_eq!(backoff.after(Duration::from_secs(9)), 2 * FIRST_PAUSE);
    }
}
