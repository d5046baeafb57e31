// SPDX-License-Identifier: Apache-2.0
//! What is known of a packet before and after its translation.

use netvm_wire::Address;

use super::ip::Ip;

/// A packet to translate.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// Its first bytes, with all headers; of an ICMP error also those of the packet that it is about.
    pub front: &'a [u8],
    /// Its length.
    pub length: usize,
    /// The checksum of TCP or UDP is that of the pseudo header alone: a device computes the rest.
    pub is_partial: bool,
}

/// Where a packet comes from and goes to in the other family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Source.
    pub source: Address,
    /// Destination.
    pub destination: Address,
    /// Ports of source and destination, of an ICMP query its identifier in both. `None`: they stay.
    pub ports: Option<[u16; 2]>,
}

/// What a packet becomes.
#[derive(Clone, Copy, Debug)]
pub struct Counterpart {
    /// Its ends.
    pub ends: Ends,
    /// Those of the packet that it is about, if it is an ICMP error.
    pub about: Ends,
    /// The identification of an IPv4 packet that may be fragmented. It is to differ from those of other packets between
    /// the same ends.
    pub identification: u16,
}

/// How a packet changes: the bytes of [`Front`](super::Front) take the place of its first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Bytes of the packet that are replaced.
    pub replaced: usize,
    /// Its new length. It can be less than the bytes that follow allow, as padding is left out.
    pub length: usize,
    /// The checksum of TCP or UDP is that of the pseudo header alone.
    pub is_partial: bool,
}

/// An IP packet and what it becomes.
pub(super) struct Packets<'a> {
    /// Its bytes at hand, from the IP header on.
    pub(super) bytes: &'a [u8],
    /// Its header.
    pub(super) old: Ip,
    /// The header that it gets.
    pub(super) new: Ip,
}
