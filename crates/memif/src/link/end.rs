// SPDX-License-Identifier: Apache-2.0
//! One end of a ring: the buffers behind its descriptors, whichever side made them.

#![allow(unsafe_code, reason = "prefetches")]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::memory::{Buffers, Descriptor, Regions, Ring};
use crate::status::Fault;

/// A ring, its buffers, and how far this side is.
#[derive(Debug)]
pub(crate) struct End {
    pub(super) ring: Ring,
    regions: Regions,
    /// The buffers of its descriptors, if this side is the client, which made them.
    own: Option<Buffers>,
    /// Descriptors that this side has handled.
    pub(super) next: u16,
    /// The eventfd of the ring.
    pub(super) interrupt: Arc<OwnedFd>,
}

/// A part of shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: *mut u8,
    pub(super) bytes: u32,
}

impl Place {
    /// Loads its first cache line early.
    #[inline]
    pub(super) fn prefetch_to_read(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching reads nothing and faults at no address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(self.start.cast());
        }
    }

    /// The same, to be written: no other core has it then.
    #[inline]
    pub(super) fn prefetch_to_write(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(self.start.cast());
        }
    }
}

impl End {
    /// Of a server: buffers are where descriptors say.
    pub(crate) fn of_server(ring: Ring, regions: Regions, interrupt: OwnedFd) -> Self {
        let next = ring.tail();
        Self { ring, regions, own: None, next, interrupt: Arc::new(interrupt) }
    }

    /// Of a client, which has made these buffers.
    pub(crate) fn of_client(ring: Ring, regions: Regions, buffers: Buffers, interrupt: OwnedFd) -> Self {
        Self { ring, regions, own: Some(buffers), next: 0, interrupt: Arc::new(interrupt) }
    }

    pub(super) const fn is_client(&self) -> bool {
        self.own.is_some()
    }

    /// Where the bytes are that a descriptor tells of.
    #[inline]
    pub(super) fn place(&self, count: u16, descriptor: Descriptor) -> Result<Place, Fault> {
        let Descriptor { region, offset, length, .. } = match self.own {
            None => descriptor,
            Some(buffers) if descriptor.length > buffers.bytes => return Err(Fault::Ring),
            // The peer may have written another place.
            Some(buffers) => buffers.descriptor(count, descriptor.length),
        };
        let start = self.regions.part(region, offset, length).ok_or(Fault::Ring)?;
        Ok(Place { start, bytes: length })
    }

    /// The free buffer of a descriptor.
    #[inline]
    pub(super) fn free_place(&self, count: u16, descriptor: Descriptor) -> Result<Place, Fault> {
        match self.own {
            Some(buffers) => self.place(count, buffers.descriptor(count, buffers.bytes)),
            None if descriptor.length == 0 => Err(Fault::Ring),
            None => self.place(count, descriptor),
        }
    }

    /// Says of a descriptor how many bytes its buffer holds, and whether the packet goes on in the next one.
    #[inline]
    pub(super) fn fill(&self, count: u16, descriptor: Descriptor) {
        match self.own {
            Some(buffers) => {
                let Descriptor { goes_on, length, .. } = descriptor;
                self.ring.set_descriptor(count, Descriptor { goes_on, ..buffers.descriptor(count, length) });
            }
            None => self.ring.set_length(count, descriptor),
        }
    }

    /// Says of the next descriptors, which this side has read, that none goes on. As a client, DPDK sets that flag for
    /// a packet of several buffers and never takes it away, so that a later packet would go on in the one after it.
    #[cold]
    pub(super) fn end_chain(&self, used: u16) {
        if self.is_client() {
            return;
        }
        for n in 0..used {
            let count = self.next.wrapping_add(n);
            let descriptor = Descriptor { goes_on: false, ..self.ring.descriptor(count) };
            self.ring.set_length(count, descriptor);
        }
    }

    /// Makes the buffers of a client's descriptors from `begin` to `next` free again.
    #[inline]
    pub(super) fn refill(&self, begin: u16) {
        let Some(buffers) = self.own else { return };
        for n in 0..self.next.wrapping_sub(begin) {
            let count = begin.wrapping_add(n);
            self.ring.set_descriptor(count, buffers.descriptor(count, buffers.bytes));
        }
        self.ring.set_head(self.next.wrapping_add(self.ring.size()));
    }

    /// The number of descriptors between two counts, of which the peer has written one.
    #[inline]
    pub(super) fn between(&self, from: u16, to: u16) -> Result<u16, Fault> {
        let count = to.wrapping_sub(from);
        if count > self.ring.size() { Err(Fault::Ring) } else { Ok(count) }
    }
}
