// SPDX-License-Identifier: Apache-2.0
//! Atomics: the processor's, or loom's under model checking.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A sequentially consistent fence: earlier stores become visible before later loads read.
///
/// On x86 any locked instruction is such a fence (Intel SDM vol. 3A, "Memory Ordering in P6 and More Recent Processor
/// Families"; AMD64 APM vol. 2, "Memory Ordering"). The compiler would emit `mfence`, which takes several times as
/// long.
#[inline(always)]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: the instruction writes back the value of a stack word; the compiler assumes that it may change any
    // memory.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp - 64], 0", options(nostack));
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    {
        #[cfg(not(loom))]
        core::sync::atomic::fence(Ordering::SeqCst);
        #[cfg(loom)]
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}
