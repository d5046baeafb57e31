//! Where the lines of nodes are kept.
//!
//! There are blocks of one line, of a node's, and of a node's of leaves; what was given back is used again for the same size only.

use super::node::{Entry, Kind, Line, SLOTS, entry_of_slot};
#[cfg(test)]
use super::node::{LEAVES_LINES, NODE_LINES};
use super::pages::Room;

/// Lines that there is room for from the first one on.
const FEW: usize = 64;

/// Lines of nodes and tests.
pub(super) struct Arena {
    room: Room,
    /// Lines of it that were ever used.
    used: usize,
    /// Free lines that are alone.
    single: Vec<u32>,
    /// First lines of free blocks of a node.
    nodes: Vec<u32>,
    /// And of a node of leaves.
    leaves: Vec<u32>,
    /// Most lines.
    limit: u32,
}

impl Arena {
    pub fn new(limit: u32) -> Self {
        let limit = limit.min(Entry::MAX_LINE);
        Self { room: Room::new(0), used: 0, single: Vec::new(), nodes: Vec::new(), leaves: Vec::new(), limit }
    }

    /// All lines, to read.
    #[inline(always)]
    pub fn lines(&self) -> &[Line] {
        &self.room
    }

    /// Keeps a test; `None` when there is no room.
    pub fn put_test(&mut self, line: Line) -> Option<Entry> {
        let free = self.single.pop();
        self.put(free, &[line]).map(Entry::test)
    }

    /// Keeps a node with these entries; `None` when there is no room.
    pub fn put_node(&mut self, slots: &[Entry; SLOTS]) -> Option<Entry> {
        if slots.iter().all(|entry| entry.is_leaf()) {
            let free = self.leaves.pop();
            return self.put(free, &Line::leaves(slots)).map(Entry::leaves);
        }
        let free = self.nodes.pop();
        self.put(free, &Line::node(slots)).map(Entry::node)
    }

    /// Writes a block where it was free, or behind all others.
    fn put(&mut self, free: Option<u32>, block: &[Line]) -> Option<u32> {
        let first = free.map_or(self.used, |first| first as usize);
        let end = first + block.len();
        if end > self.limit as usize {
            return None;
        }
        if end > self.room.len() {
            // Half as many again: what is copied for a line is a constant.
            let mut larger = Room::new((end + self.used / 2).max(FEW).min(self.limit as usize));
            larger[..self.used].copy_from_slice(&self.room[..self.used]);
            self.room = larger;
        }
        self.room[first..end].copy_from_slice(block);
        self.used = self.used.max(end);
        Some(first as u32)
    }

    /// The slots of a node; `None` for what is none.
    pub fn slots(&self, node: Entry) -> Option<[Entry; SLOTS]> {
        node.has_slots().then(|| std::array::from_fn(|slot| entry_of_slot(self.lines(), node, slot)))
    }

    /// Gives back the lines of a node or a test, and nothing that it leads to.
    pub fn release(&mut self, entry: Entry) {
        match entry.kind() {
            Kind::Leaf => {}
            Kind::Test => self.single.push(entry.line() as u32),
            Kind::Node => self.nodes.push(entry.line() as u32),
            Kind::Leaves => self.leaves.push(entry.line() as u32),
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

    /// Lines that are or were in use.
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
