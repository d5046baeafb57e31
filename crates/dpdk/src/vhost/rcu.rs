//! Who may use a guest's device, and when nobody does any more.
//!
//! Those who serve sockets open and close gates; the owner of a queue enters its gate for each burst:
//!
//! ```text
//!   owner:  visit += 1;  light fence;  pass = state;  ... burst, if pass is open ...;  visit += 1
//!   server: state = closed;  heavy fence;  if visit is odd: wait until it is another
//! ```
//!
//! Visits are counted, as an owner that comes again at once may never be seen outside.
//!
//! Either the owner sees that the gate is closed, or the server sees that the owner is inside: that needs a full fence on
//! both sides. The server's is `membarrier(2)`, which makes every thread of the process pass a full fence, so that the
//! owner's can be one for the compiler alone: an entry costs two stores and a load of lines that nobody else writes. Where
//! the kernel has no `membarrier`, the owner's is a real one.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

use dpdk_sys as sys;

/// What an owner needs to know to move packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// The device's number in the library, which has fewer than 2^16.
    pub(super) device: i32,
    /// Counts the changes of what is known of the guest.
    pub(super) epoch: u16,
    /// The queue pair to send by.
    pub(super) send_pair: u16,
    /// What the guest takes: bits of `NETVM_VHOST_*`.
    pub(super) accepts: u8,
}

impl Pass {
    /// Whether the copier may copy to the guest.
    #[inline(always)]
    pub(super) const fn copied(self) -> bool {
        self.accepts & sys::NETVM_VHOST_COPIER as u8 != 0
    }

    /// Never 0, which means that the gate is closed.
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

/// What stands in place of a device's number in a word while a gate is closed for a moment only.
const PAUSED: u64 = 1 << 8;

/// The gate of one queue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Gate {
    /// Odd while the owner is inside.
    visit: AtomicU64,
    state: AtomicU64,
    /// The queue pairs to receive by, a bit each. The library refuses those that the device does not have.
    receive_pairs: AtomicU64,
}

impl Gate {
    /// What the last pass said, to decide by and not to use the device by.
    #[inline(always)]
    pub(super) fn glance(&self) -> Option<Pass> {
        Pass::from_word(self.state.load(Ordering::Relaxed))
    }

    /// What the guest takes, also while the gate is closed for a moment; `None` if no guest is there.
    #[inline(always)]
    pub(super) fn accepts(&self) -> Option<u8> {
        let word = self.state.load(Ordering::Relaxed);
        (word != 0).then_some(word as u8)
    }

    /// Whether it will be open again soon.
    pub(super) fn is_paused(&self) -> bool {
        self.state.load(Ordering::Relaxed) & !0xff == PAUSED
    }

    /// Does something with the device if the gate is open: its pass and the pairs to receive by. For the owner of the queue.
    #[inline(always)]
    pub(super) fn enter<R>(&self, fenced: bool, inside: impl FnOnce(Pass, u64) -> R) -> Option<R> {
        let visit = self.visit.load(Ordering::Relaxed) | 1;
        self.visit.store(visit, Ordering::Relaxed);
        if fenced {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let pass = Pass::from_word(self.state.load(Ordering::Acquire));
        let result = pass.map(|pass| inside(pass, self.receive_pairs.load(Ordering::Relaxed)));
        self.visit.store(visit.wrapping_add(1), Ordering::Release);
        result
    }

    /// For the server: opens the gate to a device, or closes it. Owners may be inside with what was open before, until
    /// [`quiesce`] has returned.
    pub(super) fn set(&self, pass: Option<Pass>, receive_pairs: u64) {
        self.receive_pairs.store(receive_pairs, Ordering::Relaxed);
        self.state.store(pass.map_or(0, Pass::to_word), Ordering::Release);
    }

    /// For the server: closes the gate for a moment.
    pub(super) fn pause(&self, accepts: u8) {
        self.state.store(PAUSED | u64::from(accepts), Ordering::Release);
    }
}

/// Waits until nobody is inside of a gate with what was open before. An owner stays for one burst, or until it has its core
/// back.
pub(super) fn quiesce(gates: &[Gate]) {
    heavy_fence();
    for gate in gates {
        let visit = gate.visit.load(Ordering::Acquire);
        let mut tries = 0;
        while visit & 1 == 1 && gate.visit.load(Ordering::Acquire) == visit {
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

/// To be called before the first gate is used; returns whether owners need fences of their own.
pub(super) fn prepare() -> bool {
    !membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

fn heavy_fence() {
    fence(Ordering::SeqCst);
    // Fails only where `prepare` did.
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    #[test]
    fn a_pass_survives_being_a_word() {
        for pass in [
            Pass { device: 0, epoch: 0, send_pair: 0, accepts: 0 },
            Pass { device: 0xffff, epoch: 1, send_pair: 63, accepts: 7 },
            Pass { device: 1023, epoch: u16::MAX, send_pair: u16::MAX, accepts: u8::MAX },
        ] {
            assert_eq!(Pass::from_word(pass.to_word()), Some(pass));
        }
        assert_eq!(Pass::from_word(0), None);
    }

    #[test]
    fn nobody_is_inside_of_a_gate_that_was_closed() {
        for fenced in [prepare(), true] {
            let gates = [Gate::default()];
            let (alive, stop, entered) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU32::new(0));
            std::thread::scope(|scope| {
                let owner = scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        gates[0].enter(fenced, |pass, _| {
                            // What the server does to it after it has closed the gate must not be seen.
                            for _ in 0..2000 {
                                assert_eq!(alive.load(Ordering::Relaxed), pass.device.cast_unsigned());
                            }
                            entered.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
                for round in 1..2000 {
                    alive.store(round, Ordering::Relaxed);
                    gates[0].set(
                        Some(Pass { device: round.cast_signed(), epoch: 0, send_pair: 0, accepts: 0 }),
                        1,
                    );
                    if round % 100 == 0 {
                        let before = entered.load(Ordering::Relaxed);
                        while entered.load(Ordering::Relaxed) == before && !owner.is_finished() {
                            std::thread::yield_now();
                        }
                    }
                    gates[0].set(None, 0);
                    quiesce(&gates);
                    alive.store(0, Ordering::Relaxed);
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert!(entered.load(Ordering::Relaxed) > 0);
        }
    }
}
