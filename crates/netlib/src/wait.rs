//! What a thread does while there are no packets: spin a little, let others run a little, then sleep until woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm_region::clock;

/// How a thread waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Waiting {
    /// Spin: the lowest latency, for an NF with a core of its own.
    Poll,
    /// Spin for some microseconds, let other threads run for some more, then sleep until woken. Costs nothing when idle.
    #[default]
    Adaptive,
}

/// Ends an NF from within its process: from another thread, or, by way of the flag, from a signal handler. All clones
/// are one. The NF's threads see it within 100 ms; packets that then wait in the NF's rings are the engine's to take back.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the NF to end.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl From<Arc<AtomicBool>> for Stop {
    /// Stops when `flag` becomes true.
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

/// What to do in this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Spin,
    Yield,
    Sleep,
}

/// Counts the time since the last packet.
#[derive(Debug)]
pub(crate) struct Backoff {
    waiting: Waiting,
    idle_since: Option<u64>,
    spin: u64,
    yielding: u64,
    nap: Duration,
}

/// How long a thread sleeps at most before it looks around by itself.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// First and longest sleep of a thread without wake-ups.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

impl Backoff {
    pub(crate) fn new(waiting: Waiting) -> Self {
        Self {
            waiting,
            idle_since: None,
            spin: clock::cycles_in_micros(2),
            yielding: clock::cycles_in_micros(50),
            nap: FIRST_NAP,
        }
    }

    pub(crate) fn busy(&mut self) {
        self.idle_since = None;
        self.nap = FIRST_NAP;
    }

    /// How long to sleep next without wake-ups: doubles each time until packets come.
    pub(crate) fn nap(&mut self) -> Duration {
        let nap = self.nap;
        self.nap = (nap * 2).min(LONGEST_NAP);
        nap
    }

    pub(crate) fn step(&mut self) -> Step {
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
