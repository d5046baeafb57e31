// SPDX-License-Identifier: Apache-2.0
//! When a thread leaves its core to others. In: the time without packets, and since the last yield. Out: whether to
//! spin, to yield, or to sleep until woken.
//!
//! While packets trickle in, a thread that polls between them is never idle. If NFs share the core, the next one of the
//! chain then gets half of it whatever it needs, and rings fill at half of what the core can do. So a thread also
//! yields after 200 µs of work. Whether others want the core shows in how long a yield takes; if they do, the thread
//! does not spin between packets. If they do not yield themselves ([`CoreSharing`]), it does not yield either, but
//! sleeps at once.

use std::time::Duration;

use netvm_clock::{self as clock, CoreSharing};

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
    /// When the thread got the core the last time.
    turn_since: u64,
    turn: u64,
    /// Others ran during the last yield.
    is_shared: bool,
    sharing: CoreSharing,
}

/// Longest sleep before a thread checks its rings and the control memory by itself.
pub(super) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// The same while a ring that the thread writes to is too full. The ring's reader opens the chain again; only what it
/// missed waits for so long.
pub(super) const MAX_SLEEP_WHILE_FULL: Duration = Duration::from_millis(1);
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
            turn_since: 0,
            turn: clock::cycles_in_micros(200),
            is_shared: false,
            sharing: CoreSharing::default(),
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
        let is_contended = self.sharing.is_contended(now);
        if idle < self.spin && (is_contended || !self.is_shared) {
            Step::Spin
        } else if idle < self.yielding && !is_contended {
            Step::Yield
        } else {
            Step::Sleep
        }
    }

    /// Yields the core if the thread has worked for its turn, unless others do not yield either: then the kernel sees
    /// to it that all get their part.
    #[inline]
    pub(super) fn end_turn_if_over(&mut self, now: u64) {
        if now.wrapping_sub(self.turn_since) > self.turn
            && self.waiting != Waiting::Poll
            && !self.sharing.is_contended(now)
        {
            self.yield_core();
        }
    }

    pub(super) fn yield_core(&mut self) {
        let yielded = self.sharing.yield_core();
        (self.turn_since, self.is_shared) = (yielded.at, yielded.others_ran);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    /// Has this thread run on the first core that it may use.
    fn take_first_core() {
        let allowed = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
        let mut set = CpuSet::new();
        set.set(first);
        sched_setaffinity(None, &set).unwrap();
    }

    #[test]
    fn a_thread_whose_core_others_want_does_not_spin() {
        take_first_core();
        let mut backoff = Backoff::new(Waiting::Adaptive);
        assert_eq!(backoff.step(), Step::Spin);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                take_first_core();
                while !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    let since = Instant::now();
                    while since.elapsed() < Duration::from_micros(20) {}
                }
            });
            let began = Instant::now();
            while !backoff.is_shared && began.elapsed() < Duration::from_secs(10) {
                backoff.end_turn_if_over(u64::MAX);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(backoff.is_shared, "10 s of yields, and none took as long as the other thread's work");
        // Other programs may want the core, too.
        (backoff.sharing, backoff.idle_since) = (CoreSharing::default(), None);
        assert_eq!(backoff.step(), Step::Yield);
    }

    #[test]
    fn a_thread_beside_one_that_does_not_yield_sleeps_and_gets_its_part_of_the_core() {
        take_first_core();
        let own_time = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let nanos = |time: rustix::time::Timespec| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let done = AtomicBool::new(false);
        let (mut own, mut turns, mut other) = (0, 0, 0);
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                take_first_core();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                nanos(own_time())
            });
            let mut backoff = Backoff::new(Waiting::Adaptive);
            let (began, before) = (Instant::now(), nanos(own_time()));
            while began.elapsed() < Duration::from_secs(2) {
                // Some work, then nothing to do until another thread wakes this one.
                let since = Instant::now();
                while since.elapsed() < Duration::from_micros(20) {}
                backoff.reset();
                loop {
                    match backoff.step() {
                        Step::Spin => std::hint::spin_loop(),
                        Step::Yield => backoff.yield_core(),
                        Step::Sleep => break,
                    }
                }
                std::thread::sleep(Duration::from_micros(5));
                turns += 1;
            }
            own = nanos(own_time()) - before;
            done.store(true, Ordering::Relaxed);
            other = busy.join().unwrap();
        });
        // Some hundreds if it yields.
        assert!(turns > 1000, "{turns} turns in 2 s, {own} ns; the other thread {other} ns");
    }

    #[test]
    fn a_polling_thread_keeps_its_core() {
        let mut backoff = Backoff::new(Waiting::Poll);
        backoff.end_turn_if_over(u64::MAX);
        assert_eq!((backoff.turn_since, backoff.step()), (0, Step::Spin));
    }

    #[test]
    fn a_turn_lasts_for_200_microseconds() {
        let mut backoff = Backoff::new(Waiting::Adaptive);
        backoff.yield_core();
        // Other programs may want the core.
        backoff.sharing = CoreSharing::default();
        let began = backoff.turn_since;
        backoff.end_turn_if_over(began + clock::cycles_in_micros(199));
        assert_eq!(backoff.turn_since, began);
        backoff.end_turn_if_over(began + clock::cycles_in_micros(201));
        assert_ne!(backoff.turn_since, began);
    }
}
