//! Nodes, in lines of 64 bytes. Whatever a node is, a look-up reads one line of it.
//!
//! A node tells 256 slots apart. Most have few different entries, in runs: then only these are kept, in one line.
//!
//! ```text
//!  runs    words of 32 bits 0..12: the entry of each run    bytes 48..64: the last slot of each run, 255 where there is none
//!  full    16 lines: the entry of each slot
//!  test    stands for a part of the trie with one prefix in it:
//!          words 0..4: the prefix    4..8: its mask    8: entry where the address lies in it    9: entry where it does not
//! ```

use std::hint::select_unpredictable;

use super::bits::{Bits, Prefix};
use crate::next_hop::NextHopId;

/// Slots of a node.
pub(super) const SLOTS: usize = 256;
/// Words of a line.
const WORDS: usize = 16;
/// Lines of a node with an entry for each slot.
pub(super) const FULL_LINES: usize = SLOTS / WORDS;
/// Most runs that are kept in one line.
const RUNS: usize = 12;

/// One line of the processor's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(align(64))]
pub(super) struct Line([u32; WORDS]);

/// Where a slot leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(super) struct Entry(u32);

/// What kind of thing an entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Leaf,
    Test,
    Runs,
    Full,
}

impl Entry {
    /// Behind which bit the kind is.
    const KIND: u32 = 30;
    const TEST: u32 = 1 << Self::KIND;
    const RUNS: u32 = 2 << Self::KIND;
    const FULL: u32 = 3 << Self::KIND;
    /// Numbers of lines are below this.
    pub const MAX_LINE: u32 = 1 << Self::KIND;

    pub const fn leaf(id: NextHopId) -> Self {
        Self(id.0 as u32)
    }

    pub const fn test(line: u32) -> Self {
        Self(Self::TEST | line)
    }

    pub const fn runs(line: u32) -> Self {
        Self(Self::RUNS | line)
    }

    pub const fn full(line: u32) -> Self {
        Self(Self::FULL | line)
    }

    #[inline(always)]
    pub const fn is_leaf(self) -> bool {
        self.0 < Self::TEST
    }

    #[inline(always)]
    pub const fn kind(self) -> Kind {
        match self.0 >> Self::KIND {
            0 => Kind::Leaf,
            1 => Kind::Test,
            2 => Kind::Runs,
            _ => Kind::Full,
        }
    }

    /// The line that a look-up of a slot reads.
    #[inline(always)]
    pub fn line_of_slot(self, slot: usize) -> usize {
        self.line() + select_unpredictable(self.kind() == Kind::Full, slot / WORDS, 0)
    }

    /// The next hop of a leaf.
    #[inline(always)]
    pub const fn id(self) -> NextHopId {
        NextHopId(self.0 as u16)
    }

    /// The first line of what is no leaf.
    #[inline(always)]
    pub const fn line(self) -> usize {
        (self.0 & (Self::MAX_LINE - 1)) as usize
    }
}

impl Line {
    /// A test.
    pub fn test<A: Bits>(prefix: Prefix<A>, inside: Entry, outside: Entry) -> Self {
        let mut line = Self::default();
        let ones = prefix.bits.last(0);
        line.0[..4].copy_from_slice(&prefix.bits.words());
        line.0[4..8].copy_from_slice(&ones.cut(prefix.length).words());
        (line.0[8], line.0[9]) = (inside.0, outside.0);
        line
    }

    /// The entry that a test leads to.
    #[inline(always)]
    pub fn tested<A: Bits>(&self, address: A) -> Entry {
        let [a, b, c, d, e, f, g, h, inside, outside, ..] = self.0;
        let lies_in = address.matches(&[a, b, c, d], &[e, f, g, h]);
        Entry(if lies_in { inside } else { outside })
    }

    /// The runs of these entries, if there are few enough.
    pub fn runs(slots: &[Entry; SLOTS]) -> Option<Self> {
        let mut line = Self([0; WORDS]);
        let mut ends = [u8::MAX; WORDS];
        let mut runs = 0;
        for (slot, entry) in slots.iter().enumerate() {
            if slots.get(slot + 1) == Some(entry) {
                continue;
            }
            *line.0[..RUNS].get_mut(runs)? = entry.0;
            ends[runs] = slot as u8;
            runs += 1;
        }
        for (word, ends) in line.0[RUNS..].iter_mut().zip(ends.as_chunks().0) {
            *word = u32::from_le_bytes(*ends);
        }
        Some(line)
    }

    /// The entry of a slot, of runs.
    #[inline(always)]
    pub fn entry_of_run(&self, slot: usize) -> Entry {
        let mut ends = [0; 16];
        for (bytes, word) in ends.as_chunks_mut().0.iter_mut().zip(&self.0[RUNS..]) {
            *bytes = word.to_le_bytes();
        }
        let before = ends.iter().map(|end| u8::from(*end < slot as u8)).sum::<u8>();
        Entry(self.0[usize::from(before) % WORDS])
    }

    /// The lines of a node with an entry for each slot.
    pub fn full(slots: &[Entry; SLOTS]) -> [Self; FULL_LINES] {
        let mut lines = [Self::default(); FULL_LINES];
        for (slot, entry) in slots.iter().enumerate() {
            lines[slot / WORDS].0[slot % WORDS] = entry.0;
        }
        lines
    }
}

/// The entry of a slot of a full node, in the line that has it.
#[inline(always)]
pub(super) fn entry_of_slot(lines: &[Line], line: usize, slot: usize) -> Entry {
    Entry(lines[line].0[slot % WORDS])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slots(runs: &[(u16, usize)]) -> [Entry; SLOTS] {
        let mut slots = [Entry::default(); SLOTS];
        let entries = runs.iter().flat_map(|(id, length)| std::iter::repeat_n(*id, *length));
        for (slot, id) in slots.iter_mut().zip(entries) {
            *slot = Entry::leaf(NextHopId(id));
        }
        slots
    }

    proptest! {
        #[test]
        fn a_node_has_the_entries_that_it_was_made_of(runs in proptest::collection::vec((0u16..4, 1usize..60), 1..30)) {
            let slots = slots(&runs);
            let count = 1 + slots.windows(2).filter(|pair| pair[0] != pair[1]).count();
            let line = Line::runs(&slots);
            prop_assert_eq!(line.is_some(), count <= RUNS);
            let full = Line::full(&slots);
            for (slot, entry) in slots.into_iter().enumerate() {
                prop_assert_eq!(entry_of_slot(&full, Entry::full(0).line_of_slot(slot), slot), entry);
                if let Some(line) = line {
                    prop_assert_eq!(line.entry_of_run(slot), entry);
                }
            }
        }
    }

    #[test]
    fn runs_of_one_slot_at_both_ends() {
        let mut runs: Vec<(u16, usize)> = (0..11).map(|id| (id, 1)).collect();
        runs.push((11, 245));
        let line = Line::runs(&slots(&runs)).unwrap();
        assert_eq!([0, 10, 11, 255].map(|slot| line.entry_of_run(slot).id().0), [0, 10, 11, 11]);
        runs.reverse();
        let line = Line::runs(&slots(&runs)).unwrap();
        assert_eq!([0, 244, 245, 255].map(|slot| line.entry_of_run(slot).id().0), [11, 11, 10, 0]);
    }

    #[test]
    fn kinds_of_entries_are_told_apart() {
        let leaf = Entry::leaf(NextHopId(0x7fff));
        assert!(leaf.is_leaf() && leaf.kind() == Kind::Leaf && leaf.id() == NextHopId(0x7fff));
        for (entry, kind) in
            [(Entry::test(5), Kind::Test), (Entry::runs(5), Kind::Runs), (Entry::full(5), Kind::Full)]
        {
            assert!(!entry.is_leaf() && entry.kind() == kind && entry.line() == 5);
        }
    }
}
