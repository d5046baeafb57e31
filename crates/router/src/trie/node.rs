// SPDX-License-Identifier: Apache-2.0
//! Nodes and their layout in cache lines of 64 bytes.
//!
//! ```text
//!  node    16 lines: 256 entries of 32 bits
//!  leaves  8 lines: 256 entries of 16 bits, all leaves; the even one in the low half of a word
//!  test    one line, in place of nodes that have a single child each:
//!          words 0..4: a prefix    4..8: its mask    8: entry for addresses inside it    9: leaf for the others
//!          10: bits of the prefix, a multiple of 8 if the entry for addresses inside it has slots
//!
//!  entry   bits 30 and 31: 0 leaf, 1 test, 2 node, 3 leaves    bits 0..28: the first line
//!          of a leaf: bit 15: only the default route matches    bits 0..15: the next hop
//! ```

use std::hint::select_unpredictable;

use super::bits::{from_words, matches, words};
use crate::memory::Plain;
use crate::next_hop::NextHopId;
use crate::prefix::{Bits, Prefix};

/// Slots of a node.
pub(super) const SLOTS: usize = 256;
/// 32-bit words per line.
pub(super) const WORDS: usize = 16;
/// Lines of a node.
pub(super) const NODE_LINES: usize = SLOTS / WORDS;
/// Lines of a node whose slots are all leaves.
pub(super) const LEAVES_LINES: usize = NODE_LINES / 2;

/// One cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line([u32; WORDS]);

// SAFETY: the only field is an array of numbers.
#[allow(unsafe_code, reason = "promises that any bits are valid")]
unsafe impl Plain for Line {}

/// The content of a slot: a next hop, or a reference to a node or test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(super) struct Entry(u32);

/// What an entry refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Leaf,
    Test,
    Node,
    Leaves,
}

impl Entry {
    /// Only the default route matches.
    pub const NONE: Self = Self(1 << 15);
    const TEST: u32 = 1 << 30;
    const NODE: u32 = 2 << 30;
    /// Entries of this value or more refer to nodes of leaves.
    pub const LEAVES: u32 = 3 << 30;
    /// Line numbers are below this, so that the numbers of their words fit in 32 bits.
    pub const MAX_LINE: u32 = 1 << 28;

    pub const fn leaf(id: NextHopId) -> Self {
        Self(id.0 as u32)
    }

    pub const fn test(line: u32) -> Self {
        Self(Self::TEST | line)
    }

    pub const fn node(line: u32) -> Self {
        Self(Self::NODE | line)
    }

    pub const fn leaves(line: u32) -> Self {
        Self(Self::LEAVES | line)
    }

    /// The entry stored as this word.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The word that stores the entry.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub const fn is_leaf(self) -> bool {
        self.0 < Self::TEST
    }

    #[inline(always)]
    pub const fn is_test(self) -> bool {
        self.0 >> 30 == 1
    }

    /// Whether it refers to a node, of leaves or not.
    #[inline(always)]
    pub const fn has_slots(self) -> bool {
        self.0 >= Self::NODE
    }

    pub const fn kind(self) -> Kind {
        match self.0 >> 30 {
            0 => Kind::Leaf,
            1 => Kind::Test,
            2 => Kind::Node,
            _ => Kind::Leaves,
        }
    }

    /// The next hop of a leaf; `default` if only the default route matches.
    #[inline(always)]
    pub const fn id(self, default: NextHopId) -> NextHopId {
        if self.0 & Self::NONE.0 == 0 { NextHopId(self.0 as u16) } else { default }
    }

    /// The first line of a node or test.
    #[inline(always)]
    pub const fn line(self) -> usize {
        (self.0 & (Self::MAX_LINE - 1)) as usize
    }

    /// Number of the word of a slot, among all lines' words; arbitrary if this is not a node.
    #[inline(always)]
    pub const fn word(self, slot: u32) -> u32 {
        // The shift drops the kind.
        (self.0 << WORDS.trailing_zeros()).wrapping_add(slot >> (self.0 >= Self::LEAVES) as u32)
    }

    /// The entry of a slot of this node, which has `word` at [`Entry::word`].
    #[inline(always)]
    pub fn select(self, word: u32, slot: u32) -> Self {
        let half = word >> ((slot & 1) * 16) & 0xffff;
        Self(select_unpredictable(self.0 >= Self::LEAVES, half, word))
    }
}

impl Line {
    /// Builds a test.
    pub fn test(prefix: Prefix<u128>, inside: Entry, outside: Entry) -> Self {
        let mut line = Self::default();
        line.0[..4].copy_from_slice(&words(prefix.bits));
        line.0[4..8].copy_from_slice(&words(u128::mask(prefix.length)));
        (line.0[8], line.0[9], line.0[10]) = (inside.0, outside.0, prefix.length.into());
        line
    }

    /// The entry for addresses inside the prefix of a test, and the leaf for the others.
    #[inline(always)]
    pub const fn results(&self) -> (Entry, Entry) {
        (Entry(self.0[8]), Entry(self.0[9]))
    }

    /// Number of bits of the prefix of a test.
    #[inline(always)]
    pub const fn tested_bits(&self) -> u8 {
        self.0[10] as u8
    }

    /// The prefix of a test, and its mask.
    #[inline(always)]
    pub fn tested_prefix(&self) -> (u128, u128) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        (from_words(&[a, b, c, d]), from_words(&[e, f, g, h]))
    }

    /// The entry that a test selects for an address.
    #[inline(always)]
    pub fn tested(&self, address: u128) -> Entry {
        let [a, b, c, d, e, f, g, h, inside, outside, ..] = self.0;
        Entry(select_unpredictable(matches(address, &[a, b, c, d], &[e, f, g, h]), inside, outside))
    }

    /// The lines of a node.
    pub fn node(slots: &[Entry; SLOTS]) -> [Self; NODE_LINES] {
        let mut lines = [Self::default(); NODE_LINES];
        for (line, slots) in lines.iter_mut().zip(slots.as_chunks::<WORDS>().0) {
            line.0 = slots.map(|entry| entry.0);
        }
        lines
    }

    /// The lines of a node whose slots are all leaves.
    pub fn leaves(slots: &[Entry; SLOTS]) -> [Self; LEAVES_LINES] {
        let mut lines = [Self::default(); LEAVES_LINES];
        for (line, slots) in lines.iter_mut().zip(slots.as_chunks::<{ 2 * WORDS }>().0) {
            for (word, pair) in line.0.iter_mut().zip(slots.as_chunks().0) {
                let [low, high] = pair;
                *word = low.0 | high.0 << 16;
            }
        }
        lines
    }
}

/// The node of leaves that an entry refers to; `None` if it is not one.
#[inline(always)]
pub(super) fn leaves_of(lines: &[Line], node: Entry) -> Option<&[Line; LEAVES_LINES]> {
    lines.get(node.line()..)?.first_chunk().filter(|_| node.0 >= Entry::LEAVES)
}

/// The leaf in a slot of a node of leaves.
#[inline(always)]
pub(super) fn leaf_of_slot(node: &[Line; LEAVES_LINES], slot: u8) -> Entry {
    let word = usize::from(slot / 2);
    Entry(node[word / WORDS].0[word % WORDS] >> (slot % 2 * 16) & 0xffff)
}

/// The entry in a slot of `node`; arbitrary if `node` is not a node.
#[inline(always)]
pub(super) fn entry_of_slot(lines: &[Line], node: Entry, slot: usize) -> Entry {
    let of_leaves = node.0 >= Entry::LEAVES;
    let word = slot >> u32::from(of_leaves);
    let line = select_unpredictable(node.has_slots(), node.line() + word / WORDS, 0);
    let found = lines[line].0[word % WORDS];
    let half = found >> (slot % 2 * 16) & 0xffff;
    Entry(select_unpredictable(of_leaves, half, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_returns_the_entries_it_was_made_of() {
        let leaves: [Entry; SLOTS] = std::array::from_fn(|n| match n % 7 {
            0 => Entry::NONE,
            _ => Entry::leaf(NextHopId(n as u16 * 127)),
        });
        let mut slots = leaves;
        slots[9] = Entry::test(5);
        slots[200] = Entry::node(Entry::MAX_LINE - 1);
        // Other lines first, so that the nodes do not start at 0.
        let mut lines = vec![Line::default(); 3];
        lines.extend(Line::leaves(&leaves));
        lines.extend(Line::node(&slots));
        for slot in 0..SLOTS {
            assert_eq!(entry_of_slot(&lines, Entry::leaves(3), slot), leaves[slot]);
            assert_eq!(entry_of_slot(&lines, Entry::node(3 + LEAVES_LINES as u32), slot), slots[slot]);
        }
    }

    #[test]
    fn entries_return_their_kind() {
        let default = NextHopId(7);
        let leaf = Entry::leaf(NextHopId(0x7fff));
        assert!(leaf.is_leaf() && leaf.kind() == Kind::Leaf && leaf.id(default) == NextHopId(0x7fff));
        assert!(Entry::NONE.is_leaf() && Entry::NONE.id(default) == default);
        let last = Entry::MAX_LINE - 1;
        for (entry, kind) in [
            (Entry::test(last), Kind::Test),
            (Entry::node(last), Kind::Node),
            (Entry::leaves(last), Kind::Leaves),
        ] {
            assert!(!entry.is_leaf() && entry.kind() == kind && entry.line() == last as usize);
            assert_eq!((entry.is_test(), entry.has_slots()), (kind == Kind::Test, kind != Kind::Test));
        }
    }
}
