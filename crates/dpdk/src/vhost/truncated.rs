//! Guests that truncate memory which they share.
//!
//! A guest passes files (memfds), which the library maps. Truncating such a file removes pages under a reader, which gets
//! SIGBUS; by default that ends the process. This module records where each guest's memory is mapped, and handles
//! the signal:
//!
//! ```text
//!   handler: address in a guest's memory?  no: runs the previous handler
//!            yes: maps a page of zeroes in place of the missing one, marks the guest, signals the eventfd
//!   signaller:  withdraws marked guests, so that no thread uses their memory any more
//! ```
//!
//! The file no longer has the page at the address, so no data is lost. The page belongs to that guest: a mapping is
//! removed only when no thread uses it (see `rcu`, and the library's locks), and the thread that got the signal still
//! does. While a thread handles a guest's message, all memory that it touches is that guest's, mapped in this
//! module's records or not: the library reads memory that it has just mapped before it reports the mapping.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::{io, mem, ptr};

use dpdk_sys as sys;

const DEVICES: usize = sys::NETVM_VHOST_MAX_DEVICES as usize;
const PIECES: usize = sys::NETVM_VHOST_MAX_PIECES as usize;

/// Sizes of pages, of which a missing one can be: those of huge ones on x86 and Arm, too.
const PAGES: [usize; 6] = [4 << 10, 64 << 10, 2 << 20, 32 << 20, 512 << 20, 1 << 30];

/// A mapping; 0 bytes: none.
struct Piece {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

impl Piece {
    const fn none() -> Self {
        Self { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    fn set(&self, start: usize, bytes: usize) {
        self.bytes.store(0, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.bytes.store(bytes, Ordering::SeqCst);
    }

    fn holds(&self, address: usize) -> bool {
        let bytes = self.bytes.load(Ordering::SeqCst);
        address.checked_sub(self.start.load(Ordering::SeqCst)).is_some_and(|offset| offset < bytes)
    }
}

/// What is known of a device's memory.
struct Memory {
    pieces: [Piece; PIECES],
    truncated: AtomicBool,
}

impl Memory {
    const fn none() -> Self {
        Self { pieces: [const { Piece::none() }; PIECES], truncated: AtomicBool::new(false) }
    }

    fn forget(&self) {
        self.pieces.iter().for_each(|piece| piece.set(0, 0));
    }
}

static MEMORIES: [Memory; DEVICES] = [const { Memory::none() }; DEVICES];
/// What was done about SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// An eventfd.
static BELL: AtomicI32 = AtomicI32::new(-1);
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
    BELL.store(eventfd, Ordering::SeqCst);
    let signaller = move || {
        let mut count = [0u8; 8];
        // SAFETY: `count` has 8 bytes. The descriptor is never closed.
        while unsafe { libc::read(eventfd, count.as_mut_ptr().cast(), count.len()) } > 0 || interrupted() {
            let truncated = |(_, memory): &(i32, &Memory)| memory.truncated.load(Ordering::SeqCst);
            (0..).zip(&MEMORIES).filter(truncated).for_each(|(device, _)| close(device));
        }
    };
    std::thread::Builder::new().name("vhost-truncated".to_owned()).spawn(signaller)?;
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

fn interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

/// This thread begins to handle a message of a device.
pub(super) fn message(device: i32) {
    HANDLED.set(device);
}

/// The message takes the device's memory away, which nobody uses any more.
pub(super) fn forget_pieces(device: i32) {
    if let Some(memory) = memory(device) {
        memory.forget();
    }
}

/// It has brought memory.
pub(super) fn brought(device: i32) {
    let Some(memory) = memory(device) else { return };
    let mut pieces = [sys::netvm_vhost_piece { start: 0, bytes: 0 }; PIECES];
    // SAFETY: there is room for as many pieces as the function writes; the device has memory, as the library has just
    // mapped it, in this thread.
    let count = unsafe { sys::netvm_vhost_memory(device, pieces.as_mut_ptr()) } as usize;
    for (piece, known) in memory.pieces.iter().zip(pieces.iter().take(count)) {
        piece.set(known.start, known.bytes);
    }
}

/// This thread has handled the message.
pub(super) fn handled() {
    HANDLED.set(-1);
}

/// The device is gone, or its memory.
pub(super) fn forget(device: i32) {
    if let Some(memory) = memory(device) {
        memory.forget();
        memory.truncated.store(false, Ordering::SeqCst);
    }
}

/// Whether the device has truncated its memory.
pub(super) fn is_marked(device: i32) -> bool {
    memory(device).is_some_and(|memory| memory.truncated.load(Ordering::SeqCst))
}

/// The device to which an address belongs.
fn owner(address: usize) -> Option<&'static Memory> {
    let holds = |memory: &&Memory| memory.pieces.iter().any(|piece| piece.holds(address));
    MEMORIES.iter().find(holds).or_else(|| memory(HANDLED.try_with(Cell::get).unwrap_or(-1)))
}

/// Puts zeroes where a page is missing.
fn fill(address: usize) -> bool {
    PAGES.iter().any(|page| {
        let (protection, start) = (libc::PROT_READ | libc::PROT_WRITE, address & !(page - 1));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: what is there is the page of a file that has none there any more, so that no access to it can
        // succeed: it holds nothing. Parts of a huge page are refused, so that the first size that is not is the
        // page's.
        let filled = unsafe { libc::mmap(start as *mut c_void, *page, protection, flags, -1, 0) };
        filled != libc::MAP_FAILED
    })
}

/// Async-signal-safe: atomics, system calls, and a thread-local value that needs no set-up.
extern "C" fn on_bus_error(_signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    /// No page is there (`si_code`, sigaction(2)).
    const BUS_ADRERR: i32 = 2;

    // SAFETY: errno's place is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a siginfo_t, and for this signal one with an address if its code says so.
    let address = unsafe { ((*info).si_code == BUS_ADRERR).then(|| (*info).si_addr() as usize) };
    let owner = address.and_then(owner).filter(|_| address.is_some_and(fill));
    if let Some(memory) = owner {
        if !memory.truncated.swap(true, Ordering::SeqCst) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: 8 bytes that live through the call.
            unsafe { libc::write(BELL.load(Ordering::SeqCst), one.as_ptr().cast(), one.len()) };
        }
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
        // Memory that is known to nobody yet, met while a message is handled.
        let start = missing(1 << 20);
        message(1001);
        // SAFETY: as above.
        assert_eq!(unsafe { start.read_volatile() }, 0);
        handled();
        assert!(told(1001));
        forget(1000);
        assert!(!MEMORIES[1000].truncated.load(Ordering::SeqCst) && owner(start as usize).is_none());
    }

    #[test]
    fn other_missing_pages_end_the_process() {
        watched();
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
