//! Handles guests that truncate memory that they share.
//!
//! A guest passes files (memfds), which the library maps. This module records where each guest's memory is mapped. When
//! a thread touches a page that is missing, [`lost_pages`] fills it and marks the guest. A thread of this module then
//! withdraws marked guests, so that no thread uses their memory any more.
//!
//! The library removes a mapping only when no thread uses it (see `rcu`, and the library's locks). While a thread handles a
//! guest's message, all missing pages that it touches belong to this guest, even if this module has no record of them yet:
//! the library reads memory that it has just mapped before it reports the mapping.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use dpdk_sys as sys;
use netvm_region::lost_pages::{self, Mark, Range};

const DEVICES: usize = sys::NETVM_VHOST_MAX_DEVICES as usize;
const PIECES: usize = sys::NETVM_VHOST_MAX_PIECES as usize;

/// A device's memory.
struct Memory {
    pieces: [Range; PIECES],
    truncated: Mark,
}

impl Memory {
    const fn none() -> Self {
        Self { pieces: [const { Range::none() }; PIECES], truncated: Mark::new() }
    }

    fn forget(&self) {
        self.pieces.iter().for_each(|piece| piece.set(0, 0));
    }
}

static MEMORIES: [Memory; DEVICES] = [const { Memory::none() }; DEVICES];
static WATCHED: OnceLock<Result<(), i32>> = OnceLock::new();

thread_local! {
    /// The device whose message this thread handles, or -1.
    static HANDLED: Cell<i32> = const { Cell::new(-1) };
}

fn memory(device: i32) -> Option<&'static Memory> {
    MEMORIES.get(usize::try_from(device).ok()?)
}

/// Begins to handle the signal, once; `close` is called for each guest that has truncated its memory.
pub(super) fn watch(close: fn(i32)) -> Result<(), i32> {
    *WATCHED.get_or_init(|| begin(close).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)))
}

fn begin(close: fn(i32)) -> io::Result<()> {
    // SAFETY: takes no pointer.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if eventfd < 0 {
        return Err(io::Error::last_os_error());
    }
    MEMORIES.iter().for_each(|memory| memory.truncated.signal(eventfd));
    let signaller = move || {
        let mut count = [0u8; 8];
        // SAFETY: `count` has 8 bytes. The descriptor is never closed.
        while unsafe { libc::read(eventfd, count.as_mut_ptr().cast(), count.len()) } > 0 || interrupted() {
            let truncated = |(_, memory): &(i32, &Memory)| memory.truncated.is_set();
            (0..).zip(&MEMORIES).filter(truncated).for_each(|(device, _)| close(device));
        }
    };
    std::thread::Builder::new().name("vhost-truncated".to_owned()).spawn(signaller)?;
    lost_pages::ask_also(mark_at)
}

fn interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

/// Records that this thread begins to handle a message of a device.
pub(super) fn begin_message(device: i32) {
    HANDLED.set(device);
}

/// Removes the records of a device's memory, which the message replaces; no worker uses it any more.
pub(super) fn forget_pieces(device: i32) {
    if let Some(memory) = memory(device) {
        memory.forget();
    }
}

/// Records the memory that the message has mapped.
pub(super) fn record_pieces(device: i32) {
    let Some(memory) = memory(device) else { return };
    let mut pieces = [sys::netvm_vhost_piece { start: 0, bytes: 0 }; PIECES];
    // SAFETY: there is room for as many pieces as the function writes; the device has memory, as the library has just
    // mapped it, in this thread.
    let count = unsafe { sys::netvm_vhost_memory(device, pieces.as_mut_ptr()) } as usize;
    for (piece, known) in memory.pieces.iter().zip(pieces.iter().take(count)) {
        piece.set(known.start, known.bytes);
    }
}

/// Records that this thread has handled the message.
pub(super) fn end_message() {
    HANDLED.set(-1);
}

/// Removes all records of a device that is gone, or whose memory is.
pub(super) fn forget(device: i32) {
    if let Some(memory) = memory(device) {
        memory.forget();
        memory.truncated.clear();
    }
}

/// Whether the device has truncated its memory.
pub(super) fn is_marked(device: i32) -> bool {
    memory(device).is_some_and(|memory| memory.truncated.is_set())
}

/// The mark of the device to which an address belongs. Async-signal-safe: the thread-local value needs no set-up.
fn mark_at(address: usize) -> Option<&'static Mark> {
    let holds = |memory: &&Memory| memory.pieces.iter().any(|piece| piece.holds(address));
    let owner = MEMORIES.iter().find(holds);
    owner.or_else(|| memory(HANDLED.try_with(Cell::get).unwrap_or(-1))).map(|memory| &memory.truncated)
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use super::*;

    static CLOSED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

    fn watched() {
        watch(|device| CLOSED.lock().unwrap().push(device)).unwrap();
    }

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
    fn missing_pages_of_guests_read_as_zeroes_and_tell_on_them() {
        watched();
        let told = |device| {
            let start = Instant::now();
            while !CLOSED.lock().unwrap().contains(&device) && start.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(1));
            }
            CLOSED.lock().unwrap().contains(&device)
        };
        let start = missing(1 << 20);
        MEMORIES[1000].pieces[7].set(start as usize, 1 << 20);
        // SAFETY: mapped; what has no pages gets some.
        unsafe {
            assert_eq!(start.add(5000).read_volatile(), 0);
            start.add(5000).write_volatile(7);
            assert_eq!((start.add(5000).read_volatile(), start.add(90_000).read_volatile()), (7, 0));
        }
        assert!(told(1000));
        assert!(!CLOSED.lock().unwrap().contains(&1001));
        // Memory that no part of the library knows yet, met while it handles a message.
        let start = missing(1 << 20);
        begin_message(1001);
        // SAFETY: as above.
        assert_eq!(unsafe { start.read_volatile() }, 0);
        end_message();
        assert!(told(1001));
        forget(1000);
        assert!(!MEMORIES[1000].truncated.is_set() && mark_at(start as usize).is_none());
    }
}
