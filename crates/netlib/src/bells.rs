//! What wakes sleepers: workers of the engine, and the stations that packets are handed on to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::doorbell::Doorbell;

/// How this NF wakes others, and is woken.
#[derive(Debug)]
pub(crate) enum Bells {
    /// By eventfds, as between processes: for each worker and for each station one.
    Events { workers: Vec<OwnedFd>, stations: Vec<OwnedFd> },
    /// By a register of a PCI device, from within a VM; and the VM's threads by a line that somebody else listens on, when
    /// there is one: for each station, what wakes it.
    Doorbell(Doorbell, BTreeMap<u8, OwnedFd>),
    /// Not at all: a VM that polls. Those whom it would wake look by themselves now and then.
    Silent,
}

impl Bells {
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

    /// Wakes a station.
    #[cold]
    pub(crate) fn ring_station(&self, station: usize) {
        match self {
            Self::Events { stations, .. } => {
                stations.get(station).map(ring);
            }
            Self::Doorbell(doorbell, _) => doorbell.ring(doorbell.workers() + station),
            Self::Silent => {}
        }
    }

    /// What wakes this station; `None` when nothing does.
    pub(crate) fn of_station(&self, station: u8) -> Option<&OwnedFd> {
        match self {
            Self::Events { stations, .. } => stations.get(usize::from(station)),
            Self::Doorbell(_, own) => own.get(&station),
            Self::Silent => None,
        }
    }
}

/// A count that is full (EAGAIN) wakes as well; other errors mean that the sleeper is gone.
fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
