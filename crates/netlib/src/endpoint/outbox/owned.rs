// SPDX-License-Identifier: Apache-2.0
//! A packet that an NF has beyond a burst.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netvm_ids::PortId;
use netvm_region::Region;
use netvm_ring::Descriptor;

use crate::packet::Packet;
use crate::shared::Shared;

/// What an endpoint and the packets that it has given out share.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    /// Packets that were dropped without [`Outbox::send`](super::Outbox::send).
    dropped: Mutex<Vec<Kept>>,
    has_dropped: AtomicBool,
}

impl Owner {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, dropped: Mutex::default(), has_dropped: AtomicBool::new(false) })
    }

    /// The packets that were dropped since the last call.
    pub(super) fn take_dropped(&self) -> Vec<Kept> {
        if !self.has_dropped.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn drop_one(&self, kept: Kept) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        self.has_dropped.store(true, Ordering::Release);
    }
}

/// A buffer that the engine has recorded as kept by this NF thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Chain, hop and worker as of the packet that it was made for, or that it is; the argument is what
    /// [`Descriptor::arrival`] makes.
    pub(super) descriptor: Descriptor,
    pub(super) origin: Origin,
}

/// Where a kept packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The NF received it.
    Received,
    /// The NF made it, and it has no ingress port.
    Made,
    /// The NF made it, and it counts as received by the port in the descriptor.
    MadeAsReceived,
}

/// A packet that an NF has made, copied or holds: it stays with the NF until it is sent ([`Outbox::send`]) or dropped,
/// which frees its buffer. The engine takes it back if the NF ends.
///
/// [`Outbox::send`]: crate::Outbox::send
#[derive(Debug)]
pub struct OwnedPacket {
    kept: Kept,
    /// The region of its buffer.
    region: usize,
    /// `None` only while it is sent.
    owner: Option<Arc<Owner>>,
}

impl OwnedPacket {
    /// A kept packet; `None` if its bounds exceed its buffer.
    pub(super) fn new(owner: &Arc<Owner>, kept: Kept) -> Option<Self> {
        let region = owner.shared.control.region_of(kept.descriptor.worker())?;
        let (buffer, offset, length) =
            (kept.descriptor.buffer(), kept.descriptor.offset(), kept.descriptor.length());
        let geometry = owner.shared.regions.get(region)?.geometry();
        geometry.contains(buffer, offset, length).then(|| Self {
            kept,
            region,
            owner: Some(Arc::clone(owner)),
        })
    }

    /// The packet, with all that an NF can do to one that it has just received.
    ///
    /// # Panics
    /// Never: a packet has its region until it is sent.
    #[inline]
    pub fn packet(&mut self) -> Packet<'_> {
        let Self { kept, region, owner } = self;
        let Some(region) = owner.as_ref().and_then(|owner| owner.shared.regions.get(*region)) else {
            unreachable!("`new` has found the region, and `into_kept` consumes the packet")
        };
        // SAFETY: `new` has checked the bounds, and Packet keeps them within the buffer. This process owns the buffer
        // until the packet is sent, and `&mut self` makes this the only Packet.
        unsafe { Packet::new(region, &mut kept.descriptor) }
    }

    /// The packet's bytes, from the Ethernet header on.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let Some(region) = self.region() else { return &[] };
        let descriptor = self.kept.descriptor;
        // SAFETY: as for `packet`; `&self` allows no writer in this process.
        unsafe {
            let start = region.buffer(descriptor.buffer()).add(usize::from(descriptor.offset()));
            core::slice::from_raw_parts(start.as_ptr(), usize::from(descriptor.length()))
        }
    }

    /// The packet's bytes, writable in place.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let Some(region) = self.region() else { return &mut [] };
        let descriptor = self.kept.descriptor;
        // SAFETY: as for `packet`.
        unsafe {
            let start = region.buffer(descriptor.buffer()).add(usize::from(descriptor.offset()));
            core::slice::from_raw_parts_mut(start.as_ptr(), usize::from(descriptor.length()))
        }
    }

    fn region(&self) -> Option<&Region> {
        self.owner.as_ref()?.shared.regions.get(self.region)
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.descriptor.length().into()
    }

    /// Whether the packet has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The packet's ingress port; `None` for one that the NF has made for no other.
    #[must_use]
    pub fn ingress(&self) -> Option<PortId> {
        (self.kept.origin != Origin::Made).then(|| PortId(self.kept.descriptor.ingress()))
    }

    /// Makes a packet count as received by this port, one of those that the NF's trust group may send to. Does nothing
    /// to a packet that was received.
    pub fn set_ingress(&mut self, port: PortId) {
        if self.kept.origin != Origin::Received {
            self.kept.origin = Origin::MadeAsReceived;
            let descriptor = self.kept.descriptor;
            let (chain, hop) = (descriptor.chain(), descriptor.hop());
            let arrival = Descriptor::arrival(port.0, 0);
            let moved = descriptor.on_path(chain, hop, arrival, descriptor.worker());
            self.kept.descriptor = moved.with_hash(descriptor.hash());
        }
    }

    pub(super) fn is_of(&self, owner: &Arc<Owner>) -> bool {
        self.owner.as_ref().is_some_and(|own| Arc::ptr_eq(own, owner))
    }

    /// Its buffer, which is the caller's.
    pub(super) fn into_kept(mut self) -> Kept {
        self.owner = None;
        self.kept
    }
}

impl Drop for OwnedPacket {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.drop_one(self.kept);
        }
    }
}
