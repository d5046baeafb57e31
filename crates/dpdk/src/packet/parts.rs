//! Packets in several buffers: made of buffers that readv(2) filled, and described for writev(2).

use dpdk_sys as sys;

use crate::{Batch, BoundsError, Mbuf};

/// Address and length of bytes of a packet: an `iovec`.
pub type Part = sys::netvm_part;

/// Most parts that a packet is sent in: `UIO_MAXIOV` is 1,024.
pub const MOST_PARTS: usize = Batch::CAPACITY;

impl Mbuf {
    /// Makes one packet of buffers over which `length` bytes were written one after the other, each to its end. Buffers
    /// that they did not reach stay in the batch. `None`, and the batch as it was, if they do not fit.
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

    /// Where its bytes are; `None` if in more parts than there is room for.
    #[must_use]
    pub fn parts<'a>(&self, out: &'a mut [Part]) -> Option<&'a [Part]> {
        // SAFETY: `self` owns the mbuf and its segments; there is room for `out.len()` parts.
        let count =
            unsafe { sys::netvm_mbuf_parts(self.as_ptr().as_ptr(), out.as_mut_ptr(), out.len() as u32) };
        out.get(..count as usize)
    }

    /// Takes the first `length` bytes of another buffer's [`Mbuf::room`] for its own, from its beginning on.
    ///
    /// # Errors
    /// [`BoundsError`] if either has no room for so many.
    pub fn copy_room(&mut self, from: &Self, length: u16) -> Result<(), BoundsError> {
        let there = from.room();
        if there.length < usize::from(length) {
            return Err(BoundsError { offset: from.data_off(), length, buffer: from.buf_len(), segments: 1 });
        }
        self.set_bounds(self.data_off(), length)?;
        // SAFETY: both have room for `length` bytes, as just checked, and are different buffers.
        unsafe { std::ptr::copy_nonoverlapping(there.bytes.cast(), self.data(), usize::from(length)) };
        Ok(())
    }

    /// Where bytes can be written to: all of the buffer behind the packet's beginning.
    #[must_use]
    pub fn room(&self) -> Part {
        Part { bytes: self.data().cast(), length: usize::from(self.buf_len() - self.data_off()) }
    }
}
