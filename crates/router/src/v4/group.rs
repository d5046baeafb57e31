// SPDX-License-Identifier: Apache-2.0
//! Groups of prefixes, and how a lookup finds the leaf of one.
//!
//! ```text
//!  group   bits 0..32: the slots whose leaf differs from that of the slot before  bits 32..64: place of the first leaf
//!  leaf    16 bits: 0xffff: only the default route matches    0xfffe: a block    others: the next hop
//! ```

use std::hint::select_unpredictable;

use crate::memory::Plain;
use crate::next_hop::{MAX_NEXT_HOPS, NextHopId};

/// Slots of a group.
pub(super) const SLOTS: usize = 32;
/// Groups of a block: the addresses of a prefix of 24 bits.
pub(super) const BLOCK: usize = 256 / SLOTS;

/// What a lookup ends at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaf(pub u16);

/// The content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    Leaf(Leaf),
    /// A block of this number.
    Block(u32),
}

/// The slots of a group, compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(super) struct Group(u64);

// SAFETY: the only field is a number.
#[allow(unsafe_code, reason = "promises that any bits are valid")]
unsafe impl Plain for Group {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "promises that any bits are valid")]
unsafe impl Plain for [Group; BLOCK] {}

impl Leaf {
    /// Only the default route matches.
    pub const NONE: Self = Self(u16::MAX);
    /// There are routes of more than 24 bits: their block tells the leaf.
    pub const BLOCK: Self = Self(u16::MAX - 1);

    pub fn of(id: Option<NextHopId>) -> Self {
        id.map_or(Self::NONE, |NextHopId(id)| Self(id))
    }

    /// The next hop; `default` if only the default route matches.
    #[inline(always)]
    pub fn id(self, default: NextHopId) -> NextHopId {
        // Whether there is a route is as random as the address.
        NextHopId(select_unpredictable(self.0 >> 15 == 0, self.0, default.0))
    }
}

impl Slot {
    /// The leaf that lookups find.
    pub const fn leaf(self) -> Leaf {
        match self {
            Self::Leaf(leaf) => leaf,
            Self::Block(_) => Leaf::BLOCK,
        }
    }
}

impl Group {
    /// Groups of one leaf have their first place before this one: at 0 that of [`Leaf::NONE`], so that memory that was
    /// never written is groups without routes, then those of the next hops in order.
    pub const SHARED: usize = MAX_NEXT_HOPS + 1;

    /// A group whose first leaf is at `first`.
    pub const fn new(changes: u32, first: u32) -> Self {
        Self(changes as u64 | (first as u64) << 32)
    }

    /// A group of which all slots have this leaf.
    pub const fn uniform(leaf: Leaf) -> Self {
        Self::new(0, leaf.0.wrapping_add(1) as u32)
    }

    /// Whether it has no leaves of its own.
    pub const fn is_shared(self) -> bool {
        (self.first() as usize) < Self::SHARED
    }

    /// The leaf of a group made by [`Group::uniform`].
    #[inline(always)]
    pub const fn uniform_leaf(self) -> Leaf {
        Leaf((self.first() as u16).wrapping_sub(1))
    }

    /// The place of the leaf of a slot, the low five bits of `slot`.
    #[inline(always)]
    pub const fn place(self, slot: u32) -> usize {
        self.first() as usize + self.rank(slot)
    }

    /// How many leaves there are before the leaf of a slot.
    #[inline(always)]
    const fn rank(self, slot: u32) -> usize {
        // The later slots are shifted out.
        ((self.0 as u32) << (31 - slot % 32)).count_ones() as usize
    }

    /// The place of the first leaf.
    #[inline(always)]
    pub const fn first(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Number of leaves.
    pub const fn leaves(self) -> usize {
        self.rank(31) + 1
    }

    /// The first of the two places with the number of the block of a slot, after all leaves.
    #[inline(always)]
    pub const fn block_place(self, slot: u32) -> usize {
        self.first() as usize + self.leaves() + 2 * self.rank(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_returns_the_places_of_its_leaves() {
        let group = Group::new(0b1000_0000_0000_0000_0000_0001_0001_0010, 100);
        let places: Vec<usize> = (0..32).map(|slot| group.place(slot)).collect();
        assert_eq!(places[..10], [100, 101, 101, 101, 102, 102, 102, 102, 103, 103]);
        assert_eq!((places[30], places[31], group.leaves()), (103, 104, 5));
        assert_eq!((group.block_place(0), group.block_place(31)), (105, 113));
    }

    #[test]
    fn leaves_return_their_next_hop() {
        let default = NextHopId(3);
        for id in [0, 1, 0x7fff].map(NextHopId) {
            let leaf = Leaf::of(Some(id));
            assert_eq!((leaf.id(default), Group::uniform(leaf).uniform_leaf()), (id, leaf));
        }
        assert_eq!((Leaf::NONE.id(default), Group::default()), (default, Group::uniform(Leaf::NONE)));
        assert_eq!(Group::default().uniform_leaf(), Leaf::NONE);
    }
}
