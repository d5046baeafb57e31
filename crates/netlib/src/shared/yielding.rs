//! Yields the core, and tells whether others wanted it.

use netvm_region::clock;

/// A yield that took longer gave the core to others: the call alone takes a third of a microsecond.
const ALONE_MICROS: u64 = 3;

/// How a yield ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yielded {
    /// When the thread got the core back.
    pub(crate) at: u64,
    /// Others ran meanwhile.
    pub(crate) others_ran: bool,
}

/// Lets other threads run that want this core.
#[cold]
pub(crate) fn yield_core() -> Yielded {
    let before = clock::cycles();
    std::thread::yield_now();
    let at = clock::cycles();
    Yielded { at, others_ran: at.wrapping_sub(before) > clock::cycles_in_micros(ALONE_MICROS) }
}
