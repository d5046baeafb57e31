// SPDX-License-Identifier: Apache-2.0
//! The time that filters of captures and traces may take. In: what the last packets cost. Out: whether a filter may
//! run.
//!
//! Any member of `capture_group` may send a filter of thousands of instructions. The filters of all captures together
//! take at most [`TIME_SHARE`] of a worker's time, each of them the same part of it, and so do those of all traces;
//! beyond it, packets pass unfiltered.

use netvm_clock as clock;

/// The share of a worker's time that the filters of captures, or of traces, have: one part of so many.
const TIME_SHARE: u64 = 4;
/// Most cycles that the filters can have saved up: some 0.2 ms, which is how long they can delay other packets at once.
const MAX_SAVED_CYCLES: i64 = 1 << 19;
/// Most cycles that an instruction takes.
const MAX_INSTRUCTION_CYCLES: usize = 32;
/// Most cycles that the copy of a whole packet takes.
const MAX_COPY_CYCLES: usize = 1 << 17;
/// Instructions to run between two looks at the clock.
const INSTRUCTIONS_PER_CHECK: usize = 4096;

/// One filter's budget on one worker.
#[derive(Debug)]
pub(super) struct Budget {
    /// Cycles that the filter may take; negative: it has taken more.
    left: i64,
    /// When it was filled up last.
    filled: u64,
}

impl Budget {
    /// A full one, from `now` on, in cycles.
    pub(super) const fn new(now: u64) -> Self {
        Self { left: MAX_SAVED_CYCLES, filled: now }
    }

    /// Adds the share of the time that has passed, if so many filters share it.
    #[inline]
    pub(super) fn fill(&mut self, now: u64, filters: usize) {
        let parts = TIME_SHARE * filters.max(1) as u64;
        let earned = now.saturating_sub(self.filled) / parts;
        self.filled = now;
        let most = MAX_SAVED_CYCLES / filters.max(1) as i64;
        self.left = self.left.saturating_add(i64::try_from(earned).unwrap_or(MAX_SAVED_CYCLES)).min(most);
    }

    /// Whether the filter may run.
    #[inline]
    pub(super) const fn has_some(&self) -> bool {
        self.left > 0
    }

    /// Takes what the filter has cost since `from`. At most what its work can cost: the kernel may have run another
    /// thread.
    #[inline]
    pub(super) fn spend(&mut self, from: u64, work: Work) {
        let most = work.instructions * MAX_INSTRUCTION_CYCLES + work.copies * MAX_COPY_CYCLES;
        let taken = clock::cycles().saturating_sub(from).min(most as u64);
        self.left = self.left.saturating_sub(i64::try_from(taken).unwrap_or(MAX_SAVED_CYCLES));
    }
}

/// What a filter has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Most instructions that it can have run.
    pub(super) instructions: usize,
    /// Whole packets that it has copied.
    pub(super) copies: usize,
}

/// Packets that a filter of so many instructions reads before the next look at the clock.
pub(super) fn packets_at_once(instructions: usize) -> usize {
    (INSTRUCTIONS_PER_CHECK / instructions.max(1)).clamp(1, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_gets_its_share_of_the_time_and_no_more() {
        let mut budget = Budget::new(0);
        budget.left = 0;
        assert!(!budget.has_some());
        budget.fill(1000, 1);
        assert_eq!(budget.left, 250);
        // With another filter, it has half of that.
        budget.fill(2000, 2);
        assert_eq!(budget.left, 375);
        budget.fill(u64::MAX, 2);
        assert_eq!(budget.left, MAX_SAVED_CYCLES / 2);
        // A thread that did not run has not spent its time.
        budget.spend(0, Work { instructions: 10, copies: 0 });
        assert_eq!(budget.left, MAX_SAVED_CYCLES / 2 - 10 * MAX_INSTRUCTION_CYCLES as i64);
    }

    #[test]
    fn long_filters_look_at_the_clock_more_often() {
        assert_eq!([1, 64, 128, 4096].map(packets_at_once), [64, 64, 32, 1]);
    }
}
