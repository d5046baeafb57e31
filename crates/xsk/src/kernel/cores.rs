//! The cores on which the kernel receives: for each queue, the core that ran the XDP program for its last packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::map::{MapShape, new_map};
use crate::kernel::sys::{Mapping, page_size};

const MAP_TYPE_ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`.
const FLAG_MMAPABLE: u32 = 1 << 10;

/// A BPF array with one value: a word for each queue, which is a core's number plus one, or zero before the first
/// packet.
#[derive(Debug)]
pub(crate) struct CoreMap {
    map: OwnedFd,
    words: Arc<Mapping>,
}

impl CoreMap {
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        let value_bytes = queues * 4;
        let map = new_map(MapShape { kind: MAP_TYPE_ARRAY, value_bytes, entries: 1, flags: FLAG_MMAPABLE })?;
        let words = Mapping::map(map.as_fd(), (value_bytes as usize).next_multiple_of(page_size()))?;
        Ok(Self { map, words: Arc::new(words) })
    }

    /// The word of a queue.
    pub(crate) fn of_queue(&self, queue: u32) -> QueueCore {
        QueueCore { words: Arc::clone(&self.words), queue }
    }
}

impl AsFd for CoreMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// The word of a queue.
#[derive(Debug)]
pub(crate) struct QueueCore {
    words: Arc<Mapping>,
    queue: u32,
}

impl QueueCore {
    pub(crate) fn get(&self) -> Option<u32> {
        let at = self.queue as usize * size_of::<AtomicU32>();
        // SAFETY: aligned words in a page-aligned mapping, which the kernel writes and nobody moves; the borrow ends
        // here.
        let word = unsafe { self.words.word(at) }?.load(Ordering::Relaxed);
        word.checked_sub(1)
    }
}
