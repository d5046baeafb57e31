//! DMA copies to a guest that are in flight.
//!
//! The library owns the packets until they are copied, and its records describe the rings at the time when the DMA channel
//! was attached. So no copy may be in flight while a message changes rings or memory. netvm detaches the channel before
//! such a message and attaches it again afterwards; in between, the processor copies. netvm also detaches it when a guest
//! disconnects.

use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use netvm_notify::Signaller;

use super::{DmaChannelStatus, calls};
use crate::DmaChannel;
use crate::vhost_user::{
    SET_FEATURES, SET_MEM_TABLE, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_KICK,
    SET_VRING_NUM,
};

/// Whether a message changes features, memory or rings. The library handles such messages with the vrings locked. Before
/// other changes, it reports that the guest is gone.
pub(super) const fn needs_detach(request: u32) -> bool {
    matches!(
        request,
        SET_FEATURES
            | SET_MEM_TABLE
            | SET_VRING_NUM
            | SET_VRING_ADDR
            | SET_VRING_BASE
            | SET_VRING_KICK
            | SET_VRING_ENABLE
    )
}

/// A port's DMA channel.
#[derive(Debug)]
pub(super) struct InFlightDma {
    dma: DmaChannel,
    /// The channel did not finish in time and was stopped.
    stuck: AtomicBool,
    signaller: Signaller,
}

impl InFlightDma {
    pub(super) fn new(dma: DmaChannel) -> Self {
        Self { dma, stuck: AtomicBool::new(false), signaller: Signaller::new() }
    }

    pub(super) fn status(&self) -> DmaChannelStatus {
        DmaChannelStatus {
            name: self.dma.name().to_owned(),
            stats: self.dma.stats(),
            stuck: self.stuck.load(Ordering::Relaxed),
        }
    }

    /// Attaches the DMA channel to a device. Returns a bit mask of the queue pairs that it copies to.
    pub(super) fn attach(&self, device: i32, locked: bool) -> u64 {
        if self.stuck.load(Ordering::Relaxed) {
            return 0;
        }
        // SAFETY: the library is calling for the device. Its vrings are locked if `locked`; otherwise no thread moves
        // packets.
        unsafe { sys::netvm_dma_begin(device, locked.into()) }
    }

    /// Waits for the copies in flight, sends the guest its calls, and detaches the DMA channel. If not `locked`, no
    /// thread may move packets.
    pub(super) fn detach(&self, device: i32, locked: bool) {
        if self.stuck.load(Ordering::Relaxed) {
            return;
        }
        let mut calls_wanted = 0;
        // SAFETY: as above.
        if unsafe { sys::netvm_dma_end(device, self.dma.number(), locked.into(), &raw mut calls_wanted) } != 0
        {
            self.stuck.store(true, Ordering::Relaxed);
        }
        for pair in (0..64).filter(|pair| calls_wanted >> pair & 1 == 1) {
            calls::signal(&self.signaller, device, 2 * pair);
        }
    }
}
