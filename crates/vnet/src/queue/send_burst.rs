// SPDX-License-Identifier: Apache-2.0
//! Packets that are sent together, in one system call: by a packet socket by sendmmsg(2), by a TAP device by io_uring.
//! Without io_uring, a TAP device takes a system call for each packet.

use std::os::fd::{AsFd, AsRawFd};

use crate::queue::{Kind, Operation};
use crate::{Header, Queue, SendError};

/// Most packets of a burst.
const BURST: usize = 64;
/// Most parts of all packets of a burst, their headers included.
const MAX_BURST_PARTS: usize = 512;

const _: () = assert!(BURST <= crate::queue::ring::OPERATIONS);

/// A burst that is gathered and then sent. Its memory is allocated once.
#[derive(Debug)]
pub struct SendBurst {
    headers: Box<[Header; BURST]>,
    /// For each packet, its header and its parts.
    parts: Vec<libc::iovec>,
    /// Where the parts of each packet begin.
    starts: Vec<usize>,
}

// SAFETY: the addresses are used by the owner's thread only, between `push` and `send`.
unsafe impl Send for SendBurst {}

impl Default for SendBurst {
    fn default() -> Self {
        Self {
            headers: Box::new([Header::default(); BURST]),
            parts: Vec::with_capacity(MAX_BURST_PARTS),
            starts: Vec::with_capacity(BURST),
        }
    }
}

impl SendBurst {
    /// Whether there is room for a packet of so many parts; there always is if the burst is empty.
    #[must_use]
    pub fn has_room(&self, parts: usize) -> bool {
        self.starts.len() < BURST && self.parts.len() + 1 + parts <= MAX_BURST_PARTS
    }

    /// Adds a packet, for which there is room.
    pub fn push(&mut self, header: Header, parts: impl Iterator<Item = libc::iovec>) {
        let Some(own) = self.headers.get_mut(self.starts.len()) else { return };
        *own = header;
        self.starts.push(self.parts.len());
        self.parts.push(libc::iovec { iov_base: (&raw mut *own).cast(), iov_len: size_of::<Header>() });
        self.parts.extend(parts);
    }

    /// Sends the packets in order, and is empty afterwards. Gives the outcome of each to `each`.
    ///
    /// # Safety
    /// The parts of all packets may still be read.
    pub unsafe fn send(&mut self, queue: &mut Queue, mut each: impl FnMut(Result<(), SendError>)) {
        let count = self.starts.len();
        let mut at = 0;
        if queue.kind() == Kind::Tap {
            let packets = (0..count).map(|packet| self.parts_of(packet));
            // SAFETY: as the caller promises.
            if let Some(results) = unsafe { queue.run(Operation::Write, packets) } {
                let outcome = |result: &i32| {
                    if *result < 0 { Err(SendError::of(result.checked_neg())) } else { Ok(()) }
                };
                results.iter().map(outcome).for_each(&mut each);
                at = count;
            }
        }
        while at < count {
            // SAFETY: as the caller promises.
            let sent = unsafe {
                match queue.kind() {
                    Kind::Tap => self.write(queue, at),
                    Kind::Socket => self.send_messages(queue, at),
                }
            };
            match sent {
                Ok(sent) => {
                    (0..sent).for_each(|_| each(Ok(())));
                    at += sent.max(1);
                }
                Err(error @ (SendError::Full | SendError::Down)) => {
                    // The others would fail as well.
                    (at..count).for_each(|_| each(Err(error)));
                    break;
                }
                Err(error) => {
                    each(Err(error));
                    at += 1;
                }
            }
        }
        self.starts.clear();
        self.parts.clear();
    }

    fn parts_of(&self, packet: usize) -> &[libc::iovec] {
        let end = self.starts.get(packet + 1).copied().unwrap_or(self.parts.len());
        &self.parts[self.starts[packet]..end]
    }

    unsafe fn write(&self, queue: &Queue, packet: usize) -> Result<usize, SendError> {
        let parts = self.parts_of(packet);
        // SAFETY: as the caller of `send` promises.
        let sent =
            unsafe { libc::writev(queue.as_fd().as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
        if sent < 0 { Err(SendError::last()) } else { Ok(1) }
    }

    unsafe fn send_messages(&self, queue: &Queue, from: usize) -> Result<usize, SendError> {
        // SAFETY: structures of integers and pointers: zeros are valid.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        let count = self.starts.len() - from;
        for (message, packet) in messages.iter_mut().zip(from..self.starts.len()) {
            let parts = self.parts_of(packet);
            message.msg_hdr.msg_iov = parts.as_ptr().cast_mut();
            message.msg_hdr.msg_iovlen = parts.len();
        }
        let fd = queue.as_fd().as_raw_fd();
        // SAFETY: as the caller of `send` promises; the kernel only reads the parts.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| SendError::last())
    }
}
