// SPDX-License-Identifier: Apache-2.0
//! The cores on which the kernel receives: for each queue, the core that ran the XDP program for its last packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use netvm_bpf::WordMap;

/// A word for each queue, which is a core's number plus one, or zero before the first packet.
#[derive(Debug)]
pub(crate) struct CoreMap(Arc<WordMap>);

impl CoreMap {
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        Ok(Self(Arc::new(WordMap::new(queues * size_of::<AtomicU32>() as u32)?)))
    }

    /// The word of a queue.
    pub(crate) fn of_queue(&self, queue: u32) -> QueueCore {
        QueueCore { words: Arc::clone(&self.0), queue }
    }
}

impl AsFd for CoreMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The word of a queue.
#[derive(Debug)]
pub(crate) struct QueueCore {
    words: Arc<WordMap>,
    queue: u32,
}

impl QueueCore {
    pub(crate) fn get(&self) -> Option<u32> {
        let at = self.queue as usize * size_of::<AtomicU32>();
        self.words.word(at)?.load(Ordering::Relaxed).checked_sub(1)
    }
}
