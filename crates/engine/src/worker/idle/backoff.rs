//! What a worker does when a turn moved nothing: spin for some microseconds, then sleep, longer and longer.
//!
//! To sleep and be woken costs tens of microseconds, most of all in a VM whose core halts. So a worker spins for as long as
//! packets are likely to come: those that NFs have, and more from ports where the last ones came at a short interval. Else it
//! soon sleeps, also because those whom it has just sent packets may be waiting for its core.
//!
//! It is woken early by whatever can wake it: the descriptors of ports that have one, the manager, and NFs that return
//! packets. Ports that can only be asked, and NFs in VMs that poll, bound the sleep, and so do descriptors for which there is
//! no place.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use netvm_config::model::Idle;
use netvm_notify::EpollWaiter;
use netvm_region::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ids::PortId;
use crate::port::Arrival;
use crate::snapshot::Snapshot;
use crate::worker::state::{Awaited, Path};

/// How long a worker spins before it sleeps, ...
const SPIN_MICROS: u64 = 50;
/// ... when nothing is awaited of NFs and the last packets came in further apart than that, ...
const SHORT_SPIN_MICROS: u64 = 10;
/// ... and when an NF was woken, which may first have to wake others that it hands packets on to.
const SPIN_FOR_WOKEN_MICROS: u64 = 200;
/// First sleep, and longest sleep while a port or an NF can only be asked.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(400);
/// Longest sleep while everything can wake the worker.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Descriptors that a sleep can be ended by.
const MOST: usize = 64;

pub(crate) struct Rest {
    idle: Idle,
    since: Option<u64>,
    /// When packets last came in, and how long after those before.
    arrived: u64,
    interval: u64,
    nap: Duration,
    /// Wakes this worker: the manager's.
    wake: Arc<OwnedFd>,
    /// NFs do.
    waiter: EpollWaiter,
}

impl Rest {
    pub(crate) fn new(idle: Idle, wake: Arc<OwnedFd>, waiter: EpollWaiter) -> Self {
        Self { idle, since: None, arrived: 0, interval: u64::MAX, nap: NAP, wake, waiter }
    }

    /// Packets came in by a port in the turn that began at `now`.
    #[inline(always)]
    pub(crate) const fn arrived(&mut self, now: u64) {
        self.interval = now.wrapping_sub(self.arrived);
        self.arrived = now;
    }

    pub(crate) fn busy(&mut self) {
        self.since = None;
        self.nap = NAP;
    }

    fn spin(&self, awaited: Awaited) -> u64 {
        let usual = clock::cycles_in_micros(SPIN_MICROS);
        match awaited {
            Awaited::OfWoken => clock::cycles_in_micros(SPIN_FOR_WOKEN_MICROS),
            Awaited::Nothing | Awaited::WokenAhead if self.interval >= usual => {
                clock::cycles_in_micros(SHORT_SPIN_MICROS)
            }
            Awaited::Nothing | Awaited::WokenAhead | Awaited::OfAwake => usual,
        }
    }

    /// Spends the time until there may be something to do; returns whether it slept.
    pub(crate) fn rest(&mut self, path: &mut Path, snapshot: &Snapshot, inputs: &[PortId], now: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        if self.idle == Idle::Poll || now.wrapping_sub(since) < self.spin(path.awaited) {
            core::hint::spin_loop();
            return false;
        }
        path.awaited = Awaited::Nothing;
        let mut longest = LONGEST_SLEEP;
        let mut empty = true;
        let mut called = ArrayVec::new();
        for link in &path.active {
            if let Some(link) = path.links[link.index()].as_mut() {
                empty &= link.from_nf.prepare_wait();
                if link.owes_wake() {
                    longest = NAP;
                } else if link.is_silent() {
                    longest = longest.min(self.nap);
                }
            }
        }
        if empty {
            for port in inputs {
                if let Some(queue) = path.ports[port.index()].as_mut() {
                    queue.prepare_wait();
                }
            }
            called = self.sleep(path, inputs, longest);
        }
        for link in &path.active {
            if let Some(link) = path.links[link.index()].as_mut() {
                link.from_nf.end_wait();
            }
        }
        for port in called {
            path.wake_ahead(snapshot, port);
        }
        empty
    }

    /// Sleeps; returns the ports that have called.
    fn sleep(&mut self, path: &Path, inputs: &[PortId], mut longest: Duration) -> ArrayVec<PortId, MOST> {
        let mut fds: ArrayVec<PollFd<'_>, MOST> = ArrayVec::new();
        fds.push(PollFd::new(&self.wake, PollFlags::IN));
        fds.push(PollFd::new(&self.waiter, PollFlags::IN));
        let mut callers = ArrayVec::<PortId, MOST>::new();
        let queues = inputs.iter().filter_map(|port| Some((*port, path.ports[port.index()].as_ref()?)));
        for (port, device) in queues.flat_map(|(port, queue)| queue.devices().iter().map(move |d| (port, d)))
        {
            let asked = match device.arrival() {
                Arrival::Readable(fd) => {
                    let asked = PollFd::from_borrowed_fd(fd, PollFlags::IN);
                    fds.try_push(asked).map(|()| callers.push(port)).is_err()
                }
                Arrival::Waiting => {
                    longest = Duration::ZERO;
                    false
                }
                Arrival::Ask => true,
                Arrival::Never => false,
            };
            if asked || !device.is_flushed() {
                longest = longest.min(self.nap);
            }
        }
        // Other workers hand packets over through rings that wake nobody.
        if path.handoff.has_peers() {
            longest = longest.min(self.nap);
        }
        self.nap = (self.nap * 2).min(LONGEST_NAP);
        nap(&mut fds, longest);
        forget_errors(&fds);
        let [woken, called] = [0, 1].map(|n| fds.get(n).is_some_and(|fd| !fd.revents().is_empty()));
        if woken {
            // Back to zero.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if called {
            self.waiter.drain();
        }
        let mut heard = fds.iter().skip(2).map(|fd| fd.revents().contains(PollFlags::IN));
        callers.retain(|_| heard.next() == Some(true));
        callers
    }
}

/// An error (a signal) ends the sleep early, which is always right.
fn nap(fds: &mut [PollFd<'_>], longest: Duration) {
    let timeout = Timespec { tv_sec: longest.as_secs() as _, tv_nsec: longest.subsec_nanos().into() };
    let _ = poll(fds, Some(&timeout));
}

/// A socket whose interface has gone down tells so once: else it would end every sleep from then on.
fn forget_errors(fds: &[PollFd<'_>]) {
    for fd in fds.iter().filter(|fd| fd.revents().contains(PollFlags::ERR)) {
        // Taking the error clears it. The port's link shows what happened.
        let _ = rustix::net::sockopt::socket_error(fd);
    }
}
