// SPDX-License-Identifier: Apache-2.0
//! RCU read sections around the use of a guest's device.
//!
//! The threads that handle vhost-user messages publish the active device of each queue; the queue's owner enters a read
//! section for each burst. Before a device changes or goes away, its publisher withdraws it and waits until no owner
//! uses it:
//!
//! ```text
//!   owner:     section += 1;  light fence;  active = state;  ... burst, if there is a device ...;  section += 1
//!   publisher: state = none;  heavy fence;  if section is odd: wait until it changes
//! ```
//!
//! A counter and not a flag, because a publisher might never see an owner outside of a section if it enters again at
//! once.
//!
//! Either the owner sees that the device is withdrawn, or the publisher sees that the owner is in a section. This needs
//! a full fence on both sides. The publisher calls `membarrier(2)`, which makes every thread of the process execute a
//! full fence, so a compiler fence is enough for the owner: a section costs two stores, and a load of lines that other
//! threads seldom write. On kernels without `membarrier`, the owner executes a full fence.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

use dpdk_sys as sys;

/// The device that an owner may use for a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActiveDevice {
    /// The device's number, of which there are fewer than 2^16.
    pub(super) device: i32,
    /// Incremented with each change.
    pub(super) epoch: u16,
    /// The queue pair to send by.
    pub(super) send_pair: u16,
    /// Offloads that the guest accepts: bits of `NETVM_VHOST_*`.
    pub(super) accepts: u8,
}

impl ActiveDevice {
    /// Whether the DMA channel may copy to the guest.
    #[inline(always)]
    pub(super) const fn copied(self) -> bool {
        self.accepts & sys::NETVM_VHOST_DMA as u8 != 0
    }

    /// Never 0, which means no device.
    fn to_word(self) -> u64 {
        let device = u64::from(self.device.cast_unsigned() as u16) + 1;
        u64::from(self.epoch) << 48 | device << 24 | u64::from(self.send_pair) << 8 | u64::from(self.accepts)
    }

    fn from_word(word: u64) -> Option<Self> {
        let device = (word >> 24 & 0xff_ffff).checked_sub(1)? as u32;
        let epoch = (word >> 48) as u16;
        Some(Self { device: device.cast_signed(), epoch, send_pair: (word >> 8) as u16, accepts: word as u8 })
    }
}

/// Replaces the device number in a word while the device is paused.
const PAUSED: u64 = 1 << 8;

/// The active device of one queue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct RcuSlot {
    /// Odd while the owner is in a read section.
    section: AtomicU64,
    state: AtomicU64,
    /// Bit mask of the queue pairs to receive from. Those that the device does not have are empty.
    receive_pairs: AtomicU64,
}

impl RcuSlot {
    /// The active device, for decisions; use the device only in a read section.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<ActiveDevice> {
        ActiveDevice::from_word(self.state.load(Ordering::Relaxed))
    }

    /// The guest's accepted offloads, also while its device is paused; `None` without a guest.
    #[inline(always)]
    pub(super) fn accepts(&self) -> Option<u8> {
        let word = self.state.load(Ordering::Relaxed);
        (word != 0).then_some(word as u8)
    }

    /// Whether the device is paused: withdrawn temporarily.
    pub(super) fn is_paused(&self) -> bool {
        self.state.load(Ordering::Relaxed) & !0xff == PAUSED
    }

    /// Runs `inside` in a read section, with the active device and the pairs to receive from. Only for the queue's
    /// owner.
    #[inline(always)]
    pub(super) fn read<R>(&self, fenced: bool, inside: impl FnOnce(ActiveDevice, u64) -> R) -> Option<R> {
        let section = self.section.load(Ordering::Relaxed) | 1;
        self.section.store(section, Ordering::Relaxed);
        if fenced {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let active = ActiveDevice::from_word(self.state.load(Ordering::Acquire));
        let result = active.map(|active| inside(active, self.receive_pairs.load(Ordering::Relaxed)));
        self.section.store(section.wrapping_add(1), Ordering::Release);
        result
    }

    /// Publishes a device, or withdraws it. The owner may use the previous one until [`synchronize`] has returned.
    pub(super) fn set(&self, active: Option<ActiveDevice>, receive_pairs: u64) {
        self.receive_pairs.store(receive_pairs, Ordering::Relaxed);
        self.state.store(active.map_or(0, ActiveDevice::to_word), Ordering::Release);
    }

    /// Withdraws the device temporarily.
    pub(super) fn pause(&self, accepts: u8) {
        self.state.store(PAUSED | u64::from(accepts), Ordering::Release);
    }
}

/// Waits until no owner uses a device that was published before. A read section lasts for one burst, or until its
/// thread runs again.
pub(super) fn synchronize(rcu_slots: &[RcuSlot]) {
    heavy_fence();
    for rcu_slot in rcu_slots {
        let section = rcu_slot.section.load(Ordering::Acquire);
        let mut tries = 0;
        while section & 1 == 1 && rcu_slot.section.load(Ordering::Acquire) == section {
            if tries < 1000 {
                tries += 1;
                std::hint::spin_loop();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: takes no pointers; an unknown command gives an error.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Call this before the first read section; returns whether owners need full fences.
pub(super) fn prepare() -> bool {
    !membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

fn heavy_fence() {
    fence(Ordering::SeqCst);
    // Fails only if `prepare` failed; then owners execute full fences.
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    #[test]
    fn an_active_device_survives_packing() {
        for active in [
            ActiveDevice { device: 0, epoch: 0, send_pair: 0, accepts: 0 },
            ActiveDevice { device: 0xffff, epoch: 1, send_pair: 63, accepts: 7 },
            ActiveDevice { device: 1023, epoch: u16::MAX, send_pair: u16::MAX, accepts: u8::MAX },
        ] {
            assert_eq!(ActiveDevice::from_word(active.to_word()), Some(active));
        }
        assert_eq!(ActiveDevice::from_word(0), None);
    }

    #[test]
    fn no_owner_uses_a_withdrawn_device_after_synchronize() {
        for fenced in [prepare(), true] {
            let rcu_slots = [RcuSlot::default()];
            let (alive, stop, entered) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU32::new(0));
            std::thread::scope(|scope| {
                let owner = scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        rcu_slots[0].read(fenced, |active, _| {
                            // The publisher's changes after `synchronize` must not be visible here.
                            for _ in 0..2000 {
                                assert_eq!(alive.load(Ordering::Relaxed), active.device.cast_unsigned());
                            }
                            entered.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
                for round in 1..2000 {
                    alive.store(round, Ordering::Relaxed);
                    rcu_slots[0].set(
                        Some(ActiveDevice {
                            device: round.cast_signed(),
                            epoch: 0,
                            send_pair: 0,
                            accepts: 0,
                        }),
                        1,
                    );
                    if round % 100 == 0 {
                        let before = entered.load(Ordering::Relaxed);
                        while entered.load(Ordering::Relaxed) == before && !owner.is_finished() {
                            std::thread::yield_now();
                        }
                    }
                    rcu_slots[0].set(None, 0);
                    synchronize(&rcu_slots);
                    alive.store(0, Ordering::Relaxed);
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert!(entered.load(Ordering::Relaxed) > 0);
        }
    }
}
