// SPDX-License-Identifier: Apache-2.0
//! Result of parsing: the flow key and the layer offsets.

use crate::flow::{FiveTuple, FlowKey};
use crate::values::VlanId;

/// The layer after the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Network {
    /// A protocol that the parser does not read.
    #[default]
    Other,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP.
    Arp,
    /// IEEE 802.3 frame with an LLC header.
    Llc,
}

/// The layer after the IP header and its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Transport {
    /// None: the packet is not IP, or it is a fragment without the transport header.
    #[default]
    None,
    /// A protocol that the parser does not read.
    Other,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP over IPv4.
    Icmp,
    /// ICMPv6 over IPv6.
    Icmpv6,
}

/// The headers of a frame: the fields in [`Headers::key`], and the offsets of the layers.
///
/// Offsets count from the first byte of the frame and hold for the bytes that were parsed. Code that applies them to
/// other bytes, such as a packet in shared memory, must check bounds again, as everything in this crate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    pub(crate) key: FlowKey,
    pub(crate) payload_end: u32,
    pub(crate) l3: u16,
    pub(crate) l4: u16,
    pub(crate) payload: u16,
    pub(crate) network: Network,
    pub(crate) transport: Transport,
    pub(crate) vlan_tags: u8,
}

impl Headers {
    /// The headers before parsing.
    pub(crate) const EMPTY: Self = Self {
        key: FlowKey::EMPTY,
        payload_end: 0,
        l3: 0,
        l4: 0,
        payload: 0,
        network: Network::Other,
        transport: Transport::None,
        vlan_tags: 0,
    };

    /// The flow key.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> &FlowKey {
        &self.key
    }

    /// Addresses, protocol and ports of an IP packet.
    #[inline]
    #[must_use]
    pub const fn five_tuple(&self) -> Option<FiveTuple> {
        self.key.five_tuple()
    }

    /// The VLAN of the outer tag.
    #[inline]
    #[must_use]
    pub const fn vlan(&self) -> Option<VlanId> {
        self.key.vlan
    }

    /// Number of VLAN tags read, at most [`crate::MAX_VLAN_TAGS`].
    #[inline]
    #[must_use]
    pub const fn vlan_tags(&self) -> u8 {
        self.vlan_tags
    }

    /// The layer after the Ethernet header and its tags.
    #[inline]
    #[must_use]
    pub const fn network(&self) -> Network {
        self.network
    }

    /// The layer after the IP header and its extensions.
    #[inline]
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// Offset of the layer after the Ethernet header and its tags.
    #[inline]
    #[must_use]
    pub const fn l3_offset(&self) -> usize {
        self.l3 as usize
    }

    /// Offset of the transport header; `None` if [`Headers::transport`] is [`Transport::None`].
    #[inline]
    #[must_use]
    pub const fn l4_offset(&self) -> Option<usize> {
        match self.transport {
            Transport::None => None,
            _ => Some(self.l4 as usize),
        }
    }

    /// Offset of the first byte after the last header that was read.
    #[inline]
    #[must_use]
    pub const fn payload_offset(&self) -> usize {
        self.payload as usize
    }

    /// End of the payload by the lengths in the headers; the padding of short frames follows it.
    #[inline]
    #[must_use]
    pub const fn payload_end(&self) -> usize {
        self.payload_end as usize
    }

    /// The payload, as far as `frame` holds it.
    #[inline]
    #[must_use]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let end = self.payload_end().min(frame.len());
        frame.get(self.payload_offset()..end).unwrap_or_default()
    }
}
