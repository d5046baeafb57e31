// SPDX-License-Identifier: Apache-2.0
//! What the next netvmd needs to go on with interfaces that this one has made. In: the queues of TAP devices, the links
//! of the programs of fast paths, and the network namespace that they are in. Out: the same, from a process that
//! outlives netvmd ([`netvm_fd_store`]). So containers keep their interfaces when netvmd is killed or restarted, if the
//! next one comes in time.
//!
//! An interface has a name in the store, and a record of all that it was made by: it is taken over only by a port that
//! would make it the same way. Everything else about it the kernel says. What is not taken over is removed, as the
//! name of the interface is needed.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_fd_store::{Store, StoredFiles};
use netvm_vnet::{Queue, Watch, container, pair};
use rustix::fs::{MemfdFlags, memfd_create};

/// Numbers of files. The store looks at the first one, which fails when its device is gone. Whatever is kept in another
/// way gets other numbers, so that no netvmd takes over what it does not know.
const DEVICE: u32 = 0;
const RECORD: u32 = 1 << 16;
const FIRST_QUEUE: u32 = RECORD + 1;
const FIRST_LINK: u32 = FIRST_QUEUE + (1 << 15);
/// The name, behind [`NAMES`], of the namespace with the other ends of interfaces with a fast path.
const NAMESPACE: &str = "namespace";
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
    /// The last trouble that was reported.
    reported: Option<String>,
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

    /// Opens the name of an interface that is made by what `record` says. What another process has left of it can be
    /// taken over. `continues`: it stays until there is another netvmd, however long that takes.
    pub(crate) fn open(&self, name: String, record: String, continues: bool) -> (Kept, Option<Left>) {
        let (queues, links) = (Vec::new(), Vec::new());
        let mut kept = Kept { name, record, files: None, queues, links, continues };
        let Some((files, left)) = self.take(&kept.name) else { return (kept, None) };
        kept.files = Some(files);
        let left = Left::of(left, &kept.record);
        (kept, left)
    }

    /// Opens the namespace that another process has left.
    pub(crate) fn open_namespace(&self) -> (KeptNamespace, Option<OwnedFd>) {
        let (files, left) = self.take(NAMESPACE).unzip();
        let left = left.unwrap_or_default().into_iter().find(|(number, _)| *number == FIRST_LINK);
        (KeptNamespace { files, continues: false }, left.map(|(_, file)| file))
    }

    /// Notes that an interface was taken over.
    pub(crate) fn note_adopted(&self) {
        self.state.borrow_mut().adopted += 1;
    }

    /// Ends what no port has taken over. Returns how many interfaces ports have taken over so far.
    pub(crate) fn close_left(&self) -> usize {
        if let Some(store) = &self.store {
            close_left_interfaces(store);
        }
        self.state.borrow().adopted
    }

    /// What has become of the store.
    pub(crate) fn check(&self, now: Instant) -> Check {
        let mut state = self.state.borrow_mut();
        if self.store.is_none() || state.next_check.is_some_and(|at| now < at) {
            return Check::default();
        }
        state.next_check = Some(now + CHECK_INTERVAL);
        if state.watch.take_if(|watch| watch.is_lost()).is_some() {
            return Check { keep_again: true, report: Some(None) };
        }
        let Some((since, error)) = &mut state.trouble else { return Check::default() };
        let keep_again = since.elapsed() >= RETRY_AFTER;
        let error = error.take().map(|error| error.to_string());
        let report = error.filter(|error| state.reported.as_ref() != Some(error));
        state.reported = report.clone().or_else(|| state.reported.take());
        Check { keep_again, report: report.map(Some) }
    }
}

/// What has become of the store.
#[derive(Debug, Default)]
pub(crate) struct Check {
    /// Files have to be kept again.
    pub(crate) keep_again: bool,
    /// The store has ended, or cannot be used, and why.
    pub(crate) report: Option<Option<String>>,
}

/// Ends the interfaces in a store that no process has taken over.
pub fn close_left_interfaces(store: &Store) {
    // If this fails, the store ends them later.
    let _ = store.close_left(NAMES.as_bytes());
}

/// What another process has left of an interface.
#[derive(Debug)]
pub(crate) struct Left {
    /// The queues of its TAP device.
    pub(crate) queues: Vec<OwnedFd>,
    /// The links of the programs of its fast path, if it has one.
    pub(crate) links: Option<[OwnedFd; 2]>,
}

impl Left {
    /// `None` if there is nothing. Removes an interface that was not made as `record` says.
    fn of(mut left: Vec<(u32, OwnedFd)>, record: &str) -> Option<Self> {
        let mut take = |wanted| {
            let place = left.iter().position(|(number, _)| *number == wanted)?;
            Some(left.swap_remove(place).1)
        };
        let (device, recorded) = (take(DEVICE)?, take(RECORD));
        let queues: Vec<OwnedFd> = (FIRST_QUEUE..FIRST_LINK).map_while(&mut take).collect();
        let links = take(FIRST_LINK).zip(take(FIRST_LINK + 1)).map(<[OwnedFd; 2]>::from);
        let is_same = recorded.and_then(read).is_some_and(|recorded| recorded == record);
        let found = Self { queues, links };
        if is_same && left.is_empty() && !found.queues.is_empty() {
            return Some(found);
        }
        found.remove_with(&device);
        None
    }

    /// Removes the interface.
    pub(crate) fn remove(&self) {
        if let Some(queue) = self.queues.first() {
            self.remove_with(queue);
        }
    }

    fn remove_with(&self, queue: &OwnedFd) {
        // If this fails, it ends with its last descriptor.
        let _ = if self.links.is_some() { pair::remove(queue) } else { container::remove(queue) };
    }
}

/// A namespace in the store.
#[derive(Debug)]
pub(crate) struct KeptNamespace {
    files: Option<StoredFiles>,
    continues: bool,
}

impl KeptNamespace {
    /// Keeps it.
    pub(crate) fn keep(&mut self, namespace: impl AsFd) {
        self.files.take_if(|files| {
            let put = || {
                // The first file fails never, so it stays as long as the others.
                files.put(DEVICE, &namespace)?;
                files.put(FIRST_LINK, &namespace)?;
                files.keep_on(self.continues)
            };
            put().is_err()
        });
    }

    /// Keeps it until there is another netvmd, as flows continue.
    pub(crate) fn keep_on(&mut self) {
        self.continues = true;
        self.files.take_if(|files| files.keep_on(true).is_err());
    }

    /// Keeps it again, after the store has ended.
    pub(crate) fn keep_again(&mut self, store: &InterfaceStore, namespace: impl AsFd) {
        if is_lost(self.files.as_ref()) {
            self.files = store.take(NAMESPACE).map(|(files, _)| files);
            self.keep(namespace);
        }
    }
}

impl Drop for KeptNamespace {
    fn drop(&mut self) {
        stay_for_the_usual_time(self.files.as_ref());
    }
}

/// The files of one interface in the store.
#[derive(Debug)]
pub(crate) struct Kept {
    name: String,
    record: String,
    /// `None`: nothing is kept.
    files: Option<StoredFiles>,
    queues: Vec<Watch>,
    links: Vec<OwnedFd>,
    continues: bool,
}

impl Kept {
    /// Keeps an interface, which was made anew or taken over, with the links of its programs.
    pub(crate) fn keep(&mut self, queues: &[Queue], links: &[BorrowedFd<'_>], is_adopted: bool) {
        self.queues = queues.iter().map(Queue::watch).collect();
        self.links = links.iter().filter_map(|link| link.try_clone_to_owned().ok()).collect();
        self.continues &= !self.links.is_empty();
        if is_adopted {
            self.files.take_if(|files| files.keep_on(self.continues).is_err());
        } else {
            self.put();
        }
    }

    /// Whether it is kept.
    pub(crate) const fn is_kept(&self) -> bool {
        self.files.is_some()
    }

    fn put(&mut self) {
        let mut files = self.files.take();
        files.take_if(|files| self.put_into(files).is_err());
        self.files = files;
    }

    fn put_into(&self, files: &StoredFiles) -> io::Result<()> {
        files.forget()?;
        let Some(device) = self.queues.first() else { return Ok(()) };
        let mut record = File::from(memfd_create("netvm-interface", MemfdFlags::CLOEXEC)?);
        record.write_all(self.record.as_bytes())?;
        files.put(RECORD, &record)?;
        self.queues.iter().zip(FIRST_QUEUE..).try_for_each(|(queue, number)| files.put(number, queue))?;
        self.links.iter().zip(FIRST_LINK..).try_for_each(|(link, number)| files.put(number, link))?;
        files.put(DEVICE, device)?;
        files.keep_on(self.continues)
    }

    /// Keeps it again, after the store has ended.
    pub(crate) fn keep_again(&mut self, store: &InterfaceStore) {
        if !self.queues.is_empty() && is_lost(self.files.as_ref()) {
            self.files = store.take(&self.name).map(|(files, _)| files);
            self.put();
        }
    }

    /// Ends the interface, of which others may have descriptors.
    pub(crate) fn end(&mut self) {
        let Some(files) = self.files.take() else { return };
        if let Some(queue) = self.queues.first() {
            // It may have gone.
            let _ = container::remove(queue);
        }
        let _ = files.forget();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        stay_for_the_usual_time(self.files.as_ref());
    }
}

fn is_lost(files: Option<&StoredFiles>) -> bool {
    files.is_none_or(StoredFiles::is_lost)
}

/// An end in order is no loss: nothing continues.
fn stay_for_the_usual_time(files: Option<&StoredFiles>) {
    if let Some(files) = files {
        let _ = files.keep_on(false);
    }
}

fn read(record: OwnedFd) -> Option<String> {
    let mut file = File::from(record);
    file.rewind().ok()?;
    let mut text = String::new();
    file.take(MAX_RECORD).read_to_string(&mut text).ok()?;
    Some(text)
}
