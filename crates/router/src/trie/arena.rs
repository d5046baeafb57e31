// SPDX-License-Identifier: Apache-2.0
//! Storage of the trie's nodes, in cache lines.
//!
//! Blocks come in three sizes: one line, a node, a node of leaves. A freed block is reused for the same size only.

use super::node::{Entry, Kind, Line, SLOTS, entry_of_slot};
#[cfg(test)]
use super::node::{LEAVES_LINES, NODE_LINES};
use crate::memory::{Buffer, Pages};

/// Initial capacity in lines.
const MIN_LINES: usize = 64;

/// Lines of nodes and tests.
pub(super) struct Arena {
    buffer: Buffer<Line>,
    /// Lines ever used.
    used: usize,
    /// Free single lines.
    single: Vec<u32>,
    /// First lines of free nodes.
    nodes: Vec<u32>,
    /// First lines of free nodes of leaves.
    leaves: Vec<u32>,
    /// Most lines.
    limit: u32,
    /// A block was refused.
    was_full: bool,
}

impl Arena {
    pub fn new(limit: u32) -> Self {
        let limit = limit.min(Entry::MAX_LINE);
        Self {
            buffer: Buffer::new(0, Pages::Huge),
            used: 0,
            single: Vec::new(),
            nodes: Vec::new(),
            leaves: Vec::new(),
            limit,
            was_full: false,
        }
    }

    /// All lines, for reading.
    #[inline(always)]
    pub fn lines(&self) -> &[Line] {
        &self.buffer
    }

    /// Stores a test; `None` if the arena is full.
    pub fn put_test(&mut self, line: Line) -> Option<Entry> {
        let free = self.single.pop();
        self.put(free, &[line]).map(Entry::test)
    }

    /// Stores a node with these entries; `None` if the arena is full.
    pub fn put_node(&mut self, slots: &[Entry; SLOTS]) -> Option<Entry> {
        if slots.iter().all(|entry| entry.is_leaf()) {
            let free = self.leaves.pop();
            return self.put(free, &Line::leaves(slots)).map(Entry::leaves);
        }
        let free = self.nodes.pop();
        self.put(free, &Line::node(slots)).map(Entry::node)
    }

    /// Writes a block to a free place, or after all others.
    fn put(&mut self, free: Option<u32>, block: &[Line]) -> Option<u32> {
        let first = free.map_or(self.used, |first| first as usize);
        let end = first + block.len();
        if end > self.limit as usize {
            self.was_full = true;
            return None;
        }
        let limit = self.limit as usize;
        self.buffer.reserve(end.max(MIN_LINES.min(limit)), self.used, limit);
        self.buffer[first..end].copy_from_slice(block);
        self.used = self.used.max(end);
        Some(first as u32)
    }

    /// The slots of a node; `None` if the entry is not a node.
    pub fn slots(&self, node: Entry) -> Option<[Entry; SLOTS]> {
        node.has_slots().then(|| std::array::from_fn(|slot| entry_of_slot(self.lines(), node, slot)))
    }

    /// The line of a test; `None` if the entry is not a test.
    pub fn test(&self, test: Entry) -> Option<Line> {
        self.lines().get(test.line()).filter(|_| test.is_test()).copied()
    }

    /// Frees the lines of a node or test, but not its children.
    pub fn release(&mut self, entry: Entry) {
        match entry.kind() {
            Kind::Leaf => {}
            Kind::Test => self.single.push(entry.line() as u32),
            Kind::Node => self.nodes.push(entry.line() as u32),
            Kind::Leaves => self.leaves.push(entry.line() as u32),
        }
    }

    /// Frees an entry and all its children.
    pub fn release_tree(&mut self, entry: Entry) {
        if let Some(slots) = self.slots(entry) {
            // A node or test has exactly one parent.
            slots.into_iter().for_each(|slot| self.release_tree(slot));
        }
        if let Some(line) = self.test(entry) {
            let (inside, _) = line.results();
            self.release_tree(inside);
        }
        self.release(entry);
    }

    /// Whether it refused a block since it was made.
    pub const fn was_full(&self) -> bool {
        self.was_full
    }

    #[cfg(test)]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Lines ever used.
    #[cfg(test)]
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Lines in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        let free = self.single.len() + self.nodes.len() * NODE_LINES + self.leaves.len() * LEAVES_LINES;
        self.used - free
    }

    pub fn memory(&self) -> usize {
        let free = self.single.capacity() + self.nodes.capacity() + self.leaves.capacity();
        size_of_val(self.lines()) + free * size_of::<u32>()
    }
}
