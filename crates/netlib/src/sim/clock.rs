// SPDX-License-Identifier: Apache-2.0
//! The clock that NFs read: the processor's, which [`Simulator::advance`](super::Simulator::advance) moves forward for
//! the NFs of its thread. So a test need not wait for time-outs.

use std::cell::Cell;
use std::time::Duration;

pub use netvm_clock::{cycles_in_micros, cycles_per_second, duration_of};

thread_local! {
    /// Cycles that simulators of this thread have added.
    static ADDED: Cell<u64> = const { Cell::new(0) };
}

/// Cycles of the processor's time-stamp counter, and those that a simulator has added.
#[inline]
pub fn cycles() -> u64 {
    netvm_clock::cycles().wrapping_add(ADDED.get())
}

/// Moves the clock of this thread's NFs forward, without a call of them.
pub fn advance(time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ADDED.set(ADDED.get().wrapping_add(cycles_in_micros(micros)));
}
