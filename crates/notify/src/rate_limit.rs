// SPDX-License-Identifier: Apache-2.0
//! Bounds the time that a thread spends on waking peers.
//!
//! The more threads wait for an eventfd, the longer the kernel takes to signal it. A peer that shares an eventfd can
//! wait for it with every descriptor and epoll instance that it has: with a thousand of each, a signal takes 50 ms. The
//! limiter therefore charges each wake to the peer that shares the eventfd: the NFs of a trust group, or a guest. A
//! wake delays the peer's next ones by twice the time that it took, or by 200 times if it took over 5 ms
//! ([`COSTLY_MICROS`]). So wakes take at most half of the thread's time, and costly ones 0.5 %. A wake of an honest
//! peer takes some µs; [`CREDIT_MICROS`] allows many at once.
//!
//! A wake can look long by the clock because another thread, such as the woken one, used the core meanwhile. So a wake
//! that looks long is not charged. Instead the limiter measures the following wakes by the thread's CPU time, which
//! takes a system call, for as long as it takes that the uncharged time is at most 0.5 % too. CPU time in turn includes
//! the kernel's soft interrupts for the network (hundreds of µs under load, at most a little over 2 ms) and, in a
//! virtual machine, time that the host took from the core. Hence the limit of 5 ms, and hence a costly wake is repeated
//! and only the shorter of the two counts.

use std::os::fd::AsFd;

use netvm_clock as clock;
use rustix::time::{ClockId, clock_gettime};

use crate::signaller::Signaller;

/// Charge for a wake, as a multiple of the time that it took.
const USUAL_FACTOR: u64 = 2;
const COSTLY_FACTOR: u64 = 200;
/// A wake that looks longer than this is not charged; the next ones are measured by CPU time.
const SHORT_MICROS: u64 = 16;
/// More CPU time than any wake of an honest peer takes, whatever else the kernel charges to the thread.
const COSTLY_MICROS: u64 = 5000;
/// How far ahead of its charges a peer may get. A sleeping NF polls by itself after as long.
const CREDIT_MICROS: u64 = 100_000;
/// Highest charge for one wake.
const MAX_CHARGE_MICROS: u64 = 60_000_000;

/// The outcome of a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Sent.
    Made,
    /// Sent, and it took longer than waking an honest peer does.
    Costly,
    /// Not sent. The limit will allow it before the sleeping NF polls by itself.
    Later,
    /// Not sent. The sleeping NF polls by itself before the limit would allow it.
    Omitted,
}

/// When one thread may wake the peers that share some eventfds. Times are in cycles.
#[derive(Clone, Debug)]
pub struct RateLimit {
    micro: u64,
    /// When all charges are paid off.
    paid_at: u64,
    /// Until when wakes are measured by CPU time.
    measured_until: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl RateLimit {
    /// A limit without charges: the first wake is allowed at once.
    #[must_use]
    pub fn new() -> Self {
        Self { micro: clock::cycles_in_micros(1).max(1), paid_at: 0, measured_until: 0 }
    }

    /// Signals an eventfd, if the limit allows it now.
    #[cold]
    pub fn signal(&mut self, signaller: &Signaller, eventfd: &impl AsFd) -> Wake {
        let start = clock::cycles();
        if let Some(refusal) = self.refusal(start) {
            return refusal;
        }
        if start >= self.measured_until {
            signaller.signal(eventfd);
            let end = clock::cycles();
            return self.charge_by_clock(end, end.saturating_sub(start));
        }
        let micro = self.micro;
        let cost = || {
            let before = cpu_nanos();
            signaller.signal(eventfd);
            cpu_nanos().saturating_sub(before) * micro / 1000
        };
        let first = cost();
        let (taken, least) = if self.is_costly(first) {
            let second = cost();
            (first + second, first.min(second))
        } else {
            (first, first)
        };
        self.charge(clock::cycles(), taken, least)
    }

    fn refusal(&self, now: u64) -> Option<Wake> {
        let credit = CREDIT_MICROS * self.micro;
        match self.paid_at.saturating_sub(now) {
            debt if debt <= credit => None,
            debt if debt <= 2 * credit => Some(Wake::Later),
            _ => Some(Wake::Omitted),
        }
    }

    /// Charges a wake that took `time` by the clock.
    fn charge_by_clock(&mut self, now: u64, time: u64) -> Wake {
        if self.is_short(time) {
            return self.charge(now, time, time);
        }
        self.measured_until = self.measured_until.max(now + self.bounded(time.saturating_mul(COSTLY_FACTOR)));
        Wake::Made
    }

    /// Charges wakes that together took `taken`, the cheapest of them `cost`.
    fn charge(&mut self, now: u64, taken: u64, cost: u64) -> Wake {
        let (wake, factor) =
            if self.is_costly(cost) { (Wake::Costly, COSTLY_FACTOR) } else { (Wake::Made, USUAL_FACTOR) };
        let price = self.bounded(taken.saturating_mul(factor));
        self.paid_at = self.paid_at.max(now) + price;
        if !self.is_short(cost) {
            // Measures the next wake too, unless it comes later than the charge once more after the charges are paid
            // off.
            self.measured_until = self.measured_until.max(self.paid_at + price);
        }
        wake
    }

    const fn is_costly(&self, time: u64) -> bool {
        time > COSTLY_MICROS * self.micro
    }

    const fn is_short(&self, time: u64) -> bool {
        time <= SHORT_MICROS * self.micro
    }

    fn bounded(&self, time: u64) -> u64 {
        time.min(MAX_CHARGE_MICROS * self.micro)
    }
}

/// CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate limit on a clock of one cycle per nanosecond, and a time on it.
    fn rate_limit() -> (RateLimit, u64) {
        (RateLimit { micro: 1000, paid_at: 0, measured_until: 0 }, 1_000_000_000_000)
    }

    /// Sends wakes of the given costs in turn, each as soon as the limit allows it, for `nanos`. Returns how many were
    /// sent, and the share of the time that they took, in thousandths.
    fn share(costs: &[u64], nanos: u64) -> (u64, u64) {
        let (mut rate_limit, start) = rate_limit();
        let (mut now, mut made, mut taken) = (start, 0, 0);
        for cost in costs.iter().cycle() {
            while rate_limit.refusal(now).is_some() {
                now += 20_000;
            }
            if now >= start + nanos {
                break;
            }
            let measured = now < rate_limit.measured_until;
            let time = if measured && rate_limit.is_costly(*cost) { 2 * cost } else { *cost };
            now += time;
            if measured {
                rate_limit.charge(now, time, *cost)
            } else {
                rate_limit.charge_by_clock(now, time)
            };
            now += 1000;
            made += 1;
            taken += time;
        }
        (made, taken * 1000 / nanos)
    }

    const MINUTE: u64 = 60_000_000_000;

    #[test]
    fn wakes_take_half_of_the_time_and_costly_ones_half_a_percent() {
        // The first wakes, uncharged or on credit, take little of a minute.
        for cost in [5_000, 100_000, 1_000_000, 5_000_000] {
            let (_, part) = share(&[cost], MINUTE);
            assert!((450..=505).contains(&part), "{cost}: {part}");
        }
        for cost in [5_001_000, 50_000_000] {
            let (_, part) = share(&[cost], 10 * MINUTE);
            assert!((4..=6).contains(&part), "{cost}: {part}");
        }
    }

    #[test]
    fn cheap_wakes_do_not_hide_costly_ones() {
        for cheap in 1..50 {
            let mut costs = vec![1_000; cheap];
            costs.push(50_000_000);
            let (_, part) = share(&costs, 10 * MINUTE);
            assert!(part <= 12, "{cheap}: {part}");
        }
    }

    #[test]
    fn an_honest_group_is_woken_whenever_it_sleeps() {
        let (mut rate_limit, mut now) = rate_limit();
        for _ in 0..1_000_000 {
            // Four threads, each with a packet every 60 µs.
            now += 15_000;
            assert_eq!(rate_limit.refusal(now), None);
            assert_eq!(rate_limit.charge_by_clock(now, 3_000), Wake::Made);
        }
    }

    #[test]
    fn a_preempted_wake_is_not_charged() {
        let (mut rate_limit, now) = rate_limit();
        assert_eq!(rate_limit.charge_by_clock(now, 20_000_000), Wake::Made);
        assert_eq!(rate_limit.refusal(now), None);
        // The following wakes are measured by CPU time.
        assert!(now + 3_999_000_000 < rate_limit.measured_until);
        assert_eq!(rate_limit.charge(now, 3_000, 3_000), Wake::Made);
        assert_eq!(rate_limit.refusal(now), None);
    }

    #[test]
    fn soft_interrupts_are_tolerated() {
        let (mut rate_limit, mut now) = rate_limit();
        for _ in 0..1000 {
            assert_eq!(rate_limit.charge(now, 2_000_000, 2_000_000), Wake::Made);
            assert_eq!(rate_limit.refusal(now), None);
            now += 4_000_000;
        }
    }

    #[test]
    fn time_stolen_from_a_virtual_machine_is_tolerated() {
        let (mut rate_limit, mut now) = rate_limit();
        for _ in 0..1000 {
            // Only one of two wakes in a row looks costly.
            assert_eq!(rate_limit.charge(now, 9_003_000, 3_000), Wake::Made);
            assert_eq!(rate_limit.refusal(now), None);
            now += 20_000_000;
        }
    }

    #[test]
    fn a_wake_that_comes_after_the_nf_polls_is_omitted() {
        let (mut rate_limit, now) = rate_limit();
        rate_limit.measured_until = now + 1;
        assert_eq!(rate_limit.charge(now, 6_000_000, 6_000_000), Wake::Costly);
        assert_eq!(rate_limit.refusal(now), Some(Wake::Omitted));
        assert_eq!(rate_limit.refusal(now + 1_050_000_000), Some(Wake::Later));
        assert_eq!(rate_limit.refusal(now + 1_100_000_000), None);
        assert_eq!(rate_limit.charge(now, 6_000_000, 6_000_000), Wake::Costly);
        assert_eq!(rate_limit.refusal(now), Some(Wake::Omitted));
        // The charge is bounded, however long a wake takes.
        assert_eq!(rate_limit.charge(now, u64::MAX, u64::MAX), Wake::Costly);
        assert_eq!(rate_limit.refusal(now + 63_000_000_000), None);
    }
}
