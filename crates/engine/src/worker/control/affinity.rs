// SPDX-License-Identifier: Apache-2.0
//! The core of a worker.

/// Pins the calling thread. If it may not use the core (a container's limits), its affinity does not change.
pub(super) fn pin_to(core: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core as usize);
    let _ = rustix::thread::sched_setaffinity(None, &set);
    // Sleeps end when they are due, not 50 microseconds later.
    // SAFETY: PR_SET_TIMERSLACK takes a number of nanoseconds and changes only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
}
