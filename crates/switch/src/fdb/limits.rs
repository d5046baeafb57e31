// SPDX-License-Identifier: Apache-2.0
//! Limits that keep one port from harming the others: addresses, new addresses, moves, and the hold-down of moved
//! addresses.

use super::Learned;
use super::mix::BucketPair;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::window::Window;

/// Adds one to a count below its limit.
pub(super) fn reserve(count: &AtomicU32, limit: u32) -> bool {
    let mut seen = count.load(Ordering::Relaxed);
    while seen < limit {
        match count.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(found) => seen = found,
        }
    }
    false
}

/// One port. Aligned to its own cache line, as a flooding port writes it often.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct PortLimits {
    /// Learned addresses.
    pub count: AtomicU32,
    /// Most learned addresses.
    pub limit: AtomicU32,
    /// Most new addresses per second.
    pub quota: AtomicU32,
    pub arrivals: Window,
    pub moves: Window,
    /// Addresses that moved to this port from another.
    pub moved: AtomicU64,
    /// Frames by which this port claimed an address that another port kept.
    pub held: AtomicU64,
    /// The last address of either kind, mixed, and its other port.
    last: AtomicU64,
    last_other: AtomicU32,
}

impl PortLimits {
    pub fn new(limit: u32, quota: u32) -> Self {
        Self {
            count: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            quota: AtomicU32::new(quota),
            arrivals: Window::new(),
            moves: Window::new(),
            moved: AtomicU64::new(0),
            held: AtomicU64::new(0),
            last: AtomicU64::new(0),
            last_other: AtomicU32::new(0),
        }
    }

    /// Counts an address that moved here from port `other`, or that `other` kept. Threads may mix up the last address
    /// and its port, which only a message names.
    pub fn count_move(&self, count: &AtomicU64, address: u64, other: u16) {
        count.fetch_add(1, Ordering::Relaxed);
        self.last.store(address, Ordering::Relaxed);
        self.last_other.store(other.into(), Ordering::Relaxed);
    }

    /// The last address that [`PortLimits::count_move`] counted, and its other port.
    pub fn last_move(&self) -> (u64, u16) {
        (self.last.load(Ordering::Relaxed), self.last_other.load(Ordering::Relaxed) as u16)
    }

    /// Why the port may not learn a new address at tick `now`. Reads only, so a flood causes no writes.
    #[inline]
    pub fn refusal(&self, now: u32) -> Option<Learned> {
        if self.count.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed) {
            Some(Learned::LimitReached)
        } else if !self.arrivals.has_room(now, self.quota.load(Ordering::Relaxed)) {
            Some(Learned::OverQuota)
        } else {
            None
        }
    }
}

/// Remembered moves and claims, a power of two. A later one may overwrite an earlier one.
const SLOTS: usize = if cfg!(loom) { 1 } else { 1024 };
/// Bits of a slot's index.
const SLOT_BITS: u32 = SLOTS.ilog2();

/// The latest moves, and the claims of other ports to addresses that were held down.
#[derive(Debug)]
pub(super) struct HoldDown {
    /// Ticks for which a moved address stays at its new port.
    hold: u32,
    /// Moves by hash: a tag in the upper half, the tick in the lower.
    moves: Box<[AtomicU64]>,
    /// Claims by hash, see [`Claim`]; 0: none.
    claims: Box<[AtomicU64]>,
}

/// A claim: an address, mixed, and the port that claims it. The index of its slot holds the lowest bits of the address.
///
/// ```text
///  63  62  61 60 59                                     10 9       0
/// +---+---+-----+-----------------------------------------+---------+
/// | 1 | p |     | upper bits of the mixed address         |  port   |
/// +---+---+-----+-----------------------------------------+---------+
/// p: a pass of [`HoldDown::due`] has seen the claim.
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim(u64);

impl Claim {
    const PRESENT: u64 = 1 << 63;
    const SEEN: u64 = 1 << 62;
    const PORT_BITS: u32 = 10;

    const fn new(address: u64, port: u16) -> Self {
        Self(Self::PRESENT | address >> SLOT_BITS << Self::PORT_BITS | port as u64)
    }

    const fn address(self, slot: usize) -> u64 {
        (self.0 & !(Self::PRESENT | Self::SEEN)) >> Self::PORT_BITS << SLOT_BITS | slot as u64
    }

    const fn port(self) -> u16 {
        (self.0 & ((1 << Self::PORT_BITS) - 1)) as u16
    }
}

impl HoldDown {
    pub fn new(hold: u32) -> Self {
        let slots = || (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { hold, moves: slots(), claims: slots() }
    }

    /// Records a move unless the address moved within the hold time; returns whether it may move.
    pub fn may_move(&self, pair: &BucketPair, now: u32) -> bool {
        let slot = &self.moves[pair.primary & (SLOTS - 1)];
        let address = pair.tag << 32;
        let word = slot.load(Ordering::Relaxed);
        // Compares in both directions, as the clocks of threads differ.
        let lately = now.wrapping_sub(word as u32).wrapping_add(self.hold) < 2 * self.hold;
        let held = lately && word >> 32 << 32 == address && word != 0;
        let next = address | u64::from(now);
        !held && slot.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Records that `port` claims an address that is held down.
    pub fn claim(&self, address: u64, port: u16) {
        let slot = Self::slot(address);
        let claim = Claim::new(address, port);
        // A claim that is repeated keeps its age.
        if self.claims[slot].load(Ordering::Relaxed) & !Claim::SEEN != claim.0 {
            self.claims[slot].store(claim.0, Ordering::Relaxed);
        }
    }

    /// Removes the claim to an address, because its port has sent from it again.
    pub fn withdraw(&self, address: u64) {
        let slot = Self::slot(address);
        let claim = Claim(self.claims[slot].load(Ordering::Relaxed));
        if claim.0 != 0 && claim.address(slot) == address {
            // If this fails, another claim has just taken its place.
            let _ = self.claims[slot].compare_exchange(claim.0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes the claims that an earlier call has seen already, as mixed addresses and their ports.
    pub fn due(&self) -> impl Iterator<Item = (u64, u16)> {
        self.claims.iter().enumerate().filter_map(|(n, slot)| {
            let claim = Claim(slot.load(Ordering::Relaxed));
            if claim.0 == 0 {
                return None;
            }
            let is_due = claim.0 & Claim::SEEN != 0;
            let next = if is_due { 0 } else { claim.0 | Claim::SEEN };
            let taken = slot.compare_exchange(claim.0, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            (taken && is_due).then(|| (claim.address(n), claim.port()))
        })
    }

    const fn slot(address: u64) -> usize {
        address as usize & (SLOTS - 1)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_not_exceeded_by_threads() {
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        reserve(&count, 999);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 999);
    }
}
