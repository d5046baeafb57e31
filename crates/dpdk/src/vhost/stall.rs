//! Threads that are made to wait inside of the kernel by what others share with them, and are freed.
//!
//! A worker tells a guest of packets by an eventfd of the guest's. Whoever shares it can put it into blocking mode and fill
//! its count, at any time: whether a write waits is decided when it is made, and no write to an eventfd can be told not to.
//! So a thread says when it is where that can happen ([`Stay`]), and somebody looks at it from time to time:
//!
//! ```text
//!   thread:   word = (own id, odd count);  ... whatever may be made to wait ...;  word = (own id, even count)
//!   watcher:  the same odd count as the last time, and the kernel says that the thread sleeps?
//!             whoever shares the descriptor is cut off, and a signal ends the thread's system call
//! ```
//!
//! Nothing that is done during a stay sleeps of itself, so a thread that is found asleep is kept; one that has lost its core
//! is not asleep, and is let be. The signal is SIGURG, which nobody uses and which does no harm where nobody handles it. The
//! handler does nothing; without SA_RESTART the system call returns EINTR, as it does where a thread that has left in the
//! meantime sleeps by its own wish: it must bear that.
//!
//! The watcher wakes up 40 times a second while there is something to watch, and never while there is not.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;
use std::{fs, io, mem, ptr};

/// Time between looks: a thread is kept for this long at least, and twice as long at most, before it is freed.
const PACE: Duration = Duration::from_millis(25);
/// Time between signals to a thread that is made to wait again and again in one stay, and their number.
const REPEAT: Duration = Duration::from_micros(50);
const REPEATS: u32 = 4000;

const INSIDE: u64 = 1;

/// Where one thread at a time may be made to wait.
#[derive(Debug, Default)]
pub(super) struct Stay {
    /// The thread that was here last, in the upper half; a count of entries, doubled, and whether it is inside.
    word: AtomicU64,
    /// What the watcher saw the last time.
    seen: AtomicU64,
}

impl Stay {
    /// The calling thread may be made to wait from here on.
    #[inline(always)]
    pub(super) fn begin(&self) {
        let count = (self.word.load(Ordering::Relaxed) as u32).wrapping_add(2);
        let word = u64::from(own_id()) << 32 | u64::from(count) | INSIDE;
        self.word.store(word, Ordering::Relaxed);
    }

    /// Until here.
    #[inline(always)]
    pub(super) fn end(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) & !INSIDE, Ordering::Release);
    }

    pub(super) fn is_inside(&self) -> bool {
        self.word.load(Ordering::Acquire) & INSIDE != 0
    }

    /// For the watcher: whether the thread has been here since the last look, and sleeps.
    pub(super) fn is_stalled(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        self.seen.swap(word, Ordering::Relaxed) == word && self.sleeps_in(word)
    }

    fn sleeps_in(&self, word: u64) -> bool {
        word & INSIDE != 0 && is_asleep((word >> 32) as u32) && self.word.load(Ordering::Acquire) == word
    }

    /// For the watcher: ends the system calls of the thread until it leaves.
    pub(super) fn free(&self) {
        let word = self.word.load(Ordering::Acquire);
        for _ in 0..REPEATS {
            if self.sleeps_in(word) {
                // SAFETY: takes no pointer; a thread that is gone, or of another process, gives an error.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), (word >> 32) as i32, libc::SIGURG) };
            }
            if self.word.load(Ordering::Acquire) != word || word & INSIDE == 0 {
                return;
            }
            std::thread::sleep(REPEAT);
        }
    }
}

thread_local! {
    static OWN_ID: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's id, by which the kernel knows it.
#[inline(always)]
fn own_id() -> u32 {
    match OWN_ID.get() {
        0 => learn_id(),
        id => id,
    }
}

#[cold]
fn learn_id() -> u32 {
    // SAFETY: all zeroes is a set of signals, which the calls fill and read.
    unsafe {
        // Whoever started the process may have had it blocked.
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGURG);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
    // SAFETY: takes no pointer.
    let id = unsafe { libc::gettid() }.cast_unsigned();
    OWN_ID.set(id);
    id
}

/// Whether a thread of this process sleeps until something happens or a signal comes (state `S`, proc_pid_stat(5)).
fn is_asleep(thread: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name before may be anything.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}

/// What is watched.
#[derive(Clone, Copy)]
pub(super) struct Watched {
    /// Whether threads may be made to wait.
    pub(super) is_used: fn() -> bool,
    /// Looks at all stays.
    pub(super) look: fn(),
}

static WATCHER: OnceLock<Result<Thread, i32>> = OnceLock::new();

/// Begins to watch, once.
pub(super) fn watch(watched: Watched) -> Result<(), i32> {
    let begin = || begin(watched).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL));
    WATCHER.get_or_init(begin).as_ref().map(|_| ()).map_err(|errno| *errno)
}

/// To be called when threads may be made to wait that could not be before.
pub(super) fn wake() {
    if let Some(Ok(thread)) = WATCHER.get() {
        thread.unpark();
    }
}

fn begin(watched: Watched) -> io::Result<Thread> {
    extern "C" fn nothing(_signal: i32) {}

    // SAFETY: all zeroes is a sigaction with no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler does nothing.
    if unsafe { libc::sigaction(libc::SIGURG, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let rounds = move || {
        loop {
            if (watched.is_used)() {
                std::thread::sleep(PACE);
                (watched.look)();
            } else {
                std::thread::park();
            }
        }
    };
    let watcher = std::thread::Builder::new().name("vhost-stall".to_owned()).spawn(rounds)?;
    Ok(watcher.thread().clone())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::time::Instant;

    use super::*;

    /// One for each test that has threads in them, and how often somebody was freed.
    static PLACES: [Stay; 3] = [const { Stay { word: AtomicU64::new(0), seen: AtomicU64::new(0) } }; 3];
    static FREED: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

    fn look_at_places() {
        for (place, freed) in PLACES.iter().zip(&FREED) {
            if place.is_stalled() {
                freed.fetch_add(1, Ordering::SeqCst);
                place.free();
            }
        }
    }

    fn watched() {
        watch(Watched { is_used: || PLACES.iter().any(Stay::is_inside), look: look_at_places }).unwrap();
    }

    /// An eventfd with no room, in blocking mode.
    fn full() -> fs::File {
        use std::io::Write;
        // SAFETY: takes no pointer; a new descriptor.
        let mut fd: fs::File =
            unsafe { std::os::fd::FromRawFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        assert_eq!(fd.write(&(u64::MAX - 1).to_ne_bytes()).unwrap(), 8);
        fd
    }

    /// As the library does: whatever it returns.
    fn write_once(fd: &fs::File) -> Option<i32> {
        // SAFETY: 8 bytes that live through the call.
        let written = unsafe { libc::write(fd.as_raw_fd(), 1u64.to_ne_bytes().as_ptr().cast(), 8) };
        (written < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
    }

    #[test]
    fn who_is_made_to_wait_is_freed_as_often_as_it_takes() {
        watched();
        let (fd, start) = (full(), Instant::now());
        PLACES[0].begin();
        wake();
        let errors: Vec<_> = (0..40).map(|_| write_once(&fd)).collect();
        PLACES[0].end();
        let time = start.elapsed();
        assert_eq!(errors, vec![Some(libc::EINTR); 40]);
        assert!(time >= PACE && time < Duration::from_secs(5), "{time:?}");
        assert_eq!(FREED[0].load(Ordering::SeqCst), 1);
    }

    #[test]
    fn who_works_is_let_be_and_so_is_who_sleeps_elsewhere() {
        watched();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // In one stay for all of the time, often without a core.
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let worker = scope.spawn(|| {
                PLACES[1].begin();
                wake();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                PLACES[1].end();
            });
            // Asleep between stays and not in them.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(300) {
                PLACES[2].begin();
                PLACES[2].end();
                std::thread::sleep(2 * PACE);
            }
            stop.store(true, Ordering::Relaxed);
            worker.join().unwrap();
        });
        assert_eq!([1, 2].map(|n: usize| FREED[n].load(Ordering::SeqCst)), [0, 0]);
    }

    #[test]
    fn a_thread_has_left_once_it_says_so() {
        let stay = Stay::default();
        assert!(!stay.is_inside() && !stay.is_stalled());
        for _ in 0..3 {
            stay.begin();
            assert!(stay.is_inside());
            stay.end();
            assert!(!stay.is_inside());
        }
        stay.word.store(u64::from(u32::MAX - 1), Ordering::Relaxed);
        stay.begin();
        assert_eq!(stay.word.load(Ordering::Relaxed) as u32, INSIDE as u32);
    }
}
