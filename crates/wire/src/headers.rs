//! What parsing found.

use crate::ether::VlanId;
use crate::flow::{FiveTuple, FlowKey};

/// What follows the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Network {
    /// Something that is not looked into.
    #[default]
    Other,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP.
    Arp,
    /// An IEEE 802.3 frame with an LLC header.
    Llc,
}

/// What follows the IP header and its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Transport {
    /// Nothing that could be: the packet is not IP, or it is a fragment without the transport header.
    #[default]
    None,
    /// Something that is not looked into.
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

/// The headers of a frame: fields in [`Headers::key`], and where the layers begin.
///
/// Offsets count from the first byte of the frame. They were right for the bytes that were parsed; code that uses them on
/// other bytes (a packet in shared memory, say) bounds them again, as everything in this crate does.
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
    /// What nothing has been found in yet.
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

    /// The fields.
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

    /// How many VLAN tags were read: at most [`crate::MAX_VLAN_TAGS`].
    #[inline]
    #[must_use]
    pub const fn vlan_tags(&self) -> u8 {
        self.vlan_tags
    }

    /// What follows the Ethernet header and its tags.
    #[inline]
    #[must_use]
    pub const fn network(&self) -> Network {
        self.network
    }

    /// What follows the IP header and its extensions.
    #[inline]
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// Where the layer behind the Ethernet header and its tags begins.
    #[inline]
    #[must_use]
    pub const fn l3_offset(&self) -> usize {
        self.l3 as usize
    }

    /// Where the layer behind the IP header and its extensions begins; `None` when [`Headers::transport`] is
    /// [`Transport::None`].
    #[inline]
    #[must_use]
    pub const fn l4_offset(&self) -> Option<usize> {
        match self.transport {
            Transport::None => None,
            _ => Some(self.l4 as usize),
        }
    }

    /// Where what was not looked into begins: behind the last header that was.
    #[inline]
    #[must_use]
    pub const fn payload_offset(&self) -> usize {
        self.payload as usize
    }

    /// Where the payload ends, as the lengths in the headers say; padding of short frames lies behind it.
    #[inline]
    #[must_use]
    pub const fn payload_end(&self) -> usize {
        self.payload_end as usize
    }

    /// The payload, or as much of it as `frame` holds.
    #[inline]
    #[must_use]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let end = self.payload_end().min(frame.len());
        frame.get(self.payload_offset()..end).unwrap_or_default()
    }
}
