//! Idle back-off. In: the time without packets. Out: whether to spin, to yield, or to sleep until woken.

use std::time::Duration;

use netvm_region::clock;

use crate::shared::Waiting;

/// What to do in one turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Spin,
    Yield,
    Sleep,
}

/// Tracks the time since the last packet.
#[derive(Debug)]
pub(super) struct Backoff {
    waiting: Waiting,
    idle_since: Option<u64>,
    spin: u64,
    yielding: u64,
    sleep: Duration,
}

/// Longest sleep before a thread checks its rings and the control memory by itself.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// The same while a ring that the thread writes to is too full. The ring's reader opens the chain again; only what it missed
/// waits for so long.
pub(super) const PRESSED_SLEEP: Duration = Duration::from_millis(1);
/// Shortest and longest sleep of a thread without wake-ups.
const MIN_SLEEP: Duration = Duration::from_micros(20);
const MAX_UNWOKEN_SLEEP: Duration = Duration::from_millis(1);

impl Backoff {
    pub(super) fn new(waiting: Waiting) -> Self {
        Self {
            waiting,
            idle_since: None,
            spin: clock::cycles_in_micros(2),
            yielding: clock::cycles_in_micros(50),
            sleep: MIN_SLEEP,
        }
    }

    pub(super) fn reset(&mut self) {
        self.idle_since = None;
        self.sleep = MIN_SLEEP;
    }

    /// Duration of the next sleep without wake-ups; doubles each time until packets come.
    pub(super) fn next_sleep(&mut self) -> Duration {
        let sleep = self.sleep;
        self.sleep = (sleep * 2).min(MAX_UNWOKEN_SLEEP);
        sleep
    }

    pub(super) fn step(&mut self) -> Step {
        if self.waiting == Waiting::Poll {
            return Step::Spin;
        }
        let now = clock::cycles();
        let idle = now.wrapping_sub(*self.idle_since.get_or_insert(now));
        if idle < self.spin {
            Step::Spin
        } else if idle < self.yielding {
            Step::Yield
        } else {
            Step::Sleep
        }
    }
}
