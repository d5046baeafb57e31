// SPDX-License-Identifier: Apache-2.0
//! The clock of the packet path: the processor's cycle counter. [`CoreSharing`] tells from the time that yields take
//! whether other threads want the core.

mod core_sharing;

use std::time::Duration;

pub use core_sharing::{CoreSharing, Yielded};

/// The cycle counter: the TSC on x86-64, the virtual counter on 64-bit Arm, nanoseconds elsewhere.
#[inline(always)]
#[must_use]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reading the time-stamp counter has no preconditions in user mode on Linux.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: Linux lets user mode read the virtual counter.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
        count
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// Frequency of [`cycles`] in Hz. Measured once, over 20 ms.
#[must_use]
pub fn cycles_per_second() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, from) = (Instant::now(), cycles());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let passed = cycles().wrapping_sub(from);
        (u128::from(passed) * 1_000_000_000 / start.elapsed().as_nanos()) as u64
    })
}

/// Converts microseconds to [`cycles`].
#[must_use]
pub fn cycles_in_micros(micros: u64) -> u64 {
    cycles_per_second() / 1_000_000 * micros
}

/// Converts [`cycles`] to a time, rounded down to nanoseconds.
#[must_use]
pub fn duration_of(cycles: u64) -> Duration {
    duration_at(cycles_per_second().max(1), cycles)
}

/// The same for this frequency in Hz.
fn duration_at(hertz: u64, cycles: u64) -> Duration {
    let nanos = u128::from(cycles % hertz) * 1_000_000_000 / u128::from(hertz);
    Duration::new(cycles / hertz, nanos as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_a_time_rounded_down() {
        let time = |hertz, cycles| duration_at(hertz, cycles).as_nanos();
        assert_eq!(
            [time(3, 0), time(3, 2), time(3, 3), time(3, 7)],
            [0, 666_666_666, 1_000_000_000, 2_333_333_333]
        );
        assert_eq!(time(1, u64::MAX), u128::from(u64::MAX) * 1_000_000_000);
        assert_eq!(time(2_600_000_000, 26_000_000_013), 10_000_000_005);
    }
}
