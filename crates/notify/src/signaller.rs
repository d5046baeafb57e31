//! Signalling eventfds that others share, without ever waiting for them.
//!
//! A peer that shares an eventfd can fill its count and set it to blocking mode at any time. A write then blocks until a reader
//! empties it. Only the kernel can signal an eventfd without blocking: it takes the eventfd's spinlock, adds one if there is room, and wakes waiters in
//! either case. It does so when an asynchronous request that asks for it completes (`IOCB_FLAG_RESFD`, io_submit(2)). This request completes at once:
//!
//! ```text
//!  io_submit: read nothing from /dev/null ──▶ done ──▶ event in the context's ring, taken out when that is full
//!                                              └─────▶ the eventfd is signalled
//! ```
//!
//! Beside a write, in a virtual machine on an AMD EPYC, without a sleeper: 0.80 against 0.28 µs, or 2.9 times as much.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_ulong;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// `linux/aio_abi.h`.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;
/// Requests that are under way at a time. The kernel makes room for the events of a hundred at least.
const REQUESTS: u32 = 1;
/// Events that are taken out of the ring at a time.
const EVENTS: usize = 128;

/// `struct io_event`; its content does not matter.
type Event = [u64; 4];

/// Why a signaller of this process writes to eventfds: the kernel's error number, or 0.
static REFUSAL: AtomicI32 = AtomicI32::new(0);

/// What one thread wakes others with.
#[derive(Debug)]
pub struct Signaller(Option<Requests>);

impl Default for Signaller {
    fn default() -> Self {
        Self::new()
    }
}

impl Signaller {
    /// Lets the kernel signal eventfds. If it refuses, the signaller writes to them, and a peer can block it; [`Signaller::refusal`] reports
    /// that.
    #[must_use]
    pub fn new() -> Self {
        let refused = |error: &Errno| REFUSAL.store(error.raw_os_error(), Ordering::Relaxed);
        Self(Requests::tried().inspect_err(refused).ok())
    }

    /// Why signallers of this process write, if one does: what the kernel said the last time.
    pub fn refusal() -> Option<Errno> {
        let error = REFUSAL.load(Ordering::Relaxed);
        (error != 0).then(|| Errno::from_raw_os_error(error))
    }

    /// Signals an eventfd. A failure does no harm: its sleeper has gone, or polls before long.
    #[cold]
    pub fn signal(&self, eventfd: &impl AsFd) {
        match &self.0 {
            Some(requests) => {
                let _ = requests.signal(eventfd.as_fd());
            }
            None => write(eventfd),
        }
    }
}

/// A new eventfd with nothing in it, in non-blocking mode, which programs that are started do not inherit.
///
/// # Errors
/// No more descriptors.
pub fn new_eventfd() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Signals an eventfd that no peer shares. A full count (EAGAIN) wakes as well; any other error means that there is no reader.
pub fn write(eventfd: &impl AsFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

#[derive(Debug)]
struct Requests {
    /// The kernel's name of the context.
    context: c_ulong,
    nothing: File,
}

impl Requests {
    /// With a request that has signalled an eventfd.
    fn tried() -> Result<Self, Errno> {
        let requests = Self::new()?;
        let trial = new_eventfd()?;
        requests.signal(trial.as_fd())?;
        // Nothing to read, EAGAIN, where the kernel has taken the request and signalled nothing.
        rustix::io::read(&trial, &mut [0; 8])?;
        Ok(requests)
    }

    fn new() -> Result<Self, Errno> {
        let nothing = File::open("/dev/null").map_err(|error| errno(&error))?;
        let mut context: c_ulong = 0;
        // SAFETY: takes a number and the address of another, which is ours and 0, as it must be.
        check(unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) })?;
        Ok(Self { context, nothing })
    }

    fn signal(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.submit(eventfd) {
            // The ring is full.
            Err(Errno::AGAIN) => {
                self.take_events();
                self.submit(eventfd)
            }
            result => result,
        }
    }

    fn submit(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: of integers only, for which zero is a value.
        let mut request: libc::iocb = unsafe { core::mem::zeroed() };
        request.aio_lio_opcode = IOCB_CMD_PREAD;
        request.aio_fildes = self.nothing.as_raw_fd().cast_unsigned();
        request.aio_flags = IOCB_FLAG_RESFD;
        request.aio_resfd = eventfd.as_raw_fd().cast_unsigned();
        let mut list = [&raw mut request];
        // SAFETY: the context is ours; the list has one pointer, to a request that lives until the call returns and has no
        // buffer. The kernel copies it, and writes to it only during the call.
        check(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, list.as_mut_ptr())
        })
    }

    /// Takes events out of the ring, so that there is room again.
    fn take_events(&self) {
        let mut events: [Event; EVENTS] = [[0; 4]; EVENTS];
        let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most) = (0 as libc::c_long, EVENTS as libc::c_long);
        // SAFETY: the context is ours; there is room for `most` events; the time is zero, so that nothing is waited for.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                least,
                most,
                events.as_mut_ptr(),
                &raw mut at_once,
            )
        };
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and not used afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn check(result: libc::c_long) -> Result<(), Errno> {
    if result < 0 { Err(errno(&std::io::Error::last_os_error())) } else { Ok(()) }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn count(eventfd: &impl AsFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(eventfd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    /// `None` where this process gets no context.
    fn signaller() -> Option<Signaller> {
        match Requests::new() {
            Ok(_) => Some(Signaller(Some(Requests::tried().unwrap()))),
            Err(error) => {
                println!("SKIP: io_setup(2): {error}");
                None
            }
        }
    }

    #[test]
    fn every_ring_counts_however_many_events_there_are() {
        let Some(signaller) = signaller() else { return };
        let eventfd = new_eventfd().unwrap();
        // More than the rings of a machine with a thousand processors hold.
        (0..20_000).for_each(|_| signaller.signal(&eventfd));
        assert_eq!(count(&eventfd), 20_000);
    }

    #[test]
    fn a_full_count_in_blocking_mode_is_not_waited_for() {
        let Some(signaller) = signaller() else { return };
        let eventfd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..3).for_each(|_| signaller.signal(&eventfd));
        assert_eq!(count(&eventfd), u64::MAX);
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let Some(Signaller(Some(requests))) = signaller() else { return };
        let file = File::open("/dev/null").unwrap();
        assert_eq!(requests.signal(file.as_fd()), Err(Errno::INVAL));
    }

    #[test]
    fn writing_wakes_as_well() {
        let eventfd = new_eventfd().unwrap();
        Signaller(None).signal(&eventfd);
        assert_eq!(count(&eventfd), 1);
    }
}
