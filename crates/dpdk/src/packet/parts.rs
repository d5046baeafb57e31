// SPDX-License-Identifier: Apache-2.0
//! Packets in several buffers: builds them from buffers that readv(2) filled, and describes them for writev(2).

use dpdk_sys as sys;

use crate::{Batch, BoundsError, Mbuf};

/// Address and length of bytes of a packet: an `iovec`.
pub type Part = sys::netvm_part;

/// Most parts that a packet is sent in: `UIO_MAXIOV` is 1,024.
pub const MAX_PARTS: usize = Batch::CAPACITY;

impl Mbuf {
    /// Builds one packet from buffers that were filled in order with `length` bytes in total. Unused buffers stay in
    /// the batch. `None` if the bytes do not fit; the batch is then unchanged.
    ///
    /// The buffers are as [`crate::Pool::alloc_frames_into`] gave them, without bytes.
    #[must_use]
    pub fn of_parts(buffers: &mut Batch, length: u32) -> Option<Self> {
        let mut left = length;
        let needed = buffers.as_slice().iter().position(|buffer| {
            let room = u32::from(buffer.buf_len() - buffer.data_off());
            left = left.saturating_sub(room);
            left == 0
        })?;
        let mut rest = buffers.split_off(needed + 1);
        let parts = buffers.release();
        let head = *parts.first()?;
        // SAFETY: the caller of `release` owns the buffers, which are of one segment each and have room for `length`
        // bytes, as just checked. From here on `head` owns them all.
        let packet = unsafe {
            sys::netvm_mbuf_link(parts.as_ptr().cast(), parts.len() as u32, length);
            head.own()
        };
        buffers.append(&mut rest);
        Some(packet)
    }

    /// Addresses and lengths of its bytes; `None` if `out` is too short for all parts.
    #[must_use]
    pub fn parts<'a>(&self, out: &'a mut [Part]) -> Option<&'a [Part]> {
        // SAFETY: `self` owns the mbuf and its segments; there is room for `out.len()` parts.
        let count =
            unsafe { sys::netvm_mbuf_parts(self.as_ptr().as_ptr(), out.as_mut_ptr(), out.len() as u32) };
        out.get(..count as usize)
    }

    /// Copies the first `length` bytes of another buffer's [`Mbuf::room`] to this packet, which then has this length.
    ///
    /// # Errors
    /// [`BoundsError`] if one of the buffers is too small.
    pub fn copy_room(&mut self, from: &Self, length: u16) -> Result<(), BoundsError> {
        let source = from.room();
        if source.length < usize::from(length) {
            return Err(BoundsError { offset: from.data_off(), length, buffer: from.buf_len(), segments: 1 });
        }
        self.set_bounds(self.data_off(), length)?;
        // SAFETY: both have room for `length` bytes, as just checked, and are different buffers.
        unsafe { std::ptr::copy_nonoverlapping(source.bytes.cast(), self.data(), usize::from(length)) };
        Ok(())
    }

    /// The writable bytes: from the beginning of the packet to the end of the buffer.
    #[must_use]
    pub fn room(&self) -> Part {
        Part { bytes: self.data().cast(), length: usize::from(self.buf_len() - self.data_off()) }
    }
}
