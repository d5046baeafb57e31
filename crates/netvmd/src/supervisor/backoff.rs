//! How long to wait before an NF is started again.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);
/// An NF that ran so long was well: the next pause is the first again.
const WELL: Duration = Duration::from_secs(10);

/// Pauses that double.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The pause after an NF that ran for `ran`.
    pub fn after(&mut self, ran: Duration) -> Duration {
        if ran >= WELL {
            self.next = FIRST;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_ten_seconds_and_start_over_after_a_good_run() {
        let mut backoff = Backoff::default();
        let millis: Vec<u128> = (0..9).map(|_| backoff.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.after(WELL), FIRST);
        assert_eq!(backoff.after(Duration::from_secs(9)), 2 * FIRST);
    }
}
