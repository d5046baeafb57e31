// SPDX-License-Identifier: Apache-2.0
//! The distance of two cores: the time that a cache line takes from one to the other.
//!
//! On a virtual machine it changes, as the host moves virtual processors: two cores that share a cache may be five
//! times as far apart seconds later. That changes the cost of rings between cores, so figures are compared only if they
//! were taken at similar distances.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use netvm_clock as clock;

use crate::error::BenchError;
use crate::machine::Cores;
use crate::machine::pin;
use crate::measure::harness::Condition;
use crate::measure::report::Unit;
use crate::measure::stats::median;

/// Number of samples, whose median is the result, and the duration of each.
const SAMPLES: usize = 5;
const SAMPLE_MICROS: u64 = 2000;
/// Round trips between two readings of the clock.
const ROUND_TRIPS: u32 = 16;
/// Polls without an answer between two readings of the clock.
const POLLS: u32 = 1000;
/// A thread that does not answer within this time counts as preempted.
const TIMEOUT_MICROS: u64 = 20_000;

/// The distance as a [`Condition`] of comparisons.
pub fn condition<'a>(cores: Cores) -> Condition<'a> {
    Condition { case: "core to core", unit: Unit::Cycles, measure: Box::new(move || between(cores)) }
}

/// A word alone in a pair of cache lines, because processors fetch pairs.
#[repr(align(128))]
#[derive(Default)]
struct Word(AtomicU32);

/// Cycles of a one-way transfer.
///
/// # Errors
/// A thread cannot be pinned to a core.
fn between(cores: Cores) -> Result<f64, BenchError> {
    let (word, stop) = (Word::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let responder = scope.spawn(|| answer(cores.engine, &word.0, &stop));
        let initiator = scope.spawn(|| {
            let cycles = pin(cores.nf).map(|()| (0..SAMPLES).map(|_| sample(&word.0)).collect::<Vec<_>>());
            stop.store(true, Ordering::Relaxed);
            cycles
        });
        let (responder, initiator) = (ended(responder.join()), ended(initiator.join()));
        let failed = BenchError::system("cannot measure the distance of two cores");
        responder.and(initiator).map(|samples| median(&samples)).map_err(failed)
    })
}

/// The result of a thread.
fn ended<T>(joined: std::thread::Result<std::io::Result<T>>) -> std::io::Result<T> {
    joined.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
}

/// Answers every odd number with the next even one, until `stop`.
fn answer(core: u32, word: &AtomicU32, stop: &AtomicBool) -> std::io::Result<()> {
    pin(core)?;
    while !stop.load(Ordering::Relaxed) {
        let number = word.load(Ordering::Acquire);
        if !number.is_multiple_of(2) {
            word.store(number.wrapping_add(1), Ordering::Release);
        }
    }
    Ok(())
}

/// Writes odd numbers and waits for the answers. Returns the cycles of a one-way transfer.
fn sample(word: &AtomicU32) -> f64 {
    let [enough, timeout] = [SAMPLE_MICROS, TIMEOUT_MICROS].map(clock::cycles_in_micros);
    let (start, mut trips) = (clock::cycles(), 0u32);
    let passed = || clock::cycles().wrapping_sub(start);
    loop {
        for _ in 0..ROUND_TRIPS {
            // The previous number may not have been answered.
            let odd = word.load(Ordering::Relaxed).wrapping_add(1) | 1;
            word.store(odd, Ordering::Release);
            while (0..POLLS).all(|_| word.load(Ordering::Acquire) == odd) {
                if passed() > timeout {
                    return f64::INFINITY;
                }
            }
        }
        trips += ROUND_TRIPS;
        let cycles = passed();
        if cycles > enough {
            return cycles as f64 / f64::from(trips) / 2.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::machine::allowed_cores;

    #[test]
    fn a_transfer_takes_a_plausible_time() {
        let allowed = allowed_cores();
        let [engine, nf, ..] = allowed.as_slice() else { return println!("SKIP: one core only") };
        let cycles = between(Cores { engine: *engine, nf: *nf }).unwrap();
        assert!(cycles > 1.0, "{cycles}");
        assert!(between(Cores { engine: u32::MAX, nf: *nf }).is_err());
    }
    #[test]
    fn a_missing_answer_times_out() {
        let (word, start) = (AtomicU32::new(0), Instant::now());
        for _ in 0..2 {
            assert_eq!(sample(&word), f64::INFINITY);
        }
        let most = Duration::from_micros(200 * TIMEOUT_MICROS);
        assert!(start.elapsed() < most, "{:?}", start.elapsed());
    }
}
