// SPDX-License-Identifier: Apache-2.0
//! A socket with packet memory of its own: packets are copied out of it and into it.
//!
//! For each queue the kernel keeps about 200 bytes for every buffer of the UMEM (`struct xdp_buff_xsk`), and writes all
//! of them when the socket is bound; it also pins every page. With the packet memory of a whole engine that is
//! megabytes and tens of milliseconds for a queue, whatever passes. A queue with few packets does better with just the
//! buffers that its rings hold.
//!
//! ```text
//!  free ──fill──▶ kernel ──rx──▶ copied out ──▶ free
//!  free ──▶ copied in ──▶ staged ──tx──▶ kernel ──completed──▶ free
//! ```

use std::os::fd::{AsFd, BorrowedFd};

use crate::buffers::{RxFrame, TxFrame};
use crate::errors::KickError;
use crate::kernel::sys::Mapping;
use crate::options::RingSizes;
use crate::socket::{DropCounter, Xsk};
use crate::umem::KERNEL_HEADROOM;

/// Frames handled at once.
const BURST: usize = 64;

/// A socket whose packet memory is its own ([`crate::Interface::private_queue`]). Dropping it loses the frames that
/// have not left yet.
#[derive(Debug)]
pub struct PrivateXsk {
    // Dropped first: the kernel pins the pages for as long as it needs them.
    xsk: Xsk,
    memory: Mapping,
    stride: u32,
    /// Buffers of this socket alone. It and `staged` never grow beyond their initial capacity.
    free: Vec<u32>,
    staged: Vec<TxFrame>,
    /// Buffers that the kernel may have to receive into, and those that it has: others are left to send from.
    most_receiving: u32,
    receiving: u32,
}

impl PrivateXsk {
    /// Buffers that rings of these sizes need.
    pub(crate) const fn buffers(rings: &RingSizes) -> u32 {
        rings.fill + rings.tx + BURST as u32
    }

    /// `xsk`, with these rings, uses `memory` from its start as buffers of `stride` bytes.
    pub(crate) fn new(xsk: Xsk, memory: Mapping, stride: u32, rings: &RingSizes) -> Self {
        let mut new = Self {
            xsk,
            memory,
            stride,
            free: (0..Self::buffers(rings)).collect(),
            staged: Vec::with_capacity(BURST),
            most_receiving: rings.fill,
            receiving: 0,
        };
        new.refill();
        new
    }

    /// Longest frame that it sends.
    #[must_use]
    pub fn room(&self) -> usize {
        self.stride as usize - usize::from(KERNEL_HEADROOM)
    }

    /// Passes up to `most` received frames to `each`, and gives the kernel buffers for as many. Returns the number of
    /// frames that were not passed, because they are not within a buffer.
    pub fn receive(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> u64 {
        let mut frames = [RxFrame::default(); BURST];
        let count = self.xsk.rx(&mut frames[..most.min(BURST)]);
        if count == 0 {
            return 0;
        }
        let mut outside = 0;
        for frame in &frames[..count] {
            let at = frame.buffer as usize * self.stride as usize + usize::from(frame.offset);
            // SAFETY: the kernel has returned this buffer, and only this object uses it, until it is given back below.
            match unsafe { self.memory.slice(at, frame.len.into()) } {
                Some(bytes) => each(bytes),
                None => outside += 1,
            }
            self.free.push(frame.buffer);
        }
        self.receiving = self.receiving.saturating_sub(count as u32);
        self.refill();
        outside
    }

    /// Takes a frame of `length` bytes, which `write` copies in, to be sent by [`PrivateXsk::flush`]; false if it is
    /// too long or there is no room.
    pub fn stage(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if length == 0 || length > self.room() {
            return false;
        }
        if self.staged.len() == BURST {
            self.flush();
        }
        if self.staged.len() == BURST {
            return false;
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(buffer) = self.free.pop() else { return false };
        let at = buffer as usize * self.stride as usize + usize::from(KERNEL_HEADROOM);
        // SAFETY: nobody else has this buffer.
        match unsafe { self.memory.slice_mut(at, length) } {
            Some(bytes) => write(bytes),
            None => {
                self.free.push(buffer);
                return false;
            }
        }
        self.staged.push(TxFrame { buffer, offset: KERNEL_HEADROOM, len: length as u16 });
        true
    }

    /// Passes the staged frames to the kernel, as far as its ring has room; returns how many, and their bytes.
    pub fn flush(&mut self) -> (u64, u64) {
        self.reclaim();
        let sent = self.xsk.tx(&self.staged);
        let bytes = self.staged[..sent].iter().map(|frame| u64::from(frame.len)).sum();
        self.staged.drain(..sent);
        (sent as u64, bytes)
    }

    /// Discards the staged frames; returns how many.
    pub fn discard_staged(&mut self) -> u64 {
        let count = self.staged.len();
        self.free.extend(self.staged.drain(..).map(|frame| frame.buffer));
        count as u64
    }

    /// Whether no frame is staged.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.staged.is_empty()
    }

    /// [`Xsk::kick_to_send`].
    pub fn kick_to_send(&mut self) -> bool {
        self.xsk.kick_to_send()
    }

    /// [`Xsk::kick`].
    ///
    /// # Errors
    /// [`KickError`].
    pub fn kick(&mut self) -> Result<(), KickError> {
        self.xsk.kick()
    }

    /// [`Xsk::drop_counter`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn drop_counter(&self) -> std::io::Result<DropCounter> {
        self.xsk.drop_counter()
    }

    /// Takes back the buffers of frames that have left.
    fn reclaim(&mut self) {
        let mut sent = [0; BURST];
        loop {
            let count = self.xsk.completed(&mut sent);
            self.free.extend_from_slice(&sent[..count]);
            if count < BURST {
                return;
            }
        }
    }

    /// Gives the kernel free buffers to receive into.
    fn refill(&mut self) {
        let wanted = (self.most_receiving - self.receiving) as usize;
        let from = self.free.len().saturating_sub(wanted);
        let taken = self.xsk.fill(&self.free[from..]);
        self.free.drain(from..from + taken);
        self.receiving += taken as u32;
    }
}

impl AsFd for PrivateXsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.xsk.as_fd()
    }
}
