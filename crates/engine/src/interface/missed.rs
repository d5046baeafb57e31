//! State that the manager and a device share off the packet path: the count of packets that the device dropped before a
//! worker received them, and the longest frame that its interface sends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netvm_xsk::DropCounter;

use super::source;
use crate::drop_reason::DropReason;

/// Bytes of a frame in addition to the MTU: Ethernet header and one tag (`is_skb_forwardable` of the kernel).
const FRAMING: u32 = 14 + 4;

/// The longest frame that an interface sends, by its MTU, which can change at any time.
#[derive(Clone, Debug)]
pub(crate) struct LongestFrame(Arc<AtomicU32>);

impl LongestFrame {
    /// `mtu`: `None` if unknown, which is no limit.
    pub(crate) fn new(mtu: Option<u32>) -> Self {
        let longest = Self(Arc::new(AtomicU32::new(u32::MAX)));
        longest.set(mtu);
        longest
    }

    pub(crate) fn set(&self, mtu: Option<u32>) {
        let frame = mtu.map_or(u32::MAX, |mtu| mtu.saturating_add(FRAMING));
        // Relaxed: it orders no other memory.
        self.0.store(frame, Ordering::Relaxed);
    }

    /// The interface is gone: it sends nothing.
    pub(crate) fn end_interface(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Why a longer frame is dropped.
    #[cold]
    pub(crate) fn reason(&self) -> DropReason {
        if self.get() == 0 { DropReason::PortDown } else { DropReason::ExceedsMtu }
    }
}

/// Drop counter of an AF_XDP socket. The counter keeps the socket open, so the device releases it before closing.
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
    Source(Arc<source::Common>),
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
            Self::Source(common) => common.missed(),
        }
    }
}
