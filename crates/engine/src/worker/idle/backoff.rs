// SPDX-License-Identifier: Apache-2.0
//! Idle back-off, after turns without packets: the worker spins for some microseconds, then sleeps for longer and
//! longer.
//!
//! A sleep and wake-up costs tens of microseconds, and more in a VM whose core halts. So a worker spins while packets
//! are likely to come: packets that NFs have, and packets of ports or other workers if the last ones came at a short
//! interval. Otherwise it soon sleeps, also because an NF that has just got packets may be waiting for its core. While
//! NFs have packets, it yields its core between polls, so that NFs that share the core run at once. A chain on the
//! worker's core takes its packets while the core's cache still holds them. If the kernel receives for the worker's
//! ports on the worker's core, in a thread (threaded NAPI, `ksoftirqd`) or for a sender on that core, the worker sleeps
//! at once: while it polls, nothing can arrive. If threads that do not yield share the core ([`CoreSharing`]), it
//! sleeps until NFs wake it, instead of yielding.
//!
//! A sleep ends early when a port with a descriptor has packets, when the manager sends a command, when another worker
//! hands packets over, and when an NF returns packets. The sleep is limited if a port or an NF in a VM can only be
//! polled.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use netvm_clock::{self as clock, CoreSharing};
use netvm_model::Idle;
use netvm_notify::EpollWaiter;
use rustix::thread::sched_getcpu;

use super::port_events::{Limits, PortEvents};
use super::wake_nfs::wake_ahead;
use crate::ids::PortId;
use crate::snapshot::Snapshot;
use crate::worker::state::Datapath;
use crate::worker::state::nf_links::Awaited;

/// Time for which a worker spins before it sleeps.
const SPIN_MICROS: u64 = 50;
/// The same if no NF has packets, and the last packets were received at a longer interval than [`SPIN_MICROS`].
const SHORT_SPIN_MICROS: u64 = 10;
/// The same if the kernel receives on the worker's core.
const SHARED_SPIN_MICROS: u64 = 2;
/// The same if an NF was woken, which may first have to wake the next NF.
const SPIN_FOR_WOKEN_MICROS: u64 = 200;
/// Time for which a worker spins before it yields its core to NFs that have packets.
const SPIN_BEFORE_YIELDS_MICROS: u64 = 2;
/// First and longest sleep while a port or an NF can only be polled. Each is a quarter longer than the one before, so
/// that a guest that answers after some time waits for a quarter of this time at most until its answer is seen.
const MIN_SLEEP: Duration = Duration::from_micros(20);
const MAX_POLLED_SLEEP: Duration = Duration::from_micros(400);
/// Longest sleep while everything can wake the worker.
const MAX_SLEEP: Duration = Duration::from_millis(20);

pub(crate) struct Backoff {
    mode: Idle,
    since: Option<u64>,
    /// The port that received the last packets.
    last: Option<PortId>,
    /// The kernel receives for that port on this worker's core.
    shares_with_kernel: bool,
    /// The time of the last received packets, and the interval to the ones before.
    arrived: u64,
    interval: u64,
    /// Others ran during the last yield.
    is_shared: bool,
    sharing: CoreSharing,
    /// The next sleep while something can only be polled.
    polled_sleep: Duration,
    /// The eventfd by which the manager and other workers wake the worker.
    wake: Arc<OwnedFd>,
    /// The epoll instance by which NFs wake the worker.
    waiter: EpollWaiter,
    /// What ports wake it by.
    pub(crate) ports: PortEvents,
}

impl Backoff {
    pub(crate) fn new(mode: Idle, wake: Arc<OwnedFd>, waiter: EpollWaiter, ports: PortEvents) -> Self {
        let (arrived, interval) = (0, u64::MAX);
        Self {
            mode,
            since: None,
            last: None,
            shares_with_kernel: false,
            arrived,
            interval,
            is_shared: false,
            sharing: CoreSharing::default(),
            polled_sleep: MIN_SLEEP,
            wake,
            waiter,
            ports,
        }
    }

    /// Records that packets were received in the turn that began at `now`, the last ones from this port.
    #[inline(always)]
    pub(crate) const fn arrived(&mut self, port: PortId, now: u64) {
        self.last = Some(port);
        self.handed_over(now);
    }

    /// Records that another worker handed packets over before the turn that began at `now`.
    #[inline(always)]
    pub(crate) const fn handed_over(&mut self, now: u64) {
        if self.arrived != now {
            self.interval = now.wrapping_sub(self.arrived);
            self.arrived = now;
        }
    }

    pub(crate) const fn reset(&mut self) {
        self.since = None;
        self.polled_sleep = MIN_SLEEP;
    }

    fn spin_cycles(&self, awaited: Awaited, now: u64) -> u64 {
        let usual = clock::cycles_in_micros(SPIN_MICROS);
        match awaited {
            _ if self.sharing.is_contended(now) => clock::cycles_in_micros(SPIN_BEFORE_YIELDS_MICROS),
            Awaited::OfWoken => clock::cycles_in_micros(SPIN_FOR_WOKEN_MICROS),
            Awaited::Nothing | Awaited::WokenAhead if self.shares_with_kernel => {
                clock::cycles_in_micros(SHARED_SPIN_MICROS)
            }
            Awaited::Nothing | Awaited::WokenAhead if self.interval >= usual => {
                clock::cycles_in_micros(SHORT_SPIN_MICROS)
            }
            Awaited::Nothing | Awaited::WokenAhead | Awaited::OfAwake => usual,
        }
    }

    /// Whether to yield the core after `idle` cycles without packets: NFs that share it could not return theirs
    /// otherwise.
    fn yields(&self, awaited: Awaited, idle: u64, now: u64) -> bool {
        self.mode != Idle::Poll
            && !self.sharing.is_contended(now)
            && matches!(awaited, Awaited::OfAwake | Awaited::OfWoken)
            && (self.is_shared || idle >= clock::cycles_in_micros(SPIN_BEFORE_YIELDS_MICROS))
    }

    /// Spins, yields or sleeps until there may be work; returns whether it slept.
    pub(crate) fn wait(&mut self, dp: &mut Datapath, snapshot: &Snapshot, now: u64) -> bool {
        let since = match self.since {
            Some(since) => since,
            None => {
                let kernel = self.last.and_then(|port| dp.ports.get(port)?.kernel_core());
                self.shares_with_kernel = kernel.is_some_and(|core| core as usize == sched_getcpu());
                self.since = Some(now);
                now
            }
        };
        let (awaited, idle) = (dp.nfs.awaited, now.wrapping_sub(since));
        if self.mode == Idle::Poll || idle < self.spin_cycles(awaited, now) {
            if self.yields(awaited, idle, now) {
                self.is_shared = self.sharing.yield_core().others_ran;
            } else if self.mode != Idle::Poll {
                // Up to 140 cycles, in which a packet would wait.
                core::hint::spin_loop();
            }
            return false;
        }
        dp.nfs.awaited = Awaited::Nothing;
        let mut longest = MAX_SLEEP;
        let mut empty = true;
        dp.nfs.each(|link| {
            empty &= link.from_nf.prepare_wait();
            if link.is_wake_pending() {
                longest = MIN_SLEEP;
            } else if link.is_poll_only() {
                longest = longest.min(self.polled_sleep);
            }
        });
        empty &= dp.ports.handoff.prepare_wait();
        if empty {
            self.sleep(dp, longest);
        }
        dp.ports.handoff.end_wait();
        dp.nfs.each(|link| link.from_nf.end_wait());
        if empty {
            for port in self.ports.readable() {
                wake_ahead(dp, snapshot, *port);
            }
        }
        empty
    }

    /// Sleeps, at most for `longest`.
    fn sleep(&mut self, dp: &mut Datapath, longest: Duration) {
        let limits = Limits { longest, polled: self.polled_sleep };
        self.polled_sleep = (self.polled_sleep * 5 / 4).min(MAX_POLLED_SLEEP);
        let others = [self.wake.as_fd(), self.waiter.as_fd()];
        let [by_eventfd, by_nf] = self.ports.sleep(&mut dp.ports, others, limits);
        if by_eventfd {
            // Resets the count.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if by_nf {
            self.waiter.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_notify::ReadySet;

    use super::*;

    fn backoff(mode: Idle) -> Backoff {
        let wake = Arc::new(netvm_notify::new_eventfd().unwrap());
        Backoff::new(mode, wake, EpollWaiter::new().unwrap(), PortEvents::new(ReadySet::new().unwrap()))
    }

    #[test]
    fn a_worker_yields_its_core_only_while_nfs_have_packets() {
        let idle = clock::cycles_in_micros(SPIN_BEFORE_YIELDS_MICROS);
        let backoff = backoff(Idle::Adaptive);
        let yields = |awaited| backoff.yields(awaited, idle, 0);
        assert_eq!(
            [Awaited::Nothing, Awaited::WokenAhead, Awaited::OfAwake, Awaited::OfWoken].map(yields),
            [false, false, true, true]
        );
        assert!(!backoff.yields(Awaited::OfAwake, idle - 1, 0), "it spins first");
    }

    #[test]
    fn a_worker_whose_core_others_want_yields_at_once() {
        let backoff = Backoff { is_shared: true, ..backoff(Idle::Adaptive) };
        assert!(backoff.yields(Awaited::OfAwake, 0, 0));
    }

    #[test]
    fn a_worker_leaves_its_core_to_the_kernel_that_receives_there() {
        let shared = Backoff { shares_with_kernel: true, interval: 0, ..backoff(Idle::Adaptive) };
        let alone = Backoff { interval: 0, ..backoff(Idle::Adaptive) };
        let micros =
            |backoff: &Backoff, awaited| backoff.spin_cycles(awaited, 0) / clock::cycles_in_micros(1);
        assert!(micros(&alone, Awaited::Nothing) > 10 * micros(&shared, Awaited::Nothing));
        assert_eq!(micros(&shared, Awaited::OfWoken), SPIN_FOR_WOKEN_MICROS, "it still waits for an NF");
    }

    #[test]
    fn a_polling_worker_keeps_its_core() {
        let backoff = Backoff { is_shared: true, ..backoff(Idle::Poll) };
        assert!(!backoff.yields(Awaited::OfWoken, u64::MAX, 0));
    }
}
