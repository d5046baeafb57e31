// SPDX-License-Identifier: Apache-2.0
//! Shared memory whose pages a peer removes.
//!
//! A peer can punch holes into a file that it shares, or truncate it. An access to a missing page then gets a new page,
//! or SIGBUS if there is none (a truncated file, no free huge page, a full memory cgroup); by default that ends the
//! process. This module records which addresses are shared, and handles the signal:
//!
//! ```text
//!   handler: address in shared memory?  no: restores the previous action, which then gets the signal
//!            yes: maps a page of zeroes in place of the missing one, marks the memory, signals its eventfd
//! ```
//!
//! The file no longer has the page, so no data is lost. The owner of the memory checks the mark ([`Watch::is_marked`])
//! and withdraws the memory. It is unmapped only when no thread uses it, and the thread that got the signal still does.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::{io, mem, ptr};

/// Sizes of pages, also of huge ones on x86 and Arm.
const PAGES: [usize; 6] = [4 << 10, 64 << 10, 2 << 20, 32 << 20, 512 << 20, 1 << 30];

/// Ranges that can be watched at a time.
const RANGES: usize = 4096;

static WATCHED: [Range; RANGES] = [const { Range::none() }; RANGES];
static TAKEN: [AtomicBool; RANGES] = [const { AtomicBool::new(false) }; RANGES];
static MARKS: [Mark; RANGES] = [const { Mark::new() }; RANGES];
/// The action before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
/// A function that knows more shared memory, as a [`Finder`]; 0: none.
static FINDER: AtomicUsize = AtomicUsize::new(0);

/// Finds the mark of the memory at an address; async-signal-safe.
pub type Finder = fn(address: usize) -> Option<&'static Mark>;

/// A range of addresses, changed by one thread and read by any.
#[derive(Debug)]
pub struct Range {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

impl Range {
    /// An empty range.
    #[must_use]
    pub const fn none() -> Self {
        Self { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// Sets the range; 0 bytes: none.
    pub fn set(&self, start: usize, bytes: usize) {
        self.bytes.store(0, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.bytes.store(bytes, Ordering::SeqCst);
    }

    /// Whether an address is in the range.
    pub fn holds(&self, address: usize) -> bool {
        let bytes = self.bytes.load(Ordering::SeqCst);
        address.checked_sub(self.start.load(Ordering::SeqCst)).is_some_and(|offset| offset < bytes)
    }
}

/// Says that pages of a memory were missing.
#[derive(Debug)]
pub struct Mark {
    is_set: AtomicBool,
    /// Signalled when the mark is set; -1: none.
    eventfd: AtomicI32,
}

impl Mark {
    /// A mark that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_set: AtomicBool::new(false), eventfd: AtomicI32::new(-1) }
    }

    /// Names an eventfd that is never closed, to be signalled when the mark is set.
    pub fn signal(&self, eventfd: i32) {
        self.eventfd.store(eventfd, Ordering::SeqCst);
    }

    /// Whether pages were missing.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Unsets the mark.
    pub fn clear(&self) {
        self.is_set.store(false, Ordering::SeqCst);
    }

    /// Async-signal-safe.
    fn set(&self) {
        let eventfd = self.eventfd.load(Ordering::SeqCst);
        if !self.is_set.swap(true, Ordering::SeqCst) && eventfd >= 0 {
            let one = 1u64.to_ne_bytes();
            // SAFETY: 8 bytes that live through the call.
            unsafe { libc::write(eventfd, one.as_ptr().cast(), one.len()) };
        }
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}

/// A watched range. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches a mapping of shared memory; `None` if too many are watched.
    ///
    /// # Errors
    /// The kernel's error if SIGBUS cannot be handled.
    pub fn begin(start: usize, bytes: usize) -> io::Result<Option<Self>> {
        install()?;
        let is_free = |taken: &AtomicBool| {
            taken.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let Some(index) = TAKEN.iter().position(is_free) else { return Ok(None) };
        MARKS[index].clear();
        WATCHED[index].set(start, bytes);
        Ok(Some(Self(index)))
    }

    /// Whether pages of the range were missing.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        MARKS[self.0].is_set()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED[self.0].set(0, 0);
        TAKEN[self.0].store(false, Ordering::SeqCst);
    }
}

/// Asks `finder`, too, for addresses that no [`Watch`] has.
///
/// # Errors
/// The kernel's error if SIGBUS cannot be handled.
pub fn ask_also(finder: Finder) -> io::Result<()> {
    FINDER.store(finder as usize, Ordering::SeqCst);
    install()
}

fn install() -> io::Result<()> {
    let outcome =
        INSTALLED.get_or_init(|| handle().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)));
    outcome.map_err(io::Error::from_raw_os_error)
}

fn handle() -> io::Result<()> {
    // SAFETY: all zeroes is a sigaction: the default action, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: writes to `action`.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut action) } != 0 {
        return Err(io::Error::last_os_error());
    }
    BEFORE.get_or_init(|| action);
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and makes async-signal-safe calls only.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The mark of the memory at an address.
fn mark_at(address: usize) -> Option<&'static Mark> {
    let watched = WATCHED.iter().position(|range| range.holds(address)).map(|index| &MARKS[index]);
    watched.or_else(|| {
        let finder = FINDER.load(Ordering::SeqCst);
        if finder == 0 {
            return None;
        }
        // SAFETY: nothing but `ask_also` stores here, and it stores a Finder.
        let finder = unsafe { mem::transmute::<usize, Finder>(finder) };
        finder(address)
    })
}

/// Maps zeroes in place of a missing page.
fn fill(address: usize) -> bool {
    PAGES.iter().any(|page| {
        let (protection, start) = (libc::PROT_READ | libc::PROT_WRITE, address & !(page - 1));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the page there belongs to a file that no longer has it, so that no access to it can succeed. The
        // kernel refuses parts of a huge page, so the first size that it accepts is the page's.
        let filled = unsafe { libc::mmap(start as *mut c_void, *page, protection, flags, -1, 0) };
        filled != libc::MAP_FAILED
    })
}

/// Async-signal-safe: atomics and system calls.
extern "C" fn on_bus_error(_signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    /// No page is there (`si_code`, sigaction(2)).
    const BUS_ADRERR: i32 = 2;

    // SAFETY: errno's place is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a siginfo_t, and for this signal one with an address if its code says so.
    let address = unsafe { ((*info).si_code == BUS_ADRERR).then(|| (*info).si_addr() as usize) };
    let mark = address.and_then(mark_at).filter(|_| address.is_some_and(fill));
    if let Some(mark) = mark {
        mark.set();
    } else if let Some(before) = BEFORE.get() {
        // The access is tried again after the return, and fails again.
        // SAFETY: an action that was in force.
        unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of pages that a file of no bytes does not have.
    fn missing(bytes: usize) -> *mut u8 {
        // SAFETY: a name, and a new mapping at an address of the kernel's choice.
        unsafe {
            let file = libc::memfd_create(c"missing".as_ptr(), libc::MFD_CLOEXEC);
            let start = libc::mmap(ptr::null_mut(), bytes, 3, libc::MAP_SHARED, file, 0);
            assert!(file >= 0 && start != libc::MAP_FAILED);
            libc::close(file);
            start.cast()
        }
    }

    #[test]
    fn missing_pages_read_as_zeroes_and_mark_their_memory() {
        let (start, other) = (missing(1 << 20), missing(1 << 20));
        let watch = Watch::begin(start as usize, 1 << 20).unwrap().unwrap();
        let unharmed = Watch::begin(other as usize, 1 << 20).unwrap().unwrap();
        assert!(!watch.is_marked());
        // SAFETY: mapped; missing pages are filled.
        unsafe {
            assert_eq!(start.add(5000).read_volatile(), 0);
            start.add(5000).write_volatile(7);
            assert_eq!((start.add(5000).read_volatile(), start.add(90_000).read_volatile()), (7, 0));
        }
        assert!(watch.is_marked() && !unharmed.is_marked());
    }

    #[test]
    fn missing_pages_elsewhere_end_the_process() {
        install().unwrap();
        // SAFETY: the child makes async-signal-safe calls only, until the signal ends it.
        let status = unsafe {
            let start = missing(4096);
            let child = libc::fork();
            if child == 0 {
                start.read_volatile();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status}");
    }
}
