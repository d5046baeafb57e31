//! Where the lines of nodes are kept.
//!
//! There are blocks of one line and of a full node's; what was given back is used again for the same size only.

#[cfg(test)]
use super::node::FULL_LINES;
use super::node::{Entry, Kind, Line, SLOTS, entry_of_slot};

/// Lines of nodes and tests.
pub(super) struct Arena {
    lines: Vec<Line>,
    /// Free lines that are alone.
    single: Vec<u32>,
    /// First lines of free blocks of a full node.
    full: Vec<u32>,
    /// Most lines.
    limit: u32,
}

impl Arena {
    pub fn new(limit: u32) -> Self {
        Self { lines: Vec::new(), single: Vec::new(), full: Vec::new(), limit: limit.min(Entry::MAX_LINE) }
    }

    /// All lines, to read.
    #[inline(always)]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Keeps a test; `None` when there is no room.
    pub fn put_test(&mut self, line: Line) -> Option<Entry> {
        Self::put(&mut self.lines, self.limit, &mut self.single, &[line]).map(Entry::test)
    }

    /// Keeps a node with these entries; `None` when there is no room.
    pub fn put_node(&mut self, slots: &[Entry; SLOTS]) -> Option<Entry> {
        match Line::runs(slots) {
            Some(line) => Self::put(&mut self.lines, self.limit, &mut self.single, &[line]).map(Entry::runs),
            None => {
                let block = Line::full(slots);
                Self::put(&mut self.lines, self.limit, &mut self.full, &block).map(Entry::full)
            }
        }
    }

    fn put(lines: &mut Vec<Line>, limit: u32, free: &mut Vec<u32>, block: &[Line]) -> Option<u32> {
        if let Some(first) = free.pop() {
            let place = first as usize;
            lines[place..place + block.len()].copy_from_slice(block);
            return Some(first);
        }
        if lines.len() + block.len() > limit as usize {
            return None;
        }
        let first = lines.len() as u32;
        lines.extend_from_slice(block);
        Some(first)
    }

    /// The slots of a node; `None` for what is none.
    pub fn slots(&self, node: Entry) -> Option<[Entry; SLOTS]> {
        match node.kind() {
            Kind::Runs => Some(std::array::from_fn(|slot| self.lines[node.line()].entry_of_run(slot))),
            Kind::Full => {
                Some(std::array::from_fn(|slot| entry_of_slot(&self.lines, node.line_of_slot(slot), slot)))
            }
            Kind::Leaf | Kind::Test => None,
        }
    }

    /// Gives back the lines of a node or a test, and nothing that it leads to.
    pub fn release(&mut self, entry: Entry) {
        match entry.kind() {
            Kind::Leaf => {}
            Kind::Test | Kind::Runs => self.single.push(entry.line() as u32),
            Kind::Full => self.full.push(entry.line() as u32),
        }
    }

    /// Gives back everything that an entry leads to.
    pub fn release_tree(&mut self, entry: Entry) {
        if let Some(slots) = self.slots(entry) {
            // Entries that are no leaf are each there once.
            slots.into_iter().for_each(|slot| self.release_tree(slot));
        }
        self.release(entry);
    }

    /// Lines in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.lines.len() - self.single.len() - self.full.len() * FULL_LINES
    }

    pub fn memory(&self) -> usize {
        let free = self.single.capacity() + self.full.capacity();
        self.lines.capacity() * size_of::<Line>() + free * size_of::<u32>()
    }
}
