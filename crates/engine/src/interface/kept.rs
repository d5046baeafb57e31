// SPDX-License-Identifier: Apache-2.0
//! What the next netvmd needs to go on with interfaces that this one has made. In: the queues of TAP devices. Out: the
//! same, from a process that outlives netvmd ([`netvm_fd_store`]). So containers keep their interfaces when netvmd is
//! killed or restarted, if the next one comes in time.
//!
//! An interface has a name in the store, and a record of all that it was made by: it is taken over only by a port that
//! would make it the same way. Everything else about it the kernel says. What is not taken over is removed, as the
//! name of the interface is needed.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_fd_store::{Store, StoredFiles};
use netvm_vnet::{Queue, Watch, container};
use rustix::fs::{MemfdFlags, memfd_create};

/// Numbers of files. The store looks at the first one, which fails when its device is gone. Whatever is kept in another
/// way gets other numbers, so that no netvmd takes over what it does not know.
const DEVICE: u32 = 0;
const RECORD: u32 = 1 << 16;
const FIRST_QUEUE: u32 = RECORD + 1;
/// How names in the store begin.
const NAMES: &str = "interface ";
/// The name that this process has only to notice when the store ends.
const WATCH: &[u8] = b"watch";
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A store that does not work is left alone for so long.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The longest record.
const MAX_RECORD: u64 = 64 << 10;

/// The store of interfaces. Without one, nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct InterfaceStore {
    store: Option<Arc<Store>>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Its other end closes with the store.
    watch: Option<StoredFiles>,
    /// When the store did not work, and why, unless that was reported.
    trouble: Option<(Instant, Option<io::Error>)>,
    next_check: Option<Instant>,
    /// Interfaces that were taken over.
    adopted: usize,
}

impl InterfaceStore {
    /// One that keeps interfaces in this store.
    pub(crate) fn of(store: Arc<Store>) -> Self {
        Self { store: Some(store), state: RefCell::default() }
    }

    /// The files of a name, and those that another process has left. `None` without a store that works.
    fn take(&self, name: &str) -> Option<(StoredFiles, Vec<(u32, OwnedFd)>)> {
        let store = self.store.as_ref()?;
        let mut state = self.state.borrow_mut();
        if state.trouble.as_ref().is_some_and(|(since, _)| since.elapsed() < RETRY_AFTER) {
            return None;
        }
        let mut take = || {
            if state.watch.is_none() {
                state.watch = Some(store.take(WATCH)?.0);
            }
            store.take(format!("{NAMES}{name}").as_bytes())
        };
        let taken = take();
        state.trouble = None;
        taken.map_err(|error| state.trouble = Some((Instant::now(), Some(error)))).ok()
    }

    /// Opens the name of an interface that is made by what `record` says.
    pub(super) fn open(&self, name: String, record: String) -> (Kept, Option<Vec<OwnedFd>>) {
        let mut kept = Kept { name, record, files: None, queues: Vec::new() };
        let Some((files, left)) = self.take(&kept.name) else { return (kept, None) };
        kept.files = Some(files);
        let queues = kept.queues_of(left);
        (kept, queues)
    }

    /// Notes that an interface was taken over.
    pub(super) fn note_adopted(&self) {
        self.state.borrow_mut().adopted += 1;
    }

    /// Ends what no port has taken over. Returns how many interfaces ports have taken over so far.
    pub(crate) fn close_left(&self) -> usize {
        if let Some(store) = &self.store {
            close_left_interfaces(store);
        }
        self.state.borrow().adopted
    }

    /// Whether files have to be kept again, as the store has ended; and, if it cannot be started, why. `None`: there is
    /// nothing to do.
    pub(crate) fn check(&self, now: Instant) -> Option<Option<String>> {
        let mut state = self.state.borrow_mut();
        if self.store.is_none() || state.next_check.is_some_and(|at| now < at) {
            return None;
        }
        state.next_check = Some(now + CHECK_INTERVAL);
        if state.watch.take_if(|watch| watch.is_lost()).is_some() {
            return Some(None);
        }
        if let Some((since, error)) = &mut state.trouble {
            if let Some(error) = error.take() {
                return Some(Some(error.to_string()));
            }
            if since.elapsed() >= RETRY_AFTER {
                return Some(None);
            }
        }
        None
    }
}

/// Ends the interfaces in a store that no process has taken over.
pub fn close_left_interfaces(store: &Store) {
    // If this fails, the store ends them later.
    let _ = store.close_left(NAMES.as_bytes());
}

/// The files of one interface in the store.
#[derive(Debug)]
pub(super) struct Kept {
    name: String,
    record: String,
    /// `None`: nothing is kept.
    files: Option<StoredFiles>,
    queues: Vec<Watch>,
}

impl Kept {
    /// The queues of an interface that another process has left, if it was made in the same way. Removes another one.
    fn queues_of(&self, mut left: Vec<(u32, OwnedFd)>) -> Option<Vec<OwnedFd>> {
        left.sort_by_key(|(number, _)| *number);
        let device = left.iter().position(|(number, _)| *number == DEVICE).map(|n| left.remove(n).1)?;
        let record = left.iter().position(|(number, _)| *number == RECORD).map(|n| left.remove(n).1);
        let is_same = record.and_then(read).is_some_and(|record| record == self.record);
        let are_queues = left.iter().zip(FIRST_QUEUE..).all(|((number, _), wanted)| *number == wanted);
        if !is_same || !are_queues {
            // If this fails, it ends with its last descriptor.
            let _ = container::remove(&device);
            return None;
        }
        Some(left.into_iter().map(|(_, queue)| queue).collect())
    }

    /// Keeps an interface, which was made anew, or taken over.
    pub(super) fn keep(&mut self, queues: &[Queue], is_adopted: bool) {
        self.queues = queues.iter().map(Queue::watch).collect();
        if !is_adopted {
            self.put();
        }
    }

    fn put(&mut self) {
        self.files.take_if(|files| put(files, &self.record, &self.queues).is_err());
    }

    /// Keeps it again, after the store has ended.
    pub(super) fn keep_again(&mut self, store: &InterfaceStore) {
        if !self.queues.is_empty() && self.files.as_ref().is_none_or(StoredFiles::is_lost) {
            self.files = store.take(&self.name).map(|(files, _)| files);
            self.put();
        }
    }

    /// Ends the interface, of which others may have descriptors.
    pub(super) fn end(mut self) {
        let Some(files) = self.files.take() else { return };
        if let Some(queue) = self.queues.first() {
            // It may have gone.
            let _ = container::remove(queue);
        }
        let _ = files.forget();
    }
}

fn put(files: &StoredFiles, record: &str, queues: &[Watch]) -> io::Result<()> {
    files.forget()?;
    let Some(device) = queues.first() else { return Ok(()) };
    let mut file = File::from(memfd_create("netvm-interface", MemfdFlags::CLOEXEC)?);
    file.write_all(record.as_bytes())?;
    files.put(RECORD, &file)?;
    queues.iter().zip(FIRST_QUEUE..).try_for_each(|(queue, number)| files.put(number, queue))?;
    files.put(DEVICE, device)
}

fn read(record: OwnedFd) -> Option<String> {
    let mut file = File::from(record);
    file.rewind().ok()?;
    let mut text = String::new();
    file.take(MAX_RECORD).read_to_string(&mut text).ok()?;
    Some(text)
}
