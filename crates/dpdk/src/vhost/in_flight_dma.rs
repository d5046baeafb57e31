//! Packets that a copier has under way to a guest.
//!
//! They are the library's until they are copied, and what it keeps of them is laid out for the rings as these were when the
//! copier was let in. So nothing may be under way while a message changes rings or memory: the copier is sent away before,
//! and let in again afterwards; in between, the processor copies. The same when a guest goes.

use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use netvm_notify::Signaller;

use super::{CopierStatus, calls};
use crate::Copier;
use crate::vhost_user::{
    SET_FEATURES, SET_MEM_TABLE, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_KICK,
    SET_VRING_NUM,
};

/// Messages that change features, memory or rings. The library handles all of them with the vrings locked. Others that do so
/// tell that the guest has gone first.
pub(super) const fn ends(request: u32) -> bool {
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

/// A port's copier.
#[derive(Debug)]
pub(super) struct InFlightDma {
    copier: Copier,
    /// It has not finished in time, and was stopped.
    stuck: AtomicBool,
    signaller: Signaller,
}

impl InFlightDma {
    pub(super) fn new(copier: Copier) -> Self {
        Self { copier, stuck: AtomicBool::new(false), signaller: Signaller::new() }
    }

    pub(super) fn status(&self) -> CopierStatus {
        CopierStatus {
            name: self.copier.name().to_owned(),
            stats: self.copier.stats(),
            stuck: self.stuck.load(Ordering::Relaxed),
        }
    }

    /// Lets the copier copy to a device: to which of its queue pairs, a bit each.
    pub(super) fn begin(&self, device: i32, locked: bool) -> u64 {
        if self.stuck.load(Ordering::Relaxed) {
            return 0;
        }
        // SAFETY: the library calls for the device, with its vrings locked if `locked`, and else nobody moves packets.
        unsafe { sys::netvm_copier_begin(device, locked.into()) }
    }

    /// Waits for what is under way, tells the guest of it, and sends the copier away. If not `locked`, nobody moves packets.
    pub(super) fn end(&self, device: i32, locked: bool) {
        if self.stuck.load(Ordering::Relaxed) {
            return;
        }
        let mut told = 0;
        // SAFETY: as above.
        if unsafe { sys::netvm_copier_end(device, self.copier.number(), locked.into(), &raw mut told) } != 0 {
            self.stuck.store(true, Ordering::Relaxed);
        }
        for pair in (0..64).filter(|pair| told >> pair & 1 == 1) {
            calls::tell(&self.signaller, device, 2 * pair);
        }
    }
}
