// SPDX-License-Identifier: Apache-2.0
//! A packet as an NF sees it.

use core::slice;

use netvm_ids::{ChainId, PortId, RoleId};
use netvm_region::Region;
use netvm_ring::{Descriptor, VerdictKind};
use netvm_wire::ConnState;

/// Idle timeout of a per-flow verdict in seconds. The role's `flow_verdicts` in the configuration bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Idle(pub u16);

impl Idle {
    /// The longest timeout that the configuration allows.
    pub const MAX: Self = Self(u16::MAX);
}

/// What to do with a packet (NetVM, section 4.3: discard, send out, forward to another NF by role).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Verdict {
    /// Send it to the next hop of its chain, or after the last hop to the chain's output.
    #[default]
    Next,
    /// Discard it.
    Drop,
    /// Send it out of this port.
    Port(PortId),
    /// Send it to an NF of this role.
    Role(RoleId),
    /// Discard it and the rest of its flow: the engine drops the later packets before they reach the NF. A flow is
    /// defined by its packets at ingress: port, MAC addresses, EtherType, VLANs, IP addresses, protocol and ports, in
    /// one direction.
    ///
    /// The flow's worker applies the verdict until the flow has been idle for the timeout, this thread withdraws it
    /// ([`crate::Burst::withdraw`]), or the NF ends. If the configuration does not allow the role per-flow verdicts
    /// (`flow_verdicts`), or the NF is not in the packet's chain, this acts as [`Verdict::Drop`].
    DropFlow(Idle),
    /// As [`Verdict::Next`], and the rest of its flow bypasses this NF for as long as with [`Verdict::DropFlow`].
    /// Packets of the flow already in the NF's rings still arrive, and later ones may overtake them, once.
    SkipFlow(Idle),
    /// As [`Verdict::Next`], and the rest of its flow goes elsewhere: see [`Steer`].
    SteerFlow(Steer),
}

/// Where the rest of a flow goes, from the packet after this one on, straight from its ingress port: hops of its chain
/// before this NF do not see it either. Packets that are in the NF's rings already still arrive; if it passes them on
/// ([`Verdict::Next`]), they go the new way, and later ones may overtake them, once.
///
/// The engine applies it until the flow has been idle for the role's `flow_verdicts`, an NF gives the flow another one,
/// this thread withdraws it ([`crate::Burst::withdraw`]), or the NF ends. It drops a packet with a destination that the
/// role's `steer` does not list (`steer-denied`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Steer {
    /// Into this chain.
    Chain(ChainId),
    /// To this role: the next hop of the flow's chain with this role, else an NF of this role in the same trust group,
    /// after which the packet goes on behind the hop of the NF that steers.
    Role(RoleId),
    /// Out of this port.
    Port(PortId),
    /// The way on which no NF has steered it. Any NF that sees a packet of the flow may say so.
    Back,
}

impl Steer {
    /// Kind and argument of the verdict in a descriptor.
    pub(crate) const fn in_descriptor(self) -> (VerdictKind, u16) {
        match self {
            Self::Chain(chain) => (VerdictKind::SteerChain, chain.0),
            Self::Role(role) => (VerdictKind::SteerRole, role.0),
            Self::Port(port) => (VerdictKind::SteerPort, port.0),
            Self::Back => (VerdictKind::SteerBack, 0),
        }
    }
}

/// One packet, in its buffer.
///
/// The NF owns the packet until it gives its verdict: no other NF of the trust group writes to it. (NFs of one trust
/// group trust each other with their packets. An NF that breaks this rule can corrupt the bytes that another NF is
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
    /// The region's geometry contains the descriptor's buffer, offset and length. The caller's process owns the buffer
    /// and makes no second Packet of it.
    #[inline(always)]
    pub(crate) unsafe fn new(region: &'a Region, descriptor: &'a mut Descriptor) -> Self {
        Self { region, descriptor }
    }

    /// Its descriptor.
    #[inline(always)]
    pub(crate) const fn descriptor(&self) -> Descriptor {
        *self.descriptor
    }

    /// Where its descriptor is.
    #[inline(always)]
    pub(crate) const fn address(&self) -> *const Descriptor {
        &raw const *self.descriptor
    }

    /// The packet's bytes, from the Ethernet header on, without frame check sequence.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the caller of `new` and the changes of the span below keep it within the buffer, which this process
        // owns until the verdict.
        unsafe { slice::from_raw_parts(self.start(), self.len()) }
    }

    /// The packet's bytes, writable in place.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `data`; only `&mut self` gives access to the bytes in this process.
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

    /// Whether the packet has no bytes; never for a packet that the engine received.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that can be prepended.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(self.descriptor.offset())
    }

    /// Bytes that can be appended.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        self.region.geometry().size_of(self.descriptor.buffer()) as usize - self.headroom() - self.len()
    }

    /// Prepends `count` uninitialised bytes and returns the whole packet; without enough headroom returns `None` and
    /// changes nothing.
    pub fn prepend(&mut self, count: usize) -> Option<&mut [u8]> {
        let count = u16::try_from(count).ok()?;
        let offset = self.descriptor.offset().checked_sub(count)?;
        *self.descriptor = self.descriptor.with_span(offset, self.descriptor.length().checked_add(count)?);
        Some(self.data_mut())
    }

    /// Appends `count` bytes and returns the whole packet; without enough tailroom returns `None` and changes nothing.
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() {
            return None;
        }
        let length = self.descriptor.length().checked_add(u16::try_from(count).ok()?)?;
        *self.descriptor = self.descriptor.with_span(self.descriptor.offset(), length);
        Some(self.data_mut())
    }

    /// Removes `count` bytes from the front; if the packet is shorter, returns `None` and changes nothing.
    pub fn trim_front(&mut self, count: usize) -> Option<&mut [u8]> {
        let count = u16::try_from(count).ok()?;
        let length = self.descriptor.length().checked_sub(count)?;
        *self.descriptor = self.descriptor.with_span(self.descriptor.offset() + count, length);
        Some(self.data_mut())
    }

    /// Shortens the packet to `length` bytes; if it is shorter already, returns `None` and changes nothing.
    pub fn truncate(&mut self, length: usize) -> Option<&mut [u8]> {
        let length = u16::try_from(length).ok().filter(|length| *length <= self.descriptor.length())?;
        *self.descriptor = self.descriptor.with_span(self.descriptor.offset(), length);
        Some(self.data_mut())
    }

    /// Prefetches the packet's first bytes.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address has no effect that a program can see.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(self.start().cast());
        }
    }

    /// The packet's ingress port.
    #[inline]
    #[must_use]
    pub fn ingress(&self) -> PortId {
        PortId(self.descriptor.ingress())
    }

    /// What the engine says of the packet's connection, if its ingress port tracks connections; else
    /// [`ConnState::Untracked`].
    #[inline]
    #[must_use]
    pub fn state(&self) -> ConnState {
        ConnState::ALL.get(usize::from(self.descriptor.state())).copied().unwrap_or_default()
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

    /// Eight bits of the flow's hash, which select a replica if the chain balances by hash.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u8 {
        self.descriptor.hash()
    }

    /// Sets the hash that selects replicas from here on.
    #[inline]
    pub fn set_hash(&mut self, hash: u8) {
        *self.descriptor = self.descriptor.with_hash(hash);
    }
}
