//! Where the lines of nodes are kept.
//!
//! Blocks that were given back are used again for nodes of the same number of lines only. How much is lost by that is
//! bounded by how much was ever in use of each size at once.

use super::node::{Entry, Line, MAX_LINES, expand};

/// Lines of nodes and tests.
pub(super) struct Arena {
    lines: Vec<Line>,
    /// First lines of free blocks, by the number of lines less one.
    free: [Vec<u32>; MAX_LINES],
    /// Most lines.
    limit: u32,
}

impl Arena {
    pub fn new(limit: u32) -> Self {
        Self { lines: Vec::new(), free: Default::default(), limit: limit.min(Entry::MAX_LINE) }
    }

    /// All lines, to read.
    #[inline(always)]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Keeps a block of 1 to [`MAX_LINES`] lines: its first line; `None` when the arena is full.
    pub fn put(&mut self, block: &[Line]) -> Option<u32> {
        if let Some(first) = self.free.get_mut(block.len() - 1)?.pop() {
            let first_line = first as usize;
            self.lines[first_line..first_line + block.len()].copy_from_slice(block);
            return Some(first);
        }
        let first = u32::try_from(self.lines.len()).ok()?;
        if first as usize + block.len() > self.limit as usize {
            return None;
        }
        self.lines.extend_from_slice(block);
        Some(first)
    }

    /// Gives a block back.
    pub fn release(&mut self, first: usize, lines: usize) {
        self.free[lines - 1].push(first as u32);
    }

    /// Gives back everything that an entry leads to.
    pub fn release_tree(&mut self, entry: Entry) {
        if entry.is_node() {
            let (slots, lines) = expand(&self.lines, entry.line());
            self.release(entry.line(), lines);
            for slot in slots {
                // Entries that are no leaf are each there once.
                self.release_tree(slot);
            }
        } else if !entry.is_leaf() {
            self.release(entry.line(), 1);
        }
    }

    /// Lines in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        let free: usize = self.free.iter().enumerate().map(|(n, list)| (n + 1) * list.len()).sum();
        self.lines.len() - free
    }

    pub fn memory(&self) -> usize {
        let free: usize = self.free.iter().map(Vec::capacity).sum();
        self.lines.capacity() * size_of::<Line>() + free * size_of::<u32>()
    }
}
