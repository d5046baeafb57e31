//! What wakes sleepers: workers of the engine, and the NF threads that packets are handed on to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::doorbell::Doorbell;

/// How this NF wakes others, and is woken.
#[derive(Debug)]
pub(crate) enum Eventfds {
    /// By eventfds, as between processes: for each worker and for each NF thread one.
    Events { workers: Vec<OwnedFd>, nf_threads: Vec<OwnedFd> },
    /// From within a VM, by a register of a PCI device. The VM's own threads are woken by eventfds that the wake line signals, if there is one.
    Doorbell(Doorbell, BTreeMap<u8, OwnedFd>),
    /// Not at all: a VM that polls. Its peers poll now and then.
    Silent,
}

impl Eventfds {
    /// Wakes a worker.
    #[cold]
    pub(crate) fn ring_worker(&self, worker: usize) {
        match self {
            Self::Events { workers, .. } => {
                workers.get(worker).map(ring);
            }
            Self::Doorbell(doorbell, _) => doorbell.ring(worker),
            Self::Silent => {}
        }
    }

    /// Wakes an NF thread.
    #[cold]
    pub(crate) fn ring_nf_thread(&self, nf_thread: usize) {
        match self {
            Self::Events { nf_threads, .. } => {
                nf_threads.get(nf_thread).map(ring);
            }
            Self::Doorbell(doorbell, _) => doorbell.ring(doorbell.workers() + nf_thread),
            Self::Silent => {}
        }
    }

    /// What wakes this NF thread; `None` when nothing does.
    pub(crate) fn of_nf_thread(&self, nf_thread: u8) -> Option<&OwnedFd> {
        match self {
            Self::Events { nf_threads, .. } => nf_threads.get(usize::from(nf_thread)),
            Self::Doorbell(_, own) => own.get(&nf_thread),
            Self::Silent => None,
        }
    }
}

/// A count that is full (EAGAIN) wakes as well; other errors mean that the sleeper is gone.
fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
