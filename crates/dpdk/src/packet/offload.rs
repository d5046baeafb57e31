// SPDX-License-Identifier: Apache-2.0
//! Offloads: a packet whose checksum is not computed yet, and a TCP segment or UDP datagram to be cut into packets.
//!
//! Such packets come from guests ([`crate::VhostQueue::receive`]) and from interfaces of the kernel, and may go to
//! guests and interfaces that accept them ([`crate::VhostQueue::accepts`]). Before any other use, netvm finishes them.

use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::{Accepts, BoundsError, Mbuf, MbufPtr, Pool};

const TX_OFFLOAD: usize = sys::NETVM_MBUF_OFF_TX_OFFLOAD as usize;
const L2_BITS: u32 = sys::NETVM_OFFLOAD_L2_BITS;
const L3_BITS: u32 = sys::NETVM_OFFLOAD_L3_BITS;
const L4_BITS: u32 = sys::NETVM_OFFLOAD_L4_BITS;
/// Where the length of a tunnel's link layer is.
const OUTER_L2: u32 =
    L2_BITS + L3_BITS + L4_BITS + sys::NETVM_OFFLOAD_SIZE_BITS + sys::NETVM_OFFLOAD_OUTER_L3_BITS;
const OUTER_L2_BITS: u32 = sys::NETVM_OFFLOAD_OUTER_L2_BITS;

/// A TCP segment or UDP datagram to be split into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized {
    /// Bytes of the link layer's headers.
    pub l2: u16,
    /// Bytes of the IP header, with its options or extension headers.
    pub l3: u16,
    /// Bytes of the TCP header, with its options, or of the UDP header.
    pub l4: u16,
    /// Bytes of payload per packet, from the sender. Untrusted: any value is possible.
    pub size: u16,
    /// IPv6, else IPv4.
    pub v6: bool,
    /// UDP, else TCP.
    pub udp: bool,
}

/// A checksum that is not computed yet: its field holds the pseudo header's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Bytes of the link layer's headers.
    pub l2: u16,
    /// Bytes from there to the header of TCP or UDP.
    pub l3: u16,
    /// UDP, else TCP.
    pub udp: bool,
}

/// Most bytes that [`Oversized`] and [`Unfinished`] can give as `l2`, `l3` and `l4`.
pub const MAX_HEADER_LENGTHS: [u16; 3] = [(1 << L2_BITS) - 1, (1 << L3_BITS) - 1, (1 << L4_BITS) - 1];

impl Oversized {
    /// Bytes of all headers.
    #[must_use]
    pub const fn headers(&self) -> usize {
        self.l2 as usize + self.l3 as usize + self.l4 as usize
    }
}

impl Accepts {
    /// Whether a guest that accepts these offloads accepts a packet unchanged.
    #[must_use]
    pub fn takes(self, packet: &Mbuf) -> bool {
        match packet.oversized() {
            Some(_) if packet.tunnel().is_some() => false,
            Some(Oversized { udp: true, .. }) => self.checksum && self.uso,
            Some(cut) => self.checksum && if cut.v6 { self.tso6 } else { self.tso4 },
            None => packet.nb_segs() == 1 && (self.checksum || packet.is_finished()),
        }
    }
}

impl Mbuf {
    /// Whether no offload is pending.
    #[inline(always)]
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.ol_flags() & sys::NETVM_OFFLOAD_ANY == 0
    }

    /// Whether no offload is pending and the packet is in one buffer.
    #[inline(always)]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_finished() && self.nb_segs() == 1
    }

    fn tx_offload(&self) -> u64 {
        // SAFETY: the field is a u64 within the mbuf, which `self` owns.
        unsafe { self.as_ptr().as_ptr().byte_add(TX_OFFLOAD).cast::<u64>().read_unaligned() }
    }

    /// How to split the packet, if it is too long.
    #[must_use]
    pub fn oversized(&self) -> Option<Oversized> {
        if self.ol_flags() & sys::NETVM_OFFLOAD_SEGMENT == 0 {
            return None;
        }
        let lengths = self.tx_offload();
        let field = |at: u32, bits: u32| (lengths >> at & ((1 << bits) - 1)) as u16;
        Some(Oversized {
            l2: field(0, L2_BITS),
            l3: field(L2_BITS, L3_BITS),
            l4: field(L2_BITS + L3_BITS, L4_BITS),
            size: field(L2_BITS + L3_BITS + L4_BITS, sys::NETVM_OFFLOAD_SIZE_BITS),
            v6: self.ol_flags() & sys::NETVM_OFFLOAD_IPV6 != 0,
            udp: self.ol_flags() & sys::NETVM_OFFLOAD_UDP_SEGMENT != 0,
        })
    }

    /// The checksum that is not computed yet, also for a packet to be split.
    #[must_use]
    pub fn unfinished(&self) -> Option<Unfinished> {
        let kind = self.ol_flags() & sys::NETVM_OFFLOAD_L4;
        if kind == 0 && self.ol_flags() & sys::NETVM_OFFLOAD_SEGMENT == 0 {
            return None;
        }
        let lengths = self.tx_offload();
        let udp = kind == sys::NETVM_OFFLOAD_UDP || self.ol_flags() & sys::NETVM_OFFLOAD_UDP_SEGMENT != 0;
        let l3 = (lengths >> L2_BITS & ((1 << L3_BITS) - 1)) as u16;
        Some(Unfinished { l2: (lengths & ((1 << L2_BITS) - 1)) as u16, l3, udp })
    }

    /// Marks a packet without pending offloads as one to be split.
    ///
    /// Lengths must be within [`MAX_HEADER_LENGTHS`]; their upper bits are lost.
    pub fn set_oversized(&mut self, cut: Oversized) {
        let transport = if cut.udp {
            sys::NETVM_OFFLOAD_UDP_SEGMENT | sys::NETVM_OFFLOAD_UDP
        } else {
            sys::NETVM_OFFLOAD_SEGMENT & !sys::NETVM_OFFLOAD_UDP_SEGMENT | sys::NETVM_OFFLOAD_TCP
        };
        let ip = if cut.v6 { sys::NETVM_OFFLOAD_IPV6 } else { sys::NETVM_OFFLOAD_IPV4 };
        self.set_pending(transport | ip, [cut.l2, cut.l3, cut.l4], cut.size);
    }

    /// Marks a packet without pending offloads as one whose checksum is unfinished; as [`Mbuf::set_oversized`].
    pub fn set_unfinished(&mut self, sum: Unfinished, v6: bool) {
        let transport = if sum.udp { sys::NETVM_OFFLOAD_UDP } else { sys::NETVM_OFFLOAD_TCP };
        let ip = if v6 { sys::NETVM_OFFLOAD_IPV6 } else { sys::NETVM_OFFLOAD_IPV4 };
        self.set_pending(transport | ip, [sum.l2, sum.l3, 0], 0);
    }

    /// Bytes of the link layer's headers of a tunnel, if the packet is in one and its pending offloads are those of the
    /// packet within. The lengths `l2` of [`Oversized`] and [`Unfinished`] include the tunnel's headers.
    #[must_use]
    pub fn tunnel(&self) -> Option<u16> {
        if self.is_finished() {
            return None;
        }
        let l2 = (self.tx_offload() >> OUTER_L2 & ((1 << OUTER_L2_BITS) - 1)) as u16;
        (l2 != 0).then_some(l2)
    }

    /// Marks a packet with pending offloads as one in a tunnel, whose link layer has `l2` bytes; 0: in none.
    pub fn set_tunnel(&mut self, l2: u16) {
        if self.is_finished() {
            return;
        }
        let mask = ((1u64 << OUTER_L2_BITS) - 1) << OUTER_L2;
        let lengths = self.tx_offload() & !mask | u64::from(l2) << OUTER_L2 & mask;
        // SAFETY: as in `tx_offload`.
        unsafe { self.as_ptr().as_ptr().byte_add(TX_OFFLOAD).cast::<u64>().write_unaligned(lengths) };
    }

    /// Removes the marks of [`Mbuf::set_oversized`], [`Mbuf::set_unfinished`] and [`Mbuf::set_tunnel`].
    pub fn forget_pending(&mut self) {
        let ip = sys::NETVM_OFFLOAD_IPV4 | sys::NETVM_OFFLOAD_IPV6;
        self.set_ol_flags(self.ol_flags() & !(sys::NETVM_OFFLOAD_ANY | ip));
    }

    fn set_pending(&mut self, flags: u64, [l2, l3, l4]: [u16; 3], size: u16) {
        let field = |value: u16, at: u32, bits: u32| (u64::from(value) & ((1 << bits) - 1)) << at;
        let lengths = field(l2, 0, L2_BITS)
            | field(l3, L2_BITS, L3_BITS)
            | field(l4, L2_BITS + L3_BITS, L4_BITS)
            | field(size, L2_BITS + L3_BITS + L4_BITS, sys::NETVM_OFFLOAD_SIZE_BITS);
        self.set_ol_flags(self.ol_flags() | flags);
        // SAFETY: as in `tx_offload`.
        unsafe { self.as_ptr().as_ptr().byte_add(TX_OFFLOAD).cast::<u64>().write_unaligned(lengths) };
    }

    /// Computes a missing checksum. Returns false if it cannot: the sender's offset may be outside of the packet.
    pub fn finish_checksum(&mut self) -> bool {
        // SAFETY: `self` owns the mbuf and its segments; the function stays within the buffers.
        unsafe { sys::netvm_offload_checksum(self.as_ptr().as_ptr()) == 0 }
    }

    /// Computes the Internet checksum (RFC 1071) of the bytes from offset `from` to the end, and writes it at offset
    /// `at`. Returns false if one of them is outside of the packet.
    pub fn finish_checksum_at(&mut self, from: u16, at: u16) -> bool {
        // SAFETY: as in `finish_checksum`.
        unsafe { sys::netvm_checksum_at(self.as_ptr().as_ptr(), from.into(), at.into()) == 0 }
    }

    /// Replaces the packet's first `old` bytes by `new`. The beginning of the packet moves; the rest stays in place.
    ///
    /// # Errors
    /// [`BoundsError`] if the buffer lacks room before the packet, or the packet has fewer bytes.
    #[inline]
    pub fn replace_front(&mut self, old: u16, new: &[u8]) -> Result<(), BoundsError> {
        let (buffer, segments, length) = (self.buf_len(), self.nb_segs(), self.data_len());
        let added = u16::try_from(new.len()).unwrap_or(u16::MAX);
        let offset = (u32::from(self.data_off()) + u32::from(old)).checked_sub(u32::from(added));
        let offset = offset.and_then(|offset| u16::try_from(offset).ok()).filter(|_| old <= length);
        let Some(offset) = offset else {
            return Err(BoundsError { offset: self.data_off(), length, buffer, segments });
        };
        let in_first = length - old + added;
        let whole = self.pkt_len() - u32::from(old) + u32::from(added);
        // SAFETY: the end stays where it is, and the beginning is in the buffer: it ends where the replaced bytes did.
        unsafe { self.set_front(offset, in_first, whole) };
        if !self.is_finished() {
            let outer = self.tunnel().map(|l2| l2.wrapping_add(added).wrapping_sub(old));
            let mask = (1u64 << L2_BITS) - 1;
            let lengths = self.tx_offload();
            let l2 = (lengths & mask).wrapping_add(added.into()).wrapping_sub(old.into());
            let lengths = lengths & !mask | l2 & mask;
            // SAFETY: as in `tx_offload`.
            unsafe { self.as_ptr().as_ptr().byte_add(TX_OFFLOAD).cast::<u64>().write_unaligned(lengths) };
            outer.into_iter().for_each(|l2| self.set_tunnel(l2));
        }
        // SAFETY: just made room for them; see `copy_from`.
        unsafe { std::ptr::copy_nonoverlapping(new.as_ptr(), self.data(), new.len()) };
        Ok(())
    }

    /// Appends `length` bytes of another packet, from `offset` on; returns their Internet checksum (RFC 1071) in memory
    /// order.
    ///
    /// # Errors
    /// [`BoundsError`] if they do not fit, or the other packet is shorter.
    pub fn append_from(&mut self, other: &Self, offset: u32, length: u16) -> Result<u16, BoundsError> {
        let (begin, before) = (self.data_off(), self.data_len());
        let error = BoundsError {
            offset: begin,
            length: before.saturating_add(length),
            buffer: self.buf_len(),
            segments: self.nb_segs(),
        };
        self.set_bounds(begin, before.checked_add(length).ok_or(error)?)?;
        let to = self.data().wrapping_add(before.into());
        // SAFETY: just checked that `length` bytes from there on are within the buffer of `self`, which is another than
        // those of `other`; the function keeps to the latter's.
        let read = unsafe { sys::netvm_mbuf_read(other.as_ptr().as_ptr(), offset, length.into(), to.cast()) };
        if read != 0 {
            self.set_bounds(begin, before)?;
            return Err(error);
        }
        // SAFETY: as above. If another process changes the bytes meanwhile, only the sum is wrong.
        Ok(unsafe { sys::netvm_raw_checksum(to.cast(), length.into()) })
    }
}

impl Pool {
    /// A copy of a packet with its pending offloads, in as many buffers as needed; `None` if the pool has too few.
    #[must_use]
    pub fn copy_of(&self, packet: &Mbuf) -> Option<Mbuf> {
        // SAFETY: the packet is owned by the caller, and the pool alive.
        let copy = unsafe { sys::netvm_mbuf_copy(packet.as_ptr().as_ptr(), self.mempool()) };
        // SAFETY: a new packet without another owner.
        NonNull::new(copy).map(|copy| unsafe { MbufPtr::new(copy).own() })
    }
}
