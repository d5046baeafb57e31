// SPDX-License-Identifier: Apache-2.0
//! The headers of a packet, in registers.

use dpdk::Mbuf;
use netvm_wire::{EtherType, MacAddr, VlanId};

use crate::worker::router::head::{ETHERNET, TAG, V4};
use crate::worker::router::{TAGGED_V4, UNTAGGED_V4};

/// By first byte: whether such addresses are looked up. The general path decides about the rest.
const IS_ORDINARY: [bool; 256] = {
    let mut ordinary = [true; 256];
    (ordinary[0], ordinary[127]) = (false, false);
    let mut n = 224;
    while n < 256 {
        ordinary[n] = false;
        n += 1;
    }
    ordinary
};
/// The first bytes of link-local addresses (169.254.0.0/16, RFC 3927), as a little-endian word: they are not looked up.
const LINK_LOCAL: u16 = u16::from_le_bytes([169, 254]);
/// The low 48 bits of a word.
const MAC: u64 = 0x0000_ffff_ffff_ffff;
/// The tag protocol identifier of IEEE 802.1Q, as a little-endian word.
const TPID: u16 = EtherType::VLAN.0.swap_bytes();
/// The priority of a tag, with the drop eligible indicator.
const PRIORITY: u16 = 0xf000;
const VLAN: u16 = 0x0fff;

/// The headers of an IPv4 packet without options, without its tag, as little-endian words.
#[derive(Clone, Copy)]
pub(in crate::worker::router) struct Headers {
    /// Bytes 0 to 7, 8 to 15, 16 to 23 and 24 to 31.
    words: [u64; 4],
    /// Bytes 32 and 33.
    last: u16,
    /// Priority and VLAN of its tag; 0 without one.
    tag: u16,
    /// Bytes before the IP packet, as it came in.
    l2: u16,
}

/// A MAC address as the low 48 bits of a little-endian word.
#[inline(always)]
pub(super) const fn word_of(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// Whether an address with these first bytes is looked up.
#[inline(always)]
const fn is_ordinary(first: u16) -> bool {
    IS_ORDINARY[(first & 0xff) as usize] & (first != LINK_LOCAL)
}

/// The bytes from `at` on, which the caller knows to be there.
#[inline(always)]
fn bytes<const N: usize>(of: &[u8], at: usize) -> [u8; N] {
    of.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

#[inline(always)]
fn word(of: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(of, at))
}

impl Headers {
    pub(in crate::worker::router) const EMPTY: Self = Self { words: [0; 4], last: 0, tag: 0, l2: 0 };

    /// Reads the headers of a packet with or without a tag; `None` if it is too short, or tagged otherwise.
    #[inline(always)]
    pub(super) fn read<const TAGGED: bool>(mbuf: &Mbuf) -> Option<Self> {
        if TAGGED {
            let mut front = [0; TAGGED_V4];
            (mbuf.copy_first(&mut front) >= TAGGED_V4).then(|| Self::tagged(&front))?
        } else {
            let mut front = [0; UNTAGGED_V4];
            (mbuf.copy_first(&mut front) >= UNTAGGED_V4).then(|| Self::untagged(&front))
        }
    }

    #[inline(always)]
    pub(super) fn untagged(front: &[u8; UNTAGGED_V4]) -> Self {
        let words = [word(front, 0), word(front, 8), word(front, 16), word(front, 24)];
        Self { words, last: u16::from_le_bytes(bytes(front, 32)), tag: 0, l2: ETHERNET as u16 }
    }

    #[inline(always)]
    pub(super) fn tagged(front: &[u8; TAGGED_V4]) -> Option<Self> {
        let middle = word(front, 8);
        if (middle >> 32) as u16 != TPID {
            return None;
        }
        let tag = ((middle >> 48) as u16).swap_bytes();
        let second = middle & u64::from(u32::MAX) | word(front, 12) & !u64::from(u32::MAX);
        let words = [word(front, 0), second, word(front, 20), word(front, 28)];
        Some(Self { words, last: u16::from_le_bytes(bytes(front, 36)), tag, l2: (ETHERNET + TAG) as u16 })
    }

    /// The VLAN, 0 without one.
    #[inline(always)]
    pub(super) const fn vlan(&self) -> u16 {
        self.tag & VLAN
    }

    /// The MAC address that the packet goes to, as [`word_of`] has it.
    #[inline(always)]
    pub(super) const fn to(&self) -> u64 {
        self.words[0] & MAC
    }

    /// Bytes of the IP packet.
    #[inline(always)]
    pub(super) const fn length(&self) -> u16 {
        (self.words[2] as u16).swap_bytes()
    }

    /// The destination of a packet of `length` bytes to the router; `None` for any that is not certain to need a route.
    #[inline(always)]
    pub(super) fn destination(&self, length: u32) -> Option<u32> {
        let [_, from, ip, addresses] = self.words;
        // EtherType and the first byte of the IP header.
        let is_v4 = (from >> 32) & 0x00ff_ffff == 0x0045_0008;
        let ip_length = u32::from(self.length());
        let fits = ip_length >= V4 as u32 && ip_length + u32::from(self.l2) <= length;
        let is_alive = (ip >> 48) as u8 > 1;
        let is_ordinary = is_ordinary((addresses >> 16) as u16) & is_ordinary((addresses >> 48) as u16);
        // The sum is not 0, because the version is not, so it is a multiple of 65535 exactly if the checksum is right
        // (RFC 1071).
        let half = u64::from(u32::MAX);
        let sum = (from >> 48)
            + (ip & half)
            + (ip >> 32)
            + (addresses & half)
            + (addresses >> 32)
            + u64::from(self.last);
        let is_intact = sum % 0xffff == 0;
        (is_v4 & fits & is_alive & is_ordinary & is_intact)
            .then(|| ((addresses >> 48) as u32 | u32::from(self.last) << 16).swap_bytes())
    }

    /// The source address.
    #[inline(always)]
    pub(super) const fn source(&self) -> u32 {
        let [.., addresses] = self.words;
        ((addresses >> 16) as u32).swap_bytes()
    }

    /// Rewrites the headers of a packet from one MAC address to another, in a VLAN or without a tag.
    #[inline(always)]
    pub(super) fn forward(&mut self, from: MacAddr, to: MacAddr, vlan: Option<VlanId>) {
        let (from, [_, second, ip, addresses]) = (word_of(from), self.words);
        // The TTL is the first byte of its 16-bit word (RFC 1624, equation 3).
        let sum = u64::from(!(addresses as u16)) + 0xfffe;
        let checksum = !((sum & 0xffff) + (sum >> 16)) & 0xffff;
        self.words = [
            word_of(to) | from << 48,
            second & 0xffff_ffff_0000_0000 | from >> 16,
            ip - (1 << 48),
            addresses & !0xffff | checksum,
        ];
        // A VLAN is not 0.
        self.tag = vlan.map_or(0, |vlan| self.tag & PRIORITY | vlan.get());
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> [u8; UNTAGGED_V4] {
        let mut bytes = [0; UNTAGGED_V4];
        let (words, last) = bytes.as_chunks_mut::<8>();
        for (to, word) in words.iter_mut().zip(self.words) {
            *to = word.to_le_bytes();
        }
        last.copy_from_slice(&self.last.to_le_bytes());
        bytes
    }

    /// The same with the tag.
    #[inline(always)]
    pub(super) fn tagged_bytes(&self) -> [u8; TAGGED_V4] {
        let [first, second, ip, addresses] = self.words;
        let low = second & u64::from(u32::MAX);
        let tag = u64::from(TPID) << 32 | u64::from(self.tag.swap_bytes()) << 48;
        let words = [first, low | tag, second >> 32 | ip << 32, ip >> 32 | addresses << 32];
        let mut bytes = [0; TAGGED_V4];
        let (chunks, last) = bytes.as_chunks_mut::<8>();
        for (to, word) in chunks.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        let end = addresses >> 32 | u64::from(self.last) << 32;
        last.copy_from_slice(&end.to_le_bytes()[..TAGGED_V4 - 32]);
        bytes
    }

    /// Replaces the headers of the packet that they were read from. One that gets a tag must have room for it.
    #[inline(always)]
    pub(super) fn write<const TAGGED: bool>(&self, mbuf: &mut Mbuf) {
        // With room there is no error.
        let _ = match (TAGGED, self.tag != 0) {
            (false, false) => return mbuf.overwrite_first(&self.bytes()),
            (true, true) => return mbuf.overwrite_first(&self.tagged_bytes()),
            (false, true) => mbuf.replace_front(UNTAGGED_V4 as u16, &self.tagged_bytes()),
            (true, false) => mbuf.replace_front(TAGGED_V4 as u16, &self.bytes()),
        };
    }
}
