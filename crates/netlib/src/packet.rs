//! A packet as an NF sees it.

use core::slice;

use netvm_region::Region;
use netvm_ring::Descriptor;

/// Number of a port, as descriptors carry it; names are in [`crate::Endpoint::port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// Number of a role, as descriptors carry it; names are in [`crate::Endpoint::role`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoleId(pub u16);

/// How long a word about a flow holds while no packet of the flow comes, in seconds. The role's `flow_verdicts` in the
/// configuration bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Idle(pub u16);

impl Idle {
    /// As long as the configuration allows.
    pub const LONGEST: Self = Self(u16::MAX);
}

/// What is to become of a packet (NetVM, section 4.3: discard, send out, forward to another NF by role).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Verdict {
    /// To the next hop of its chain, or to the chain's output after the last.
    #[default]
    Next,
    /// Discard.
    Drop,
    /// Out of this port.
    Port(PortId),
    /// To an NF of this role.
    Role(RoleId),
    /// Discard, and the rest of its flow too: the engine drops it before it gets here. A flow is what its packets were when
    /// they came in: port, MAC addresses, EtherType, VLANs, IP addresses, protocol and ports, in one direction.
    ///
    /// Holds with the engine worker that the packet came by, which is the flow's own; until the flow is idle for so long, this
    /// thread takes it back ([`crate::Burst::withdraw`]), or the NF ends. Where the configuration does not let the role decide on
    /// flows (`flow_verdicts`) or the NF is not in the packet's chain, it is as [`Verdict::Drop`].
    DropFlow(Idle),
    /// As [`Verdict::Next`], and the rest of its flow passes this NF by, as long as for [`Verdict::DropFlow`]. Packets of the
    /// flow that are on their way here already still come, and may be overtaken by later ones, once.
    SkipFlow(Idle),
}

/// One packet, in its buffer.
///
/// The NF owns the packet until it gives its verdict: no other NF of the trust group writes to it. (NFs of one
/// trust group trust each other with their packets; an NF that breaks this can spoil the bytes that another one is
/// reading, and nothing else.)
#[derive(Debug)]
pub struct Packet<'a> {
    region: &'a Region,
    descriptor: &'a mut Descriptor,
}

impl<'a> Packet<'a> {
    /// The packet of a descriptor whose bounds were checked against the region.
    ///
    /// # Safety
    /// The region's geometry contains the descriptor's buffer, offset and length; the caller's process holds the buffer and
    /// makes no second Packet of it.
    #[inline(always)]
    pub(crate) unsafe fn new(region: &'a Region, descriptor: &'a mut Descriptor) -> Self {
        Self { region, descriptor }
    }

    /// The packet's bytes, from the Ethernet header on, without the frame check sequence.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: `new`'s caller, and the changes of place below, keep the span within the buffer; the buffer is held by
        // this process until the verdict.
        unsafe { slice::from_raw_parts(self.start(), self.len()) }
    }

    /// The packet's bytes, to change in place.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `data`; `&mut self` is the only way to the bytes in this process.
        unsafe { slice::from_raw_parts_mut(self.start(), self.len()) }
    }

    #[inline(always)]
    fn start(&self) -> *mut u8 {
        // SAFETY: the buffer number is below the number of buffers (`new`), the offset within the buffer.
        unsafe { self.region.buffer(self.descriptor.buffer()).add(usize::from(self.descriptor.offset())) }
            .as_ptr()
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.descriptor.length())
    }

    /// Whether it has no bytes; never the case for a packet that the engine received.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that can be put in front.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(self.descriptor.offset())
    }

    /// Bytes that can be added at the end.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        self.region.geometry().stride as usize - self.headroom() - self.len()
    }

    /// Puts `count` bytes in front and returns the whole packet; `None`, and no change, when there is no such headroom.
    /// The new bytes hold whatever was there.
    pub fn prepend(&mut self, count: usize) -> Option<&mut [u8]> {
        let count = u16::try_from(count).ok()?;
        let offset = self.descriptor.offset().checked_sub(count)?;
        *self.descriptor = self.descriptor.with_span(offset, self.descriptor.length().checked_add(count)?);
        Some(self.data_mut())
    }

    /// Adds `count` bytes at the end and returns the whole packet; `None`, and no change, when there is no such tailroom.
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let length = self.descriptor.length().checked_add(u16::try_from(count).ok()?)?;
        *self.descriptor = self.descriptor.with_span(self.descriptor.offset(), length);
        Some(self.data_mut())
    }

    /// Takes `count` bytes off the front; `None`, and no change, when the packet is shorter.
    pub fn trim_front(&mut self, count: usize) -> Option<&mut [u8]> {
        let count = u16::try_from(count).ok()?;
        let length = self.descriptor.length().checked_sub(count)?;
        *self.descriptor = self.descriptor.with_span(self.descriptor.offset() + count, length);
        Some(self.data_mut())
    }

    /// Shortens the packet to `length` bytes; `None`, and no change, when it is shorter already.
    pub fn truncate(&mut self, length: usize) -> Option<&mut [u8]> {
        let length = u16::try_from(length).ok().filter(|length| *length <= self.descriptor.length())?;
        *self.descriptor = self.descriptor.with_span(self.descriptor.offset(), length);
        Some(self.data_mut())
    }

    /// Asks for the packet's first bytes to be brought into the cache.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address has no effect that a program can see.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(self.start().cast());
        }
    }

    /// The port that the packet came in by.
    #[inline]
    #[must_use]
    pub fn ingress(&self) -> PortId {
        PortId(self.descriptor.argument())
    }

    /// Number of the packet's chain.
    #[inline]
    #[must_use]
    pub fn chain(&self) -> u16 {
        self.descriptor.chain()
    }

    /// Position of this NF in the chain, from 0.
    #[inline]
    #[must_use]
    pub fn hop(&self) -> u8 {
        self.descriptor.hop()
    }

    /// Eight bits of the flow's hash, by which a replica is chosen where the chain says so.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u8 {
        self.descriptor.hash()
    }

    /// Sets the hash by which replicas are chosen from here on.
    #[inline]
    pub fn set_hash(&mut self, hash: u8) {
        *self.descriptor = self.descriptor.with_hash(hash);
    }
}
