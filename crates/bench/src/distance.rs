//! How far two cores are from each other: the time that a cache line takes from one to the other.
//!
//! On a virtual machine that changes while it runs, as the host moves virtual processors: on one AMD EPYC from 80 cycles,
//! where two cores share a cache, to 430, and back within seconds. What is handed from core to core many million times a
//! second is then another thing altogether, so that figures are compared only where this was alike.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use netvm_region::clock;

use crate::cli::Cores;
use crate::error::BenchError;
use crate::harness::Condition;
use crate::machine::pin;
use crate::report::Unit;
use crate::stats::median;

/// Times that are taken, of which the middle one counts, and how long each takes.
const LOOKS: usize = 5;
const LOOK_MICROS: u64 = 2000;
/// Ways there and back between two looks at the clock.
const TRIPS: u32 = 16;
/// Looks at a number that has no answer yet between two at the clock.
const GLANCES: u32 = 1000;
/// After so long the other thread counts as one that has no core.
const PATIENCE_MICROS: u64 = 20_000;

/// That as what must be alike for figures that are compared.
pub fn condition<'a>(cores: Cores) -> Condition<'a> {
    Condition { case: "core to core", unit: Unit::Cycles, measure: Box::new(move || between(cores)) }
}

/// A word with its cache lines to itself; processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Word(AtomicU32);

/// Cycles that a line takes one way.
///
/// # Errors
/// When a core cannot be had.
fn between(cores: Cores) -> Result<f64, BenchError> {
    let (word, stop) = (Word::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let there = scope.spawn(|| answer(cores.engine, &word.0, &stop));
        let back = scope.spawn(|| {
            let cycles = pin(cores.nf).map(|()| (0..LOOKS).map(|_| look(&word.0)).collect::<Vec<_>>());
            stop.store(true, Ordering::Relaxed);
            cycles
        });
        let (there, back) = (ended(there.join()), ended(back.join()));
        let failed = BenchError::system("measuring how far two cores are from each other");
        there.and(back).map(|looks| median(&looks)).map_err(failed)
    })
}

/// What a thread has returned; none panics.
fn ended<T>(joined: std::thread::Result<std::io::Result<T>>) -> std::io::Result<T> {
    joined.unwrap_or_else(|_| Err(std::io::Error::other("a thread ended")))
}

/// Makes every odd number even, until it is told to stop.
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

/// Makes numbers odd, and waits for each to be made even.
fn look(word: &AtomicU32) -> f64 {
    let [enough, patience] = [LOOK_MICROS, PATIENCE_MICROS].map(clock::cycles_in_micros);
    let (start, mut trips) = (clock::cycles(), 0u32);
    let passed = || clock::cycles().wrapping_sub(start);
    loop {
        for _ in 0..TRIPS {
            // The number before may have had no answer.
            let odd = word.load(Ordering::Relaxed).wrapping_add(1) | 1;
            word.store(odd, Ordering::Release);
            while (0..GLANCES).all(|_| word.load(Ordering::Acquire) == odd) {
                if passed() > patience {
                    return f64::INFINITY;
                }
            }
        }
        trips += TRIPS;
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
    fn a_line_takes_some_time_and_not_for_ever() {
        let allowed = allowed_cores();
        let [engine, nf, ..] = allowed.as_slice() else { return println!("SKIP: one core only") };
        let cycles = between(Cores { engine: *engine, nf: *nf }).unwrap();
        assert!(cycles > 1.0, "{cycles}");
        assert!(between(Cores { engine: u32::MAX, nf: *nf }).is_err());
    }
    #[test]
    fn who_does_not_answer_is_not_waited_for_for_long() {
        let (word, start) = (AtomicU32::new(0), Instant::now());
        for _ in 0..2 {
            assert_eq!(look(&word), f64::INFINITY);
        }
        let most = Duration::from_micros(200 * PATIENCE_MICROS);
        assert!(start.elapsed() < most, "{:?}", start.elapsed());
    }
}
