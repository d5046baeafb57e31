//! Atomics that are the machine's, or loom's when the orderings are being model-checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A sequentially consistent fence: what was stored before is visible before what is loaded afterwards is read.
///
/// On x86 any locked instruction is one (Intel SDM vol. 3A, "Memory Ordering in P6 and More Recent Processor Families"; AMD64 APM
/// vol. 2, "Memory Ordering"), in 6 cycles on a Zen 4 where the `mfence` that the compiler chooses takes 43.
#[inline(always)]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: the word below the stack's end is written with what is in it; the assembly is taken to change any memory.
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
