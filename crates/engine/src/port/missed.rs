//! Packets that a device dropped before a worker saw them. The statistics code reads them from the device, off the
//! packet path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netvm_xsk::DropCounter;

/// Drop counter of an AF_XDP socket. It keeps the socket open, so the device empties it before closing.
#[derive(Clone, Debug)]
pub(crate) struct SocketDrops(Arc<Mutex<Option<DropCounter>>>);

impl SocketDrops {
    pub(crate) fn new(counter: DropCounter) -> Self {
        Self(Arc::new(Mutex::new(Some(counter))))
    }

    /// Releases the socket before it is closed.
    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn get(&self) -> u64 {
        let counter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counter.as_ref().and_then(|counter| counter.get().ok()).unwrap_or(0)
    }
}

/// One queue's count, or one for all queues of a port.
#[derive(Clone, Debug)]
pub(crate) enum Missed {
    /// A DPDK device: no descriptor was free in the device, or no mbuf in the pool.
    Device(dpdk::Port),
    /// An AF_XDP socket: no buffer was in the fill ring, the receive ring was full, or the frame was too long.
    Socket(SocketDrops),
    /// A packet socket: its kernel memory was full.
    Kernel(netvm_vnet::Drops),
    /// A source: packets that it could not generate in time.
    Source(Arc<AtomicU64>),
}

impl Missed {
    /// Packets so far; 0 if the device does not count them.
    pub(crate) fn get(&self) -> u64 {
        match self {
            Self::Device(port) => {
                port.stats().map_or(0, |stats| stats.rx_missed.saturating_add(stats.rx_no_mbuf))
            }
            Self::Socket(drops) => drops.get(),
            Self::Kernel(drops) => drops.get(),
            Self::Source(count) => count.load(Ordering::Relaxed),
        }
    }
}
