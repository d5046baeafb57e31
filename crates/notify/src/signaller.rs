// SPDX-License-Identifier: Apache-2.0
//! Signals eventfds that peers share, without ever blocking.
//!
//! A peer that shares an eventfd can fill its count and set it to blocking mode, at any time. A write then blocks until
//! a process reads the eventfd, and no flag of write(2) prevents that. The kernel's internal signal cannot block: it
//! takes the eventfd's spinlock, adds one if there is room, and wakes the sleepers in either case. Linux AIO uses it to
//! report a completed request (`IOCB_FLAG_RESFD`, io_submit(2)). So the signaller submits a request that completes at
//! once:
//!
//! ```text
//!  io_submit: read 0 bytes from /dev/null ──▶ done ──▶ completion event in the context's ring, drained when it is full
//!                                              └─────▶ signal to the eventfd
//! ```
//!
//! Cost, without a sleeper, in a virtual machine on an AMD EPYC: 0.80 µs against 0.28 µs for a write, or 2.9 times as
//! much.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_ulong;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// `linux/aio_abi.h`.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;
/// Requests in flight. The kernel makes room for at least a hundred events anyway.
const REQUESTS: u32 = 1;
/// Events that one system call drains.
const EVENTS: usize = 128;

/// `struct io_event`; its content is not used.
type Event = [u64; 4];

/// Why a signaller of this process fell back to write(2): the kernel's error number, or 0.
static REFUSAL: AtomicI32 = AtomicI32::new(0);

/// Wakes sleepers by their eventfds. One per thread.
#[derive(Debug)]
pub struct Signaller(Option<AioContext>);

impl Default for Signaller {
    fn default() -> Self {
        Self::new()
    }
}

impl Signaller {
    /// Creates an AIO context. If the kernel refuses it, the signaller uses write(2), which a hostile peer can block;
    /// [`Signaller::refusal`] then returns the reason.
    #[must_use]
    pub fn new() -> Self {
        let refused = |error: &Errno| REFUSAL.store(error.raw_os_error(), Ordering::Relaxed);
        Self(AioContext::probed().inspect_err(refused).ok())
    }

    /// The last error for which a signaller of this process fell back to write(2), if any did.
    pub fn refusal() -> Option<Errno> {
        let error = REFUSAL.load(Ordering::Relaxed);
        (error != 0).then(|| Errno::from_raw_os_error(error))
    }

    /// Signals an eventfd. A failure is harmless: the sleeper is gone, or soon polls without a signal.
    #[cold]
    pub fn signal(&self, eventfd: &impl AsFd) {
        match &self.0 {
            Some(context) => {
                let _ = context.signal(eventfd.as_fd());
            }
            None => write(eventfd),
        }
    }
}

/// Whether a descriptor is an eventfd: no other kind is known never to block.
#[must_use]
pub fn is_eventfd(fd: impl AsFd) -> bool {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
}

/// A new eventfd with count 0, non-blocking and close-on-exec.
///
/// # Errors
/// The process is out of descriptors.
pub fn new_eventfd() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Signals a non-blocking eventfd that no untrusted peer shares. A full count (EAGAIN) is harmless, since the eventfd
/// is readable; any other error means that the sleeper is gone.
pub fn write(eventfd: &impl AsFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

#[derive(Debug)]
struct AioContext {
    /// The kernel's handle, `aio_context_t`.
    id: c_ulong,
    dev_null: File,
}

impl AioContext {
    /// A context that has signalled an eventfd in a trial.
    fn probed() -> Result<Self, Errno> {
        let context = Self::new()?;
        let trial = new_eventfd()?;
        context.signal(trial.as_fd())?;
        // Fails with EAGAIN if the kernel took the request but did not signal.
        rustix::io::read(&trial, &mut [0; 8])?;
        Ok(context)
    }

    fn new() -> Result<Self, Errno> {
        let dev_null = File::open("/dev/null").map_err(|error| errno(&error))?;
        let mut id: c_ulong = 0;
        // SAFETY: io_setup takes a number and the address of a handle, which is a local and 0, as it must be.
        check(unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut id) })?;
        Ok(Self { id, dev_null })
    }

    fn signal(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.submit(eventfd) {
            // The event ring is full.
            Err(Errno::AGAIN) => {
                self.drain_events();
                self.submit(eventfd)
            }
            result => result,
        }
    }

    fn submit(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: iocb has only integer fields, for which zero is a value.
        let mut request: libc::iocb = unsafe { core::mem::zeroed() };
        request.aio_lio_opcode = IOCB_CMD_PREAD;
        request.aio_fildes = self.dev_null.as_raw_fd().cast_unsigned();
        request.aio_flags = IOCB_FLAG_RESFD;
        request.aio_resfd = eventfd.as_raw_fd().cast_unsigned();
        let mut list = [&raw mut request];
        // SAFETY: `self` owns the context. The list has one pointer, to a request without a buffer that lives until the
        // call returns. The kernel copies the request, and writes to it only during the call.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as libc::c_long, list.as_mut_ptr()) })
    }

    /// Makes room in the event ring.
    fn drain_events(&self) {
        let mut events: [Event; EVENTS] = [[0; 4]; EVENTS];
        let mut no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (least, most) = (0 as libc::c_long, EVENTS as libc::c_long);
        // SAFETY: `self` owns the context; `events` has room for `most` events. With a timeout of zero the call does
        // not wait.
        unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, least, most, events.as_mut_ptr(), &raw mut no_wait)
        };
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        // SAFETY: `self` owns the context, and does not use it afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
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

    /// `None` where the kernel gives this process no context.
    fn signaller() -> Option<Signaller> {
        match AioContext::new() {
            Ok(_) => Some(Signaller(Some(AioContext::probed().unwrap()))),
            Err(error) => {
                println!("SKIP: io_setup(2): {error}");
                None
            }
        }
    }

    #[test]
    fn signals_count_though_the_event_ring_overflows() {
        let Some(signaller) = signaller() else { return };
        let eventfd = new_eventfd().unwrap();
        // More events than the ring of a machine with a thousand processors holds.
        (0..20_000).for_each(|_| signaller.signal(&eventfd));
        assert_eq!(count(&eventfd), 20_000);
    }

    #[test]
    fn a_full_count_in_blocking_mode_does_not_block() {
        let Some(signaller) = signaller() else { return };
        let eventfd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..3).for_each(|_| signaller.signal(&eventfd));
        assert_eq!(count(&eventfd), u64::MAX);
    }

    #[test]
    fn a_descriptor_that_is_not_an_eventfd_is_refused() {
        let Some(Signaller(Some(context))) = signaller() else { return };
        let file = File::open("/dev/null").unwrap();
        assert_eq!(context.signal(file.as_fd()), Err(Errno::INVAL));
    }

    #[test]
    fn the_fallback_writes() {
        let eventfd = new_eventfd().unwrap();
        Signaller(None).signal(&eventfd);
        assert_eq!(count(&eventfd), 1);
    }
}
