// SPDX-License-Identifier: Apache-2.0
//! State that the control side shares with the devices, off the packet path: the count of packets that a socket dropped
//! before a worker received them, and the longest frame that the interface sends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netvm_xsk::DropCounter;

use crate::drop_reason::DropReason;

/// Bytes of a frame in addition to the MTU: Ethernet header and one tag (`is_skb_forwardable` of the kernel).
const FRAMING: u32 = 14 + 4;

/// The longest frame that an interface sends, by its MTU, which can change at any time.
#[derive(Clone, Debug)]
pub(super) struct LongestFrame(Arc<AtomicU32>);

impl LongestFrame {
    /// `mtu`: `None` if unknown, which is no limit.
    pub(super) fn new(mtu: Option<u32>) -> Self {
        let longest = Self(Arc::new(AtomicU32::new(u32::MAX)));
        longest.set(mtu);
        longest
    }

    pub(super) fn set(&self, mtu: Option<u32>) {
        let frame = mtu.map_or(u32::MAX, |mtu| mtu.saturating_add(FRAMING));
        // Relaxed: it orders no other memory.
        self.0.store(frame, Ordering::Relaxed);
    }

    /// The interface is gone: it sends nothing.
    pub(super) fn end_interface(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Why a longer frame is dropped.
    #[cold]
    pub(super) fn reason(&self) -> DropReason {
        if self.get() == 0 { DropReason::PortDown } else { DropReason::ExceedsMtu }
    }
}

/// Drop counter of an AF_XDP socket. The counter keeps the socket open, so the device releases it before closing.
#[derive(Clone, Debug)]
pub(super) struct SocketDrops(Arc<Mutex<Option<DropCounter>>>);

impl SocketDrops {
    pub(super) fn new(counter: DropCounter) -> Self {
        Self(Arc::new(Mutex::new(Some(counter))))
    }

    /// Releases the socket before it is closed.
    pub(super) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Packets so far: no buffer was in the fill ring, the receive ring was full, or the frame was too long.
    pub(super) fn get(&self) -> u64 {
        let counter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counter.as_ref().and_then(|counter| counter.get().ok()).unwrap_or(0)
    }
}
