//! Hold-down: an address that moved stays where it is for a while.

use crate::sync::{AtomicU64, Ordering};

use super::TICKS_PER_SECOND;
use super::mix::Place;

/// How long an address stays where it moved to.
const HOLD: u32 = TICKS_PER_SECOND;
/// Moves that are remembered; a power of two. A later one may take the place of an earlier.
const MOVES: usize = if cfg!(loom) { 1 } else { 1024 };

/// The latest moves, by hash: the address in the upper half, the tick in the lower.
#[derive(Debug)]
pub(super) struct HoldDown(Box<[AtomicU64]>);

impl HoldDown {
    pub fn new() -> Self {
        Self((0..MOVES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether the address has not moved lately; then it is remembered to have moved now.
    pub fn may_move(&self, place: &Place, now: u32) -> bool {
        let slot = &self.0[place.bucket & (MOVES - 1)];
        let address = place.tag << 32;
        let word = slot.load(Ordering::Relaxed);
        // Within a hold of that time, before or after it: clocks of threads differ.
        let lately = now.wrapping_sub(word as u32).wrapping_add(HOLD) < 2 * HOLD;
        let held = lately && word >> 32 << 32 == address && word != 0;
        let next = address | u64::from(now);
        !held && slot.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
