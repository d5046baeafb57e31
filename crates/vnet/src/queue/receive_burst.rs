// SPDX-License-Identifier: Apache-2.0
//! Packets that are received together, in one system call: from a packet socket by recvmmsg(2), from a TAP device by
//! io_uring. Without io_uring, a TAP device takes a system call for each packet.

use std::os::fd::{AsFd, AsRawFd};

use super::control::{Control, tag_of};
use crate::queue::{Kind, Operation};
use crate::{Header, Queue, ReceiveError, Received};

/// Most packets of a burst.
pub const MAX_RECEIVED: usize = 8;
const _: () = assert!(MAX_RECEIVED <= crate::queue::ring::OPERATIONS);
/// Most parts of a packet.
pub const MAX_PARTS: usize = 64;

/// Places for packets to be received. Its memory is allocated once.
#[derive(Debug)]
pub struct ReceiveBurst {
    headers: Box<[Header; MAX_RECEIVED]>,
    controls: Box<[Control; MAX_RECEIVED]>,
    /// For each place, its header and its parts.
    parts: Vec<libc::iovec>,
    /// Where the parts of each place begin.
    starts: Vec<usize>,
}

// SAFETY: the addresses are used by the owner's thread only, between `push` and `receive`.
unsafe impl Send for ReceiveBurst {}

impl Default for ReceiveBurst {
    fn default() -> Self {
        Self {
            headers: Box::new([Header::default(); MAX_RECEIVED]),
            controls: Box::new([Control([0; 64]); MAX_RECEIVED]),
            parts: Vec::with_capacity(MAX_RECEIVED * (MAX_PARTS + 1)),
            starts: Vec::with_capacity(MAX_RECEIVED),
        }
    }
}

impl ReceiveBurst {
    /// Adds a place: parts that are filled one after the other, at most [`MAX_PARTS`]. More than [`MAX_RECEIVED`]
    /// places are left out.
    pub fn push(&mut self, parts: impl Iterator<Item = libc::iovec>) {
        let Some(header) = self.headers.get_mut(self.starts.len()) else { return };
        self.starts.push(self.parts.len());
        self.parts.push(libc::iovec { iov_base: (&raw mut *header).cast(), iov_len: size_of::<Header>() });
        self.parts.extend(parts.take(MAX_PARTS));
    }

    /// Receives packets into the places, in order, as long as there are any; has no places afterwards. Gives the
    /// outcome of each place up to the last that was used to `each`, and returns how many these were.
    ///
    /// # Safety
    /// The parts of all places may still be written to.
    pub unsafe fn receive(
        &mut self,
        queue: &mut Queue,
        each: impl FnMut(&Header, Result<Received, ReceiveError>),
    ) -> usize {
        // SAFETY: as the caller promises.
        let used = unsafe {
            match queue.kind() {
                Kind::Tap => self.read(queue, each),
                Kind::Socket => self.receive_messages(queue, each),
            }
        };
        self.starts.clear();
        self.parts.clear();
        used
    }

    fn parts_of(&self, place: usize) -> &[libc::iovec] {
        let end = self.starts.get(place + 1).copied().unwrap_or(self.parts.len());
        &self.parts[self.starts[place]..end]
    }

    unsafe fn read(
        &self,
        queue: &mut Queue,
        mut each: impl FnMut(&Header, Result<Received, ReceiveError>),
    ) -> usize {
        let places = (0..self.starts.len()).map(|place| self.parts_of(place));
        // SAFETY: as the caller of `receive` promises.
        if let Some(results) = unsafe { queue.run(Operation::Read, places) } {
            // A packet that comes meanwhile is read into a place behind empty ones.
            let is_used =
                |result: &i32| *result >= 0 || ReceiveError::of(result.checked_neg()) != ReceiveError::Empty;
            let used = results.iter().rposition(is_used).map_or(0, |last| last + 1);
            for (place, result) in results[..used].iter().enumerate() {
                let outcome = usize::try_from(*result).map_err(|_| ReceiveError::of(result.checked_neg()));
                each(&self.headers[place], outcome.and_then(|bytes| self.received(place, bytes)));
            }
            return used;
        }
        let fd = queue.as_fd().as_raw_fd();
        for place in 0..self.starts.len() {
            let parts = self.parts_of(place);
            // SAFETY: as the caller of `receive` promises.
            let bytes = unsafe { libc::readv(fd, parts.as_ptr(), parts.len() as libc::c_int) };
            let Ok(bytes) = usize::try_from(bytes) else {
                let error = ReceiveError::last();
                if error == ReceiveError::Empty {
                    return place;
                }
                each(&self.headers[place], Err(error));
                continue;
            };
            each(&self.headers[place], self.received(place, bytes));
        }
        self.starts.len()
    }

    /// What was read into a place.
    fn received(&self, place: usize, bytes: usize) -> Result<Received, ReceiveError> {
        let room: usize = self.parts_of(place).iter().map(|part| part.iov_len).sum();
        // The kernel cuts off what has no room; the result looks like a packet that just fits.
        if bytes >= room {
            return Err(ReceiveError::TooLong);
        }
        Ok(Received { length: bytes.saturating_sub(size_of::<Header>()), tag: None })
    }

    unsafe fn receive_messages(
        &mut self,
        queue: &Queue,
        mut each: impl FnMut(&Header, Result<Received, ReceiveError>),
    ) -> usize {
        // SAFETY: structures of integers and pointers: zeros are valid.
        let mut messages: [libc::mmsghdr; MAX_RECEIVED] = unsafe { std::mem::zeroed() };
        let count = self.starts.len();
        for (place, message) in messages.iter_mut().take(count).enumerate() {
            let control = &raw mut self.controls[place].0;
            let parts = self.parts_of(place);
            message.msg_hdr.msg_iov = parts.as_ptr().cast_mut();
            message.msg_hdr.msg_iovlen = parts.len();
            message.msg_hdr.msg_control = control.cast();
            message.msg_hdr.msg_controllen = size_of::<Control>();
        }
        let (fd, none) = (queue.as_fd().as_raw_fd(), std::ptr::null_mut());
        // SAFETY: as the caller of `receive` promises; headers and control buffers are of this burst.
        let used =
            unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT, none) };
        let Ok(used) = usize::try_from(used) else {
            let error = ReceiveError::last();
            if error == ReceiveError::Empty {
                return 0;
            }
            each(&self.headers[0], Err(error));
            return 1;
        };
        for (message, header) in messages.iter().take(used).zip(self.headers.iter()) {
            let received = if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                Err(ReceiveError::TooLong)
            } else {
                let length = (message.msg_len as usize).saturating_sub(size_of::<Header>());
                // SAFETY: `recvmmsg` has filled the message and its control buffer.
                Ok(Received { length, tag: unsafe { tag_of(&message.msg_hdr) } })
            };
            each(header, received);
        }
        used
    }
}
