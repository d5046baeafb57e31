//! The time stamp counter.

/// The processor's time stamp counter; takes some ten to thirty cycles and does not wait for earlier instructions.
#[inline(always)]
#[must_use]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and Linux leaves it enabled for user space.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: reads a counter; no arguments.
        unsafe { dpdk_sys::netvm_cycles() }
    }
}

/// How often [`cycles`] counts in a second, as DPDK measured it when the EAL started.
#[must_use]
pub fn tsc_hz(_eal: crate::Eal) -> u64 {
    // SAFETY: the EAL is initialised, as the argument proves, and with it the value that this reads.
    unsafe { dpdk_sys::rte_get_tsc_hz() }
}
