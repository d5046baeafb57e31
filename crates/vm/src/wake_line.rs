//! How the host wakes a VM that sleeps: a serial port of the VM, on which the host writes the number of the thread that is to
//! look for packets. Every kernel has a driver for it, whereas the interrupts of `ivshmem-doorbell` need one of their own.
//!
//! ```text
//!  eventfd of each NF thread of the NF ─▶ thread here ─▶ socket ─▶ QEMU: isa-serial ─▶ guest: /dev/ttyS1 ─▶ netlib
//! ```

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::Builder;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Starts the thread, which ends when nobody has QEMU's end any more; returns that end. The eventfds are those of the NF's
/// threads, in their order, and do not block.
pub(crate) fn start(nf_threads: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    start_on(ours, nf_threads)?;
    Ok(theirs)
}

/// As [`start`], on this end of a line.
pub(crate) fn start_on(ours: OwnedFd, nf_threads: &[BorrowedFd<'_>]) -> io::Result<()> {
    let nf_threads = nf_threads.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<Vec<_>>>()?;
    Builder::new().name("netvm-vm-wake".to_owned()).spawn(move || serve(&ours, &nf_threads))?;
    Ok(())
}

fn serve(line: &OwnedFd, nf_threads: &[OwnedFd]) {
    loop {
        let mut fds: Vec<PollFd<'_>> =
            nf_threads.iter().map(|nf_thread| PollFd::new(nf_thread, PollFlags::IN)).collect();
        // Asked for nothing but its end: what the guest writes is left where it is, so that it can keep nobody busy here.
        fds.push(PollFd::from_borrowed_fd(line.as_fd(), PollFlags::empty()));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if fds.last().is_some_and(is_ready) {
            return;
        }
        for (thread, nf_thread) in (0u8..).zip(nf_threads) {
            if fds.get(usize::from(thread)).is_some_and(is_ready) && is_emptied(nf_thread) {
                // A line that takes no more has wake-ups on it that the guest has not seen yet.
                let _ = rustix::io::write(line, &[thread]);
            }
        }
    }
}

/// Takes the count of an eventfd back to zero, and says whether it was not. NFs share it, and may have it in blocking mode,
/// which must not hold here.
fn is_emptied(nf_thread: &OwnedFd) -> bool {
    let mut count = [0; 8];
    preadv2(nf_thread, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::{Duration, Instant};

    #[test]
    fn a_nf_thread_that_is_woken_is_a_byte_on_the_line() {
        let event = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let nf_threads = [event(), event()];
        let line = start(&[nf_threads[0].as_fd(), nf_threads[1].as_fd()]).unwrap();
        for thread in [1u8, 0, 1] {
            rustix::io::write(&nf_threads[usize::from(thread)], &1u64.to_ne_bytes()).unwrap();
            let mut byte = [9];
            let start = Instant::now();
            while rustix::io::read(&line, &mut byte).is_err() {
                assert!(start.elapsed() < Duration::from_secs(10), "nothing came");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(byte, [thread]);
            // Whatever the guest writes changes nothing.
            let _ = rustix::io::write(&line, &[7; 4096]);
        }
    }

    #[test]
    fn a_nf_thread_in_blocking_mode_that_somebody_else_has_emptied_is_not_waited_for() {
        let nf_thread = eventfd(1, EventfdFlags::empty()).unwrap();
        assert!(is_emptied(&nf_thread));
        assert!(!is_emptied(&nf_thread));
    }
}
