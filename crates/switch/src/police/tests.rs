// SPDX-License-Identifier: Apache-2.0
use std::sync::atomic::{AtomicU64 as Plain, Ordering};

use proptest::prelude::*;

use super::*;

const NANOS: u64 = 1_000_000_000;

/// An exact token bucket, which counts in 1/(clock rate) of a token.
struct Exact {
    rate: i128,
    hz: i128,
    full: i128,
    level: i128,
    last: u64,
}

impl Exact {
    fn new(rate: u64, burst: u64, hz: u64) -> Self {
        let full = i128::from(burst) * i128::from(hz);
        Self { rate: rate.into(), hz: hz.into(), full, level: full, last: 0 }
    }

    fn advance(&mut self, now: u64) {
        self.level = self.full.min(self.level + self.rate * i128::from(now - self.last));
        self.last = now;
    }

    /// Whether the bucket holds `units`, and whether it still does with `steps` to spare.
    fn holds(&self, units: u64, steps: f64, step: f64) -> (bool, bool) {
        let want = i128::from(units) * self.hz;
        let spare = (steps * step * self.rate as f64 * self.hz as f64).ceil() as i128 + 1;
        (self.level + self.hz >= want, self.level >= want + spare)
    }
}

fn rates() -> impl Strategy<Value = u64> {
    prop_oneof![1..20u64, 1..1_000_000u64, 1..=400_000_000_000u64, Just(Policer::MAX_RATE)]
}

fn clocks() -> impl Strategy<Value = u64> {
    prop_oneof![Just(10), Just(NANOS), 1_000_000_000..4_000_000_000u64, Just(1), Just(Policer::MAX_CLOCK)]
}

proptest! {
    /// Never admits a unit more than the exact bucket, and less only by rounding.
    #[test]
    fn admits_what_an_exact_bucket_admits(
        rate in rates(),
        hz in clocks(),
        burst in 1..10_000_000u64,
        steps in prop::collection::vec((any::<u32>(), 0..40u32, 0..20_000u64), 1..200),
    ) {
        let Ok(policer) = Policer::new(rate, burst, hz) else { return Ok(()) };
        let mut exact = Exact::new(rate, burst, hz);
        let mut now = 0;
        // Steps that rounding may have lost since the bucket was full; a step is a fraction of a second.
        let mut lost = 1.0;
        let step = 1.0 / ((hz << policer.shift) as f64);
        for (wait, shrink, units) in steps {
            now += u64::from(wait >> shrink.min(31));
            // Steps wrap after 48 days; a bucket idle for that long may look partly empty.
            if now / hz > 40 * 86_400 {
                break;
            }
            exact.advance(now);
            if exact.level == exact.full {
                lost = 1.0;
            }
            let (may, must) = exact.holds(units, lost + 1.0 + units as f64 / f64::from(1 << FRACTION), step);
            let admitted = policer.admit(now, units);
            prop_assert!(!admitted || may, "{units} units at {now}: the exact bucket does not hold them");
            prop_assert!(admitted || !must, "{units} units at {now}: the exact bucket holds them");
            if admitted {
                exact.level -= i128::from(units) * exact.hz;
                lost += 2.0 + units as f64 / f64::from(1 << FRACTION);
            }
        }
    }

    /// A run admits what its packets admit one by one, apart from rounding. A run rounds once, so it never admits less.
    #[test]
    fn a_run_admits_its_longest_conforming_prefix(
        rate in rates(),
        burst in 1..100_000u64,
        packets in 0..100u64,
        lengths in prop::collection::vec(0..2000u32, 0..40),
        used in 0..100_000u64,
    ) {
        let Ok(run) = Policer::new(rate, burst, NANOS) else { return Ok(()) };
        let Ok(single) = Policer::new(rate, burst, NANOS) else { return Ok(()) };
        prop_assert_eq!(run.admit(7, used), used <= burst);
        single.admit(7, used);
        let left = if used <= burst { burst - used } else { burst };
        let front = run.admit_run(7, &lengths);
        let fits = |left: u64| lengths
            .iter()
            .scan(0, |sum, length| { *sum += u64::from(*length); Some(*sum) })
            .take_while(|sum| *sum <= left)
            .count();
        prop_assert!(front <= fits(left) && front >= fits(left.saturating_sub(2)), "{front} of {lengths:?}");
        let one_by_one = lengths.iter().take_while(|length| single.admit(7, u64::from(**length))).count();
        prop_assert!(one_by_one <= front);

        // Half a unit has several steps, so two roundings do not matter.
        let count = Policer::new(rate.min(Policer::MAX_RATE / 8), burst, NANOS).unwrap();
        prop_assert_eq!(count.admit_count(7, packets as usize) as u64, packets.min(burst));
        prop_assert_eq!(count.admit_count(7, packets as usize) as u64, packets.min(burst - packets.min(burst)));
    }
}

#[test]
fn extreme_rates_are_met() {
    for (rate, burst, hz) in [
        (1, 1, NANOS),
        (1, 1000, 2_300_000_000),
        (400_000_000_000, 400_000_000, 2_300_000_000),
        (400_000_000_000, 12_000, NANOS),
        (Policer::MAX_RATE, 1 << 30, Policer::MAX_CLOCK),
        (10, 10, 1),
    ] {
        let policer = Policer::new(rate, burst, hz).unwrap();
        // Starts where the steps have wrapped before.
        let start = (1 << 58) + 12_345;
        assert!(policer.admit(start, burst), "a full bucket of {burst}");
        assert!(!policer.admit(start, 1), "an empty one at {rate}");
        let seconds = 10;
        let mut admitted = 0;
        for tenth in 1..=seconds * 10 {
            let now = start + hz * tenth / 10;
            while policer.admit(now, (burst / 16).max(1)) {
                admitted += (burst / 16).max(1);
            }
        }
        let most = rate * seconds;
        assert!(admitted <= most + burst, "{admitted} at {rate}");
        // The loop empties the bucket every tenth of a second, so it refills by at most a burst each time. Rounding may
        // leave one of 16 parts in it.
        let least = most.min(burst * 10 * seconds);
        assert!(admitted + burst >= least - least / 8, "{admitted} of {least} at {rate}");
    }
}

#[test]
fn a_long_idle_bucket_is_full_and_a_late_worker_gets_nothing() {
    let policer = Policer::new(1000, 100, NANOS).unwrap();
    let now = 50 * NANOS;
    assert!(policer.admit(now, 100));
    assert!(!policer.admit(now - NANOS / 2, 1), "another worker has seen a later time");
    assert!(!policer.admit(now, 1));
    for days in [1, 100, 1000] {
        let now = now + days * 86_400 * NANOS;
        assert!(policer.admit(now, 100) && !policer.admit(now, 1), "after {days} days");
    }
}

#[test]
fn a_refusal_by_one_policer_costs_no_tokens_of_the_other() {
    let meter = Meter::new(Some((1000, 10)), Some((1_000_000, 8 * 1500 * 4)), NANOS).unwrap();
    assert_eq!(meter.admit_run(0, &[1500; 8]), 4, "bits for four");
    assert_eq!(meter.admit_run(0, &[64; 8]), 0, "no bits left");
    assert_eq!(meter.admit_run(NANOS, &[64; 32]), 10, "packets for ten");
    // Ten frames took 10 × 512 of the 48,000 bits: the rest is enough for 83 packets more.
    assert_eq!(
        meter.admit_run(NANOS + NANOS / 100, &[500; 32]),
        10,
        "ten packets were refilled, and the bits suffice"
    );
    assert_eq!(Meter::new(None, None, NANOS).unwrap().admit_run(0, &[1500; 32]), 32);
    let packets = Meter::new(Some((1, 1)), None, NANOS).unwrap();
    assert!(packets.admit(0, 9000) && !packets.admit(0, 64) && packets.admit(NANOS, 64));
}

#[test]
fn invalid_options_are_refused() {
    let error = |rate, burst, hz| Policer::new(rate, burst, hz).unwrap_err();
    assert_eq!(error(0, 1, NANOS), PolicerError::Rate(0));
    assert_eq!(error(Policer::MAX_RATE + 1, 1, NANOS), PolicerError::Rate(Policer::MAX_RATE + 1));
    assert_eq!(error(1, 0, NANOS), PolicerError::NoBurst);
    assert_eq!(error(1, 1, 0), PolicerError::Clock(0));
    assert_eq!(error(1, 1, u64::MAX), PolicerError::Clock(u64::MAX));
    assert_eq!(error(1, 10_000, NANOS), PolicerError::BurstTooLong { rate: 1, burst: 10_000 });
    assert_eq!(error(1, u64::MAX, NANOS), PolicerError::BurstTooLong { rate: 1, burst: u64::MAX });
}

/// Threads that share a bucket are admitted at most rate × time + burst, and nearly that. A thread may call with an
/// earlier time than another thread used before.
#[test]
fn threads_share_one_bucket() {
    const RATE: u64 = 50_000_000;
    const BURST: u64 = 100_000;
    let policer = Policer::new(RATE, BURST, NANOS).unwrap();
    let (clock, total) = (Plain::new(0), Plain::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (policer, clock, total) = (&policer, &clock, &total);
            scope.spawn(move || {
                let lengths = [100 + worker; 32];
                for _ in 0..200_000 {
                    let count = policer.admit_run(clock.fetch_add(100, Ordering::Relaxed), &lengths);
                    total.fetch_add(count as u64 * u64::from(lengths[0]), Ordering::Relaxed);
                }
            });
        }
    });
    let most = (u128::from(RATE) * u128::from(clock.into_inner()) / u128::from(NANOS)) as u64 + BURST + 1;
    let total = total.into_inner();
    assert!(total <= most, "{total} of at most {most}");
    assert!(total > most - BURST - most / 50, "{total} of {most}");
}
