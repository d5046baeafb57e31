//! What wakes sleepers: workers of the engine, and the stations that packets are handed on to.

use std::os::fd::OwnedFd;

/// How this NF wakes others, and is woken.
#[derive(Debug)]
pub(crate) enum Bells {
    /// By eventfds, as between processes: for each worker and for each station one.
    Events { workers: Vec<OwnedFd>, stations: Vec<OwnedFd> },
    /// Not at all: a VM that polls. Those whom it would wake look by themselves now and then.
    Silent,
}

impl Bells {
    /// Wakes a worker.
    #[cold]
    pub(crate) fn ring_worker(&self, worker: usize) {
        if let Self::Events { workers, .. } = self {
            workers.get(worker).map(ring);
        }
    }

    /// Wakes a station.
    #[cold]
    pub(crate) fn ring_station(&self, station: usize) {
        if let Self::Events { stations, .. } = self {
            stations.get(station).map(ring);
        }
    }

    /// What wakes this station; `None` when nothing does.
    pub(crate) fn of_station(&self, station: u8) -> Option<&OwnedFd> {
        match self {
            Self::Events { stations, .. } => stations.get(usize::from(station)),
            Self::Silent => None,
        }
    }
}

/// A count that is full (EAGAIN) wakes as well; other errors mean that the sleeper is gone.
fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
