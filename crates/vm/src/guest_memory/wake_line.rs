// SPDX-License-Identifier: Apache-2.0
//! Wakes a sleeping VM: the host writes the number of the NF thread to wake to a serial port of the VM. Every guest
//! kernel has a driver for serial ports, whereas the interrupts of `ivshmem-doorbell` need a special one.
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

/// Starts the wake-up thread and returns QEMU's end of the line. The thread ends when QEMU's end is closed.
/// `nf_threads` are the eventfds of the NF's threads, in order.
pub(crate) fn start(nf_threads: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (netvm_end, guest_end) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    start_on(netvm_end, nf_threads)?;
    Ok(guest_end)
}

/// Like [`start`], on an existing connection.
pub(crate) fn start_on(netvm_end: OwnedFd, nf_threads: &[BorrowedFd<'_>]) -> io::Result<()> {
    let nf_threads = nf_threads.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<Vec<_>>>()?;
    Builder::new().name("netvm-vm-wake".to_owned()).spawn(move || serve(&netvm_end, &nf_threads))?;
    Ok(())
}

fn serve(line: &OwnedFd, nf_threads: &[OwnedFd]) {
    loop {
        let mut fds: Vec<PollFd<'_>> =
            nf_threads.iter().map(|nf_thread| PollFd::new(nf_thread, PollFlags::IN)).collect();
        // Polls for hang-up only. What the guest writes stays unread, so it cannot keep this thread busy.
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
            if fds.get(usize::from(thread)).is_some_and(is_ready) && drain(nf_thread) {
                // If the line is full, it still holds wake-ups that the guest has not read.
                let _ = rustix::io::write(line, &[thread]);
            }
        }
    }
}

/// Drains an eventfd and returns whether it was signalled. NFs share the eventfd and may set it to blocking mode, so
/// the read must not block in any mode.
fn drain(nf_thread: &OwnedFd) -> bool {
    let mut count = [0; 8];
    preadv2(nf_thread, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn waking_an_nf_thread_writes_a_byte_to_the_line() {
        let event = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let nf_threads = [event(), event()];
        let line = start(&[nf_threads[0].as_fd(), nf_threads[1].as_fd()]).unwrap();
        for thread in [1u8, 0, 1] {
            rustix::io::write(&nf_threads[usize::from(thread)], &1u64.to_ne_bytes()).unwrap();
            let mut byte = [9];
            netvm_testing::until("a byte comes", || rustix::io::read(&line, &mut byte).is_ok());
            assert_eq!(byte, [thread]);
            // What the guest writes has no effect.
            let _ = rustix::io::write(&line, &[7; 4096]);
        }
    }

    #[test]
    fn draining_a_blocking_eventfd_does_not_block() {
        let nf_thread = eventfd(1, EventfdFlags::empty()).unwrap();
        assert!(drain(&nf_thread));
        assert!(!drain(&nf_thread));
    }
}
