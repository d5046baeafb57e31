// SPDX-License-Identifier: Apache-2.0
//! Builds frames for traffic sources and tests.

mod write;

use std::net::{IpAddr, Ipv4Addr};

use thiserror::Error;

use crate::values::{EtherType, IpProto, MacAddr, TcpFlags, VlanId};

/// Why a frame was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum BuildError {
    /// The buffer is shorter than the frame.
    #[error("a frame of {need} bytes does not fit into a buffer of {have}")]
    BufferTooSmall { need: usize, have: usize },
    /// The IP packet would exceed 65,535 bytes.
    #[error("an IP packet of {0} bytes is too long: at most 65535")]
    TooLong(usize),
    /// Source and destination are of different families.
    #[error("source {0} and destination {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// More than two VLAN tags.
    #[error("more than two VLAN tags")]
    VlanTags,
    /// TCP, UDP or an echo without IP addresses.
    #[error("a transport header needs IP addresses: call ip() first")]
    NoAddresses,
}

#[derive(Clone, Copy, Debug)]
enum Network {
    Raw(EtherType),
    Ip { source: IpAddr, destination: IpAddr },
    Arp { operation: u16, source: Ipv4Addr, target: Ipv4Addr, target_mac: MacAddr },
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    None(IpProto),
    Tcp { source: u16, destination: u16, flags: TcpFlags, sequence: u32, acknowledgment: u32 },
    Udp { source: u16, destination: u16 },
    Echo { reply: bool, identifier: u16, sequence: u16 },
}

/// Builds a frame. Unset fields are zero; lengths and checksums are computed.
///
/// ```
/// use netvm_wire::{FrameBuilder, MacAddr, parse};
///
/// let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
///     .ip("10.0.0.1".parse()?, "10.0.0.2".parse()?)
///     .udp(1234, 53)
///     .payload(b"query")
///     .to_vec()?;
/// let flow = parse(&frame)?.five_tuple().map(|flow| flow.to_string());
/// assert_eq!(flow.as_deref(), Some("10.0.0.1:1234 > 10.0.0.2:53 udp"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FrameBuilder<'a> {
    source: MacAddr,
    destination: MacAddr,
    tags: [Option<(EtherType, VlanId)>; 2],
    too_many_tags: bool,
    network: Network,
    ttl: u8,
    dscp: u8,
    fragment: Option<(u16, u16, bool)>,
    transport: Transport,
    payload: &'a [u8],
    frame_len: usize,
}

/// The default EtherType: IEEE 802 local experimental.
const LOCAL_EXPERIMENT: EtherType = EtherType(0x88b5);

impl<'a> FrameBuilder<'a> {
    /// A frame from one host to another.
    pub const fn new(source: MacAddr, destination: MacAddr) -> Self {
        Self {
            source,
            destination,
            tags: [None; 2],
            too_many_tags: false,
            network: Network::Raw(LOCAL_EXPERIMENT),
            ttl: 64,
            dscp: 0,
            fragment: None,
            transport: Transport::None(IpProto::NO_NEXT),
            payload: &[],
            frame_len: 0,
        }
    }

    /// Adds an 802.1Q tag inside the tags so far.
    pub const fn vlan(self, vlan: VlanId) -> Self {
        self.tag(EtherType::VLAN, vlan)
    }

    /// Adds an 802.1ad tag inside the tags so far.
    pub const fn service_vlan(self, vlan: VlanId) -> Self {
        self.tag(EtherType::SERVICE_VLAN, vlan)
    }

    const fn tag(mut self, kind: EtherType, vlan: VlanId) -> Self {
        match self.tags {
            [None, _] => self.tags[0] = Some((kind, vlan)),
            [_, None] => self.tags[1] = Some((kind, vlan)),
            _ => self.too_many_tags = true,
        }
        self
    }

    /// Sets the EtherType of a frame that is neither IP nor ARP; the payload follows it.
    pub const fn ether_type(mut self, ether_type: EtherType) -> Self {
        self.network = Network::Raw(ether_type);
        self
    }

    /// Adds an IPv4 or IPv6 header.
    pub const fn ip(mut self, source: IpAddr, destination: IpAddr) -> Self {
        self.network = Network::Ip { source, destination };
        self
    }

    /// Sets the TTL or hop limit; default 64.
    pub const fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the differentiated services code point, the low six bits of `dscp`.
    pub const fn dscp(mut self, dscp: u8) -> Self {
        self.dscp = dscp & 0x3f;
        self
    }

    /// Makes the packet a fragment of datagram `identification`, at `offset` in units of 8 bytes (13 bits), with `more`
    /// to follow. A fragment with an offset has no transport header, only protocol and payload. In a first fragment,
    /// the transport header has no checksum and its own length, as the builder does not know the whole datagram.
    pub const fn fragment(mut self, identification: u16, offset: u16, more: bool) -> Self {
        self.fragment = Some((identification, offset & 0x1fff, more));
        self
    }

    /// Sets the protocol of the payload.
    pub const fn protocol(mut self, protocol: IpProto) -> Self {
        self.transport = Transport::None(protocol);
        self
    }

    /// Adds a UDP header.
    pub const fn udp(mut self, source: u16, destination: u16) -> Self {
        self.transport = Transport::Udp { source, destination };
        self
    }

    /// Adds a TCP header without options.
    pub const fn tcp(mut self, source: u16, destination: u16, flags: TcpFlags) -> Self {
        self.transport = Transport::Tcp { source, destination, flags, sequence: 0, acknowledgment: 0 };
        self
    }

    /// Sets the sequence and acknowledgment numbers of the TCP header.
    pub const fn numbers(mut self, next_sequence: u32, next_acknowledgment: u32) -> Self {
        if let Transport::Tcp { sequence, acknowledgment, .. } = &mut self.transport {
            *sequence = next_sequence;
            *acknowledgment = next_acknowledgment;
        }
        self
    }

    /// Adds an ICMP or ICMPv6 echo request or reply.
    pub const fn echo(mut self, reply: bool, identifier: u16, sequence: u16) -> Self {
        self.transport = Transport::Echo { reply, identifier, sequence };
        self
    }

    /// Adds an ARP request for `target` from `source`. The frame's destination is usually [`MacAddr::BROADCAST`].
    pub const fn arp_request(mut self, source: Ipv4Addr, target: Ipv4Addr) -> Self {
        self.network = Network::Arp { operation: 1, source, target, target_mac: MacAddr::ZERO };
        self
    }

    /// Adds an ARP reply: `source` is at the frame's source MAC address, `target` at its destination.
    pub const fn arp_reply(mut self, source: Ipv4Addr, target: Ipv4Addr) -> Self {
        self.network = Network::Arp { operation: 2, source, target, target_mac: self.destination };
        self
    }

    /// Sets the bytes after the last header.
    pub const fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// Pads the frame with zeroes to `length` bytes without FCS; a longer frame stays as it is. (The "64 byte" frame of
    /// benchmarks has 60 bytes without FCS.)
    pub const fn frame_len(mut self, length: usize) -> Self {
        self.frame_len = length;
        self
    }

    /// Length of the frame in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.headers_len() + self.payload.len()).max(self.frame_len)
    }

    /// Builds the frame at the start of `buffer` and returns its length. Allocates nothing.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn write(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        self.check()?;
        let (need, have) = (self.size(), buffer.len());
        let frame = buffer.get_mut(..need).ok_or(BuildError::BufferTooSmall { need, have })?;
        self.write_frame(frame);
        Ok(need)
    }

    /// Builds the frame in a new vector.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn to_vec(&self) -> Result<Vec<u8>, BuildError> {
        self.check()?;
        let mut frame = vec![0; self.size()];
        self.write(&mut frame)?;
        Ok(frame)
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.too_many_tags {
            return Err(BuildError::VlanTags);
        }
        match self.network {
            Network::Ip { source, destination } if source.is_ipv4() != destination.is_ipv4() => {
                Err(BuildError::Families(source, destination))
            }
            Network::Ip { .. } => match self.size() - self.link_len() {
                length if length > 65_535 => Err(BuildError::TooLong(length)),
                _ => Ok(()),
            },
            _ if !matches!(self.transport, Transport::None(_)) => Err(BuildError::NoAddresses),
            _ => Ok(()),
        }
    }
}
