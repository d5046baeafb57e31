//! What waking others may cost the thread that does it.
//!
//! Signalling an eventfd takes longer the more threads wait for it, and a peer can wait for a shared eventfd with every descriptor and every epoll
//! instance that it has: 50 ms with a thousand. So wakes are charged to the peers that share the eventfds: the NFs of a trust group, or a guest. Each is paid for with time before the next: with as much as it took, and
//! with 200 times as much if that was over 5 ms ([`COSTLY_MICROS`]), so that they take half of the thread's time, or 0.5 %.
//!
//! Wakes of honest ones take some µs. [`CREDIT_MICROS`] let them have many at once.
//!
//! The elapsed time of a wake can include other threads that ran on the core, such as the one that was woken. So a wake that seems long is not
//! charged, but for a while those after it are measured by the thread's own CPU time, which is a system call. That while
//! is long enough for what is not charged to take no more than 0.5 % either. The CPU time in turn has in it what the kernel does
//! for the network meanwhile, in its soft interrupts: hundreds of µs under load, 2 ms and more at most. And what others have had
//! of a virtual machine's core. Hence the 5 ms; and one that is costly is made once more, and the shorter of the two counts.

use std::os::fd::AsFd;

use netvm_region::clock;
use rustix::time::{ClockId, clock_gettime};

use crate::signaller::Signaller;

/// How many times as long as it took a wake is paid for, its own time included, and a costly one.
const USUAL: u64 = 2;
const FOR_COSTLY: u64 = 200;
/// What seems to take longer is not charged, and measured the next time.
const SHORT_MICROS: u64 = 16;
/// What waking honest ones does not take of a thread's own time, whatever else is charged to that.
const COSTLY_MICROS: u64 = 5000;
/// They may be so far behind with paying. An NF that sleeps looks by itself after as long.
const CREDIT_MICROS: u64 = 100_000;
/// Longest time that one wake is paid for.
const LONGEST_MICROS: u64 = 60_000_000;

/// What became of a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Made.
    Made,
    /// Made, and it took what waking honest ones does not.
    Costly,
    /// Not made; it can be before an NF looks by itself.
    Later,
    /// Not made: an NF looks by itself before it could be.
    Omitted,
}

/// Decides when one thread may wake peers that share some eventfds. Times are in cycles.
#[derive(Clone, Debug)]
pub struct RateLimit {
    micro: u64,
    /// When everything is paid for.
    paid: u64,
    /// CPU time is measured until then.
    measured: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl RateLimit {
    /// They may be woken at once.
    #[must_use]
    pub fn new() -> Self {
        Self { micro: clock::cycles_in_micros(1).max(1), paid: 0, measured: 0 }
    }

    /// Signals an eventfd, if the limit allows it now.
    #[cold]
    pub fn signal(&mut self, signaller: &Signaller, eventfd: &impl AsFd) -> Wake {
        let start = clock::cycles();
        if let Some(refusal) = self.refusal(start) {
            return refusal;
        }
        if start >= self.measured {
            signaller.signal(eventfd);
            let end = clock::cycles();
            return self.look_at(end, end.saturating_sub(start));
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
        match self.paid.saturating_sub(now) {
            debt if debt <= credit => None,
            debt if debt <= 2 * credit => Some(Wake::Later),
            _ => Some(Wake::Omitted),
        }
    }

    /// A wake has taken so long by the clock.
    fn look_at(&mut self, now: u64, time: u64) -> Wake {
        if self.is_short(time) {
            return self.charge(now, time, time);
        }
        self.measured = self.measured.max(now + self.bounded(time.saturating_mul(FOR_COSTLY)));
        Wake::Made
    }

    /// Wakes have taken so much of the thread's time, of which one takes `cost` at least.
    fn charge(&mut self, now: u64, taken: u64, cost: u64) -> Wake {
        let (wake, times) =
            if self.is_costly(cost) { (Wake::Costly, FOR_COSTLY) } else { (Wake::Made, USUAL) };
        let price = self.bounded(taken.saturating_mul(times));
        self.paid = self.paid.max(now) + price;
        if !self.is_short(cost) {
            // The next is measured, too, if it comes before as much time again has passed.
            self.measured = self.measured.max(self.paid + price);
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
        time.min(LONGEST_MICROS * self.micro)
    }
}

/// CPU time that the calling thread has had, in nanoseconds.
#[must_use]
pub fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate_limit on a clock of a cycle in a nanosecond, at some time.
    fn rate_limit() -> (RateLimit, u64) {
        (RateLimit { micro: 1000, paid: 0, measured: 0 }, 1_000_000_000_000)
    }

    /// Has wakes made that take so many nanoseconds, in turns, whenever they may be, for so long; returns how many were made,
    /// and the part of the time that they took, in thousandths.
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
            let measured = now < rate_limit.measured;
            let time = if measured && rate_limit.is_costly(*cost) { 2 * cost } else { *cost };
            now += time;
            if measured {
                rate_limit.charge(now, time, *cost)
            } else {
                rate_limit.look_at(now, time)
            };
            now += 1000;
            made += 1;
            taken += time;
        }
        (made, taken * 1000 / nanos)
    }

    const MINUTE: u64 = 60_000_000_000;

    #[test]
    fn wakes_take_half_of_the_time_and_costly_ones_hardly_any() {
        // What the first take that are not charged, or on credit, is little of a minute.
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
    fn costly_wakes_are_not_hidden_among_cheap_ones() {
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
            // Four threads that each have a packet 60 µs after they had one before.
            now += 15_000;
            assert_eq!(rate_limit.refusal(now), None);
            assert_eq!(rate_limit.look_at(now, 3_000), Wake::Made);
        }
    }

    #[test]
    fn who_loses_its_core_is_not_charged_for_it() {
        let (mut rate_limit, now) = rate_limit();
        assert_eq!(rate_limit.look_at(now, 20_000_000), Wake::Made);
        assert_eq!(rate_limit.refusal(now), None);
        // But the next are measured: it has been lost again.
        assert!(now + 3_999_000_000 < rate_limit.measured);
        assert_eq!(rate_limit.charge(now, 3_000, 3_000), Wake::Made);
        assert_eq!(rate_limit.refusal(now), None);
    }

    #[test]
    fn soft_interrupts_are_borne() {
        let (mut rate_limit, mut now) = rate_limit();
        for _ in 0..1000 {
            assert_eq!(rate_limit.charge(now, 2_000_000, 2_000_000), Wake::Made);
            assert_eq!(rate_limit.refusal(now), None);
            now += 4_000_000;
        }
    }

    #[test]
    fn a_core_that_is_lost_below_a_virtual_machine_is_borne() {
        let (mut rate_limit, mut now) = rate_limit();
        for _ in 0..1000 {
            // Of two in a row one only.
            assert_eq!(rate_limit.charge(now, 9_003_000, 3_000), Wake::Made);
            assert_eq!(rate_limit.refusal(now), None);
            now += 20_000_000;
        }
    }

    #[test]
    fn a_wake_that_an_nf_does_not_wait_for_is_omitted() {
        let (mut rate_limit, now) = rate_limit();
        rate_limit.measured = now + 1;
        assert_eq!(rate_limit.charge(now, 6_000_000, 6_000_000), Wake::Costly);
        assert_eq!(rate_limit.refusal(now), Some(Wake::Omitted));
        assert_eq!(rate_limit.refusal(now + 1_050_000_000), Some(Wake::Later));
        assert_eq!(rate_limit.refusal(now + 1_100_000_000), None);
        assert_eq!(rate_limit.charge(now, 6_000_000, 6_000_000), Wake::Costly);
        assert_eq!(rate_limit.refusal(now), Some(Wake::Omitted));
        // However long one takes.
        assert_eq!(rate_limit.charge(now, u64::MAX, u64::MAX), Wake::Costly);
        assert_eq!(rate_limit.refusal(now + 63_000_000_000), None);
    }
}
