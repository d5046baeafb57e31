// SPDX-License-Identifier: Apache-2.0
//! Several reads or writes of a TAP device in one system call, by io_uring.
//!
//! All operations are of `RWF_NOWAIT`: they end within the system call that submits them, so the kernel keeps no
//! address. The ring has no thread of the kernel and needs no task work, so that any thread may use it, one at a time.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};

/// Most operations in one system call.
pub(super) const OPERATIONS: usize = 64;

/// What is done with a packet's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

/// An io_uring. It keeps no file open: registered files are closed some time after the ring, and their interface with
/// them.
pub(super) struct Ring {
    ring: IoUring,
    results: Box<[i32; OPERATIONS]>,
    count: usize,
}

impl Ring {
    /// A ring for a TAP device. If the device has a packet already, that one is lost.
    ///
    /// # Errors
    /// The kernel refuses io_uring (`kernel.io_uring_disabled`, seccomp), or cannot read the device without waiting.
    pub(super) fn open(device: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::new(OPERATIONS as u32)?;
        let mut ring = Self { ring, results: Box::new([0; OPERATIONS]), count: 0 };
        // With room for a packet: Linux 6.18 answers a read without room by 0, and does not ask the device.
        let mut bytes = [0u8; 256];
        let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the bytes outlive the call.
        unsafe { ring.run(device, Operation::Read, [&[part][..]].into_iter()) }?;
        match ring.results() {
            [result] if *result == -libc::EAGAIN || *result > 0 => Ok(ring),
            // Such as EOPNOTSUPP: the device's reads would wait.
            [result] if *result < 0 => Err(io::Error::from_raw_os_error(-*result)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// For each operation of the last [`Ring::run`], the number of bytes, or a negative error number.
    pub(super) fn results(&self) -> &[i32] {
        &self.results[..self.count]
    }

    /// Does an operation for each packet's parts, in order, at most [`OPERATIONS`].
    ///
    /// # Errors
    /// The ring does not work and must not be used again.
    ///
    /// # Safety
    /// The parts may still be read, or written to.
    pub(super) unsafe fn run<'a>(
        &mut self,
        device: BorrowedFd<'_>,
        operation: Operation,
        packets: impl Iterator<Item = &'a [libc::iovec]>,
    ) -> io::Result<()> {
        let file = types::Fd(device.as_raw_fd());
        self.count = 0;
        {
            let mut submission = self.ring.submission();
            for parts in packets.take(OPERATIONS) {
                let (first, length) = (parts.as_ptr(), parts.len() as u32);
                let entry = match operation {
                    Operation::Read => {
                        opcode::Readv::new(file, first, length).rw_flags(libc::RWF_NOWAIT).build()
                    }
                    Operation::Write => {
                        opcode::Writev::new(file, first, length).rw_flags(libc::RWF_NOWAIT).build()
                    }
                };
                // SAFETY: the parts stay valid until this function returns, as the caller promises, and the kernel does
                // not use them later: it ends each operation when it is submitted.
                unsafe { submission.push(&entry.user_data(self.count as u64)) }.map_err(io::Error::other)?;
                self.count += 1;
            }
        }
        let mut done = 0;
        while done < self.count {
            match self.ring.submit_and_wait(self.count - done) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for completion in self.ring.completion() {
                if let Some(result) = self.results.get_mut(completion.user_data() as usize) {
                    *result = completion.result();
                }
                done += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}
