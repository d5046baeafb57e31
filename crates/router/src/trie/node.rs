//! Nodes, in lines of 64 bytes.
//!
//! A node tells 256 slots apart, most of which have the entry of the slot before. Only where another run of equal entries
//! begins is an entry stored (Degermark et al., "Small forwarding tables for fast routing lookups", SIGCOMM 1997, section
//! 3; with a bit for each slot as in Asai and Ohara, "Poptrie", SIGCOMM 2015). In words of 32 bits:
//!
//! ```text
//!  0..8   bit n of word n / 32: a run begins at slot n; always at slot 0
//!  8..10  a byte for each of those words: runs that begin before it
//!  10..   the entries of the runs, in the next lines too
//! ```
//!
//! A test stands for a part of the trie with one prefix in it:
//!
//! ```text
//!  0..4   the prefix    4..8   its mask    8   entry where the address lies in it    9   entry where it does not
//! ```

use super::bits::{Bits, Prefix};
use crate::next_hop::NextHopId;

/// Slots of a node.
pub(super) const SLOTS: usize = 256;
/// Words before the entries of a node.
const HEAD: usize = 10;
/// Words of a line.
const WORDS: usize = 16;
/// Lines of the largest node.
pub(super) const MAX_LINES: usize = (HEAD + SLOTS).div_ceil(WORDS);

/// One line of the processor's cache.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Line(pub [u32; WORDS]);

/// Where a slot leads: a next hop, a node, or a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(super) struct Entry(u32);

impl Entry {
    const NODE: u32 = 1 << 31;
    const TEST: u32 = 1 << 30;
    /// Numbers of lines are below this.
    pub const MAX_LINE: u32 = 1 << 30;

    pub const fn leaf(id: NextHopId) -> Self {
        Self(id.0 as u32)
    }

    pub const fn node(line: u32) -> Self {
        Self(Self::NODE | line)
    }

    pub const fn test(line: u32) -> Self {
        Self(Self::TEST | line)
    }

    #[inline(always)]
    pub const fn is_leaf(self) -> bool {
        self.0 < Self::TEST
    }

    #[inline(always)]
    pub const fn is_node(self) -> bool {
        self.0 >= Self::NODE
    }

    /// The next hop of a leaf.
    #[inline(always)]
    pub const fn id(self) -> NextHopId {
        NextHopId(self.0 as u16)
    }

    /// The first line of a node or a test.
    #[inline(always)]
    pub const fn line(self) -> usize {
        (self.0 & (Self::MAX_LINE - 1)) as usize
    }
}

/// The entry of a slot of the node that begins at a line.
#[inline(always)]
pub(super) fn entry_of(lines: &[Line], first: usize, slot: usize) -> Entry {
    let head = &lines[first].0;
    let word = slot / 32 % 8;
    let begun = head[word] & u32::MAX >> (31 - slot % 32);
    let before = head[8 + word / 4].to_le_bytes()[word % 4];
    // The run that slot 0 begins is the first: one less than have begun.
    let place = HEAD - 1 + usize::from(before) + begun.count_ones() as usize;
    Entry(lines[first + place / WORDS].0[place % WORDS])
}

/// The entry that a test leads to.
#[inline(always)]
pub(super) fn tested<A: Bits>(line: &Line, address: A) -> Entry {
    let [a, b, c, d, e, f, g, h, inside, outside, ..] = line.0;
    let lies_in = address.matches(&[a, b, c, d], &[e, f, g, h]);
    Entry(if lies_in { inside } else { outside })
}

/// The line of a test.
pub(super) fn test_line<A: Bits>(prefix: Prefix<A>, inside: Entry, outside: Entry, ones: A) -> Line {
    let mut line = Line::default();
    line.0[..4].copy_from_slice(&prefix.bits.words());
    line.0[4..8].copy_from_slice(&ones.cut(prefix.length).words());
    (line.0[8], line.0[9]) = (inside.0, outside.0);
    line
}

/// The lines of a node with these entries, and how many they are.
pub(super) fn node_lines(slots: &[Entry; SLOTS]) -> ([Line; MAX_LINES], usize) {
    let mut lines = [Line::default(); MAX_LINES];
    let mut place = HEAD;
    for (slot, entry) in slots.iter().enumerate() {
        if slot % 32 == 0 {
            // At most 224 runs begin before the last word.
            let before = (place - HEAD) as u32;
            lines[0].0[8 + slot / 128] |= before << (slot / 32 % 4 * 8);
        }
        if slot == 0 || *entry != slots[slot - 1] {
            lines[0].0[slot / 32] |= 1 << (slot % 32);
            lines[place / WORDS].0[place % WORDS] = entry.0;
            place += 1;
        }
    }
    (lines, place.div_ceil(WORDS))
}

/// The entries of the node that begins at a line, and how many lines it has.
pub(super) fn expand(lines: &[Line], first: usize) -> ([Entry; SLOTS], usize) {
    let mut slots = [Entry::default(); SLOTS];
    for (slot, entry) in slots.iter_mut().enumerate() {
        *entry = entry_of(lines, first, slot);
    }
    let runs: u32 = lines[first].0[..8].iter().map(|word| word.count_ones()).sum();
    (slots, (HEAD + runs as usize).div_ceil(WORDS))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_node_has_the_entries_that_it_was_made_of(runs in proptest::collection::vec((0u16..4, 1usize..40), 1..300), offset in 0usize..3) {
            let mut slots = [Entry::default(); SLOTS];
            let entries = runs.iter().flat_map(|(id, length)| std::iter::repeat_n(*id, *length));
            for (slot, id) in slots.iter_mut().zip(entries) {
                *slot = Entry::leaf(NextHopId(id));
            }
            let (made, count) = node_lines(&slots);
            let mut lines = vec![Line([u32::MAX; WORDS]); offset];
            lines.extend_from_slice(&made[..count]);
            let (back, lines_back) = expand(&lines, offset);
            prop_assert_eq!((back, lines_back), (slots, count));
        }
    }

    #[test]
    fn the_largest_node_has_an_entry_for_each_slot() {
        let slots = std::array::from_fn(|slot| Entry::leaf(NextHopId(slot as u16)));
        let (lines, count) = node_lines(&slots);
        assert_eq!(count, MAX_LINES);
        assert_eq!(expand(&lines, 0), (slots, MAX_LINES));
    }

    #[test]
    fn kinds_of_entries_are_told_apart() {
        let (leaf, node, test) = (Entry::leaf(NextHopId(0x7fff)), Entry::node(5), Entry::test(6));
        assert!(leaf.is_leaf() && !leaf.is_node() && leaf.id() == NextHopId(0x7fff));
        assert!(!node.is_leaf() && node.is_node() && node.line() == 5);
        assert!(!test.is_leaf() && !test.is_node() && test.line() == 6);
    }
}
