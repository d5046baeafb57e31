// SPDX-License-Identifier: Apache-2.0
//! What the caller has decided on the packets of a connection: a number for each direction, which comes with
//! [`Tracked::decided`](crate::Tracked::decided) of the next packets.

/// The bit of a stored number that says in which epoch it was stored.
const EPOCH: u32 = 1 << 31;
/// Numbers are below this.
const MAX: u32 = EPOCH - 1;

/// Which stored numbers count: those of this epoch. Those of the one before are there until the hand has passed their
/// slots, and so long there is no other epoch.
#[derive(Default)]
pub(crate) struct Decided {
    /// 0 or [`EPOCH`].
    epoch: u32,
    /// Slots that the hand has to pass.
    left: u32,
}

impl Decided {
    /// The number that was stored; 0 stands for none.
    #[inline(always)]
    pub(crate) const fn of(&self, stored: u32) -> Option<u32> {
        if self.counts(stored) { (stored & MAX).checked_sub(1) } else { None }
    }

    /// A number as it is stored; `None`: it is too large.
    pub(crate) const fn stored(&self, number: u32) -> Option<u32> {
        if number < MAX { Some(self.epoch | (number + 1)) } else { None }
    }

    /// Forgets all numbers, of this many slots. Returns false if there may be some of the epoch before.
    pub(crate) const fn forget(&mut self, slots: u32) -> bool {
        let may_forget = self.left == 0;
        if may_forget {
            *self = Self { epoch: self.epoch ^ EPOCH, left: slots };
        }
        may_forget
    }

    /// Whether a number counts.
    #[inline(always)]
    const fn counts(&self, stored: u32) -> bool {
        stored & EPOCH == self.epoch
    }

    /// The hand passes a slot: removes the numbers that do not count.
    #[inline(always)]
    pub(crate) const fn pass(&mut self, stored: &mut [u32; 2]) {
        self.left = self.left.saturating_sub(1);
        let [first, second] = stored;
        if !self.counts(*first) {
            *first = self.epoch;
        }
        if !self.counts(*second) {
            *second = self.epoch;
        }
    }
}
