// SPDX-License-Identifier: Apache-2.0
//! What all threads of an NF share: the mapped memories, the connection to the engine, and the eventfds that wake
//! others.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm_region::{Control, Region, RingRef};
use netvm_ring::RingMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) mod doorbell;
pub(crate) mod messages;

use doorbell::Doorbell;
use messages::Transport;

/// How an NF thread waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Waiting {
    /// Spin. Lowest latency, for an NF with a dedicated core.
    Poll,
    /// Spin for 2 µs, yield the core until 50 µs have passed, then sleep until woken. An idle NF takes no CPU time. A
    /// busy one yields every 200 µs, for others that share the core.
    #[default]
    Adaptive,
}

/// Stops an NF from within its process: from another thread or, through the flag, from a signal handler. Clones share
/// one flag. The NF's threads see it within 100 ms; the engine takes back the packets that are then in the NF's rings.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the NF to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the NF was asked to stop.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl From<Arc<AtomicBool>> for Stop {
    /// Stops when `flag` becomes true.
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

/// What an NF received from the engine.
pub(crate) struct Memories {
    pub(crate) control: Control,
    pub(crate) table: OwnedFd,
    pub(crate) regions: Vec<OwnedFd>,
    pub(crate) eventfds: Eventfds,
    pub(crate) transport: Transport,
}

/// The mappings and descriptors of an NF.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: Control,
    pub(crate) regions: Vec<Region>,
    pub(crate) eventfds: Eventfds,
    /// What messages go over. The socket also shows the end of netvmd; a VM ends with it.
    pub(crate) transport: Transport,
    pub(crate) stop: Stop,
}

impl Shared {
    /// The region of a worker's packets; `None` if the worker does not exist.
    #[inline(always)]
    pub(crate) fn region_of(&self, worker: u8) -> Option<&Region> {
        self.regions.get(self.control.region_of(worker)?)
    }

    pub(crate) fn direct_ring(&self, ring: RingRef) -> Option<RingMemory> {
        self.regions.get(usize::from(ring.region))?.ring(ring.index)
    }
}

/// The reasons why a sleep ended; none for a timeout.
pub(crate) struct Waking {
    pub(crate) is_signalled: bool,
    pub(crate) engine_is_gone: bool,
}

impl Shared {
    /// Whether the engine closed its end of the socket.
    pub(crate) fn engine_is_gone(&self) -> bool {
        let Some(socket) = self.transport.socket() else { return false };
        let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && is_closed(&fds[0])
    }

    /// Sleeps until woken, until the engine is gone, or for `longest`.
    pub(crate) fn sleep(&self, wake: &OwnedFd, longest: Duration) -> Waking {
        let timeout = Timespec { tv_sec: longest.as_secs() as _, tv_nsec: longest.subsec_nanos().into() };
        let socket = self.transport.socket().map_or(wake.as_fd(), AsFd::as_fd);
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(&socket, PollFlags::RDHUP)];
        // An error (a signal) ends the sleep early, which is harmless.
        let _ = poll(&mut fds, Some(&timeout));
        let is_signalled = fds[0].revents().contains(PollFlags::IN);
        Waking { is_signalled, engine_is_gone: self.transport.socket().is_some() && is_closed(&fds[1]) }
    }
}

fn is_closed(socket: &PollFd<'_>) -> bool {
    socket.revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

/// How this NF wakes workers and other NF threads, and is woken.
#[derive(Debug)]
pub(crate) enum Eventfds {
    /// As a process: by eventfds, one per worker and one per NF thread.
    Events { workers: Vec<OwnedFd>, nf_threads: Vec<OwnedFd> },
    /// In a VM: by a register of a PCI device. The wake line, if there is one, signals the eventfds of the VM's own
    /// threads.
    Doorbell(Doorbell, BTreeMap<u8, OwnedFd>),
    /// Not at all, in a VM that polls. Its peers poll now and then.
    Silent,
}

impl Eventfds {
    /// Wakes a worker.
    #[cold]
    pub(crate) fn wake_worker(&self, worker: usize) {
        match self {
            Self::Events { workers, .. } => {
                workers.get(worker).map(signal);
            }
            Self::Doorbell(doorbell, _) => doorbell.ring(worker),
            Self::Silent => {}
        }
    }

    /// Wakes an NF thread.
    #[cold]
    pub(crate) fn wake_nf_thread(&self, nf_thread: usize) {
        match self {
            Self::Events { nf_threads, .. } => {
                nf_threads.get(nf_thread).map(signal);
            }
            Self::Doorbell(doorbell, _) => doorbell.ring(doorbell.workers() + nf_thread),
            Self::Silent => {}
        }
    }

    /// The eventfd that wakes this NF thread, if there is one.
    pub(crate) fn of_nf_thread(&self, nf_thread: u8) -> Option<&OwnedFd> {
        match self {
            Self::Events { nf_threads, .. } => nf_threads.get(usize::from(nf_thread)),
            Self::Doorbell(_, own) => own.get(&nf_thread),
            Self::Silent => None,
        }
    }
}

/// A full count (EAGAIN) is harmless, since the eventfd is readable. Any other error means that the sleeper is gone.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
