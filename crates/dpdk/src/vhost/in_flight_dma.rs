// SPDX-License-Identifier: Apache-2.0
//! DMA copies to a guest that are in flight.
//!
//! A copy writes to the guest's memory as it was mapped when it was submitted. So none may be in flight while a message
//! changes rings or memory, or when a guest goes: netvm detaches the channel before, which waits for the copies, and
//! attaches it again afterwards. In between, the processor copies.

use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use netvm_notify::Signaller;

use super::calls;

/// Use of a port's DMA channel.
#[derive(Debug)]
pub(super) struct InFlightDma {
    /// The channel's number.
    number: i32,
    /// The channel did not finish in time and was stopped.
    stuck: AtomicBool,
    signaller: Signaller,
}

impl InFlightDma {
    pub(super) fn new(number: i32) -> Self {
        Self { number, stuck: AtomicBool::new(false), signaller: Signaller::new() }
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Attaches the DMA channel to a device that no worker uses. Returns a bit mask of the queue pairs that it copies
    /// to.
    pub(super) fn attach(&self, device: i32) -> u64 {
        if self.is_stuck() {
            return 0;
        }
        // SAFETY: the device exists, and no thread moves its packets.
        unsafe { sys::netvm_dma_begin(device) }
    }

    /// Waits for the copies in flight to a device that no worker uses, sends the guest its calls, and detaches the DMA
    /// channel.
    pub(super) fn detach(&self, device: i32) {
        let mut calls_wanted = 0;
        // SAFETY: as above.
        if unsafe { sys::netvm_dma_end(device, self.number, &raw mut calls_wanted) } != 0 {
            self.stuck.store(true, Ordering::Relaxed);
        }
        for pair in (0..64).filter(|pair| calls_wanted >> pair & 1 == 1) {
            calls::signal(&self.signaller, device, 2 * pair);
        }
    }
}
