//! Frames for traffic sources and tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::address::Address;
use crate::checksum;
use crate::ether::{EtherType, MacAddr, VlanId};
use crate::proto::{IpProto, TcpFlags};

/// Why a frame was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The buffer is shorter than the frame.
    #[error("a frame of {need} bytes does not fit {have}")]
    NoRoom {
        /// Bytes of the frame.
        need: usize,
        /// Bytes of the buffer.
        have: usize,
    },
    /// An IP packet can have 65,535 bytes.
    #[error("an IP packet of {0} bytes is too long: at most 65535")]
    TooLong(usize),
    /// Source and destination are of different families.
    #[error("source {0} and destination {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// More than two VLAN tags.
    #[error("more than two VLAN tags")]
    VlanTags,
    /// TCP, UDP or an echo was asked for without addresses to carry it.
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

/// Builds a frame: what is not said is zero, lengths and checksums are right.
///
/// ```
/// use netvm_wire::{FrameBuilder, MacAddr, parse};
///
/// let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
///     .ip("10.0.0.1".parse()?, "10.0.0.2".parse()?)
///     .udp(1234, 53)
///     .payload(b"who?")
///     .to_vec()?;
/// assert_eq!(parse(&frame)?.five_tuple().map(|flow| flow.to_string()).as_deref(), Some("10.0.0.1:1234 > 10.0.0.2:53 udp"));
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

/// An EtherType that IEEE 802 keeps for local experiments: that of a frame of which nothing more is said.
const LOCAL_EXPERIMENT: EtherType = EtherType(0x88b5);

impl<'a> FrameBuilder<'a> {
    /// A frame between two stations.
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

    /// Adds a tag of 802.1Q inside of those that there are.
    pub const fn vlan(self, vlan: VlanId) -> Self {
        self.tag(EtherType::VLAN, vlan)
    }

    /// Adds a tag of 802.1ad inside of those that there are.
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

    /// Neither IP nor ARP: the payload follows the EtherType.
    pub const fn ether_type(mut self, ether_type: EtherType) -> Self {
        self.network = Network::Raw(ether_type);
        self
    }

    /// An IPv4 or IPv6 packet.
    pub const fn ip(mut self, source: IpAddr, destination: IpAddr) -> Self {
        self.network = Network::Ip { source, destination };
        self
    }

    /// Time to live or hop limit; 64 if not said.
    pub const fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Differentiated services code point: the low six bits are taken.
    pub const fn dscp(mut self, dscp: u8) -> Self {
        self.dscp = dscp & 0x3f;
        self
    }

    /// Makes the packet a fragment: of which datagram, at which offset in units of 8 bytes (13 bits), and whether more
    /// follow. One with an offset has no transport header: only protocol and payload are taken. The first one's transport
    /// header has no checksum and its own length, since the whole datagram is not known.
    pub const fn fragment(mut self, identification: u16, offset: u16, more: bool) -> Self {
        self.fragment = Some((identification, offset & 0x1fff, more));
        self
    }

    /// The payload is that of another protocol.
    pub const fn protocol(mut self, protocol: IpProto) -> Self {
        self.transport = Transport::None(protocol);
        self
    }

    /// A UDP header.
    pub const fn udp(mut self, source: u16, destination: u16) -> Self {
        self.transport = Transport::Udp { source, destination };
        self
    }

    /// A TCP header without options.
    pub const fn tcp(mut self, source: u16, destination: u16, flags: TcpFlags) -> Self {
        self.transport = Transport::Tcp { source, destination, flags, sequence: 0, acknowledgment: 0 };
        self
    }

    /// Sequence and acknowledgment numbers of the TCP header.
    pub const fn numbers(mut self, next_sequence: u32, next_acknowledgment: u32) -> Self {
        if let Transport::Tcp { sequence, acknowledgment, .. } = &mut self.transport {
            *sequence = next_sequence;
            *acknowledgment = next_acknowledgment;
        }
        self
    }

    /// An ICMP or ICMPv6 echo request or reply.
    pub const fn echo(mut self, reply: bool, identifier: u16, sequence: u16) -> Self {
        self.transport = Transport::Echo { reply, identifier, sequence };
        self
    }

    /// An ARP request: who has `target`? tell `source`. Goes to where the frame goes, as a rule
    /// [`MacAddr::BROADCAST`].
    pub const fn arp_request(mut self, source: Ipv4Addr, target: Ipv4Addr) -> Self {
        self.network = Network::Arp { operation: 1, source, target, target_mac: MacAddr::ZERO };
        self
    }

    /// An ARP reply: `source` is at the frame's source; tell `target`, which is at the frame's destination.
    pub const fn arp_reply(mut self, source: Ipv4Addr, target: Ipv4Addr) -> Self {
        self.network = Network::Arp { operation: 2, source, target, target_mac: self.destination };
        self
    }

    /// What follows the last header.
    pub const fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// Bytes of the frame without FCS: the payload is continued with zeros up to it. Nothing is cut from a frame that is
    /// longer. (The "64 byte" frame of benchmarks has 60 without its FCS.)
    pub const fn frame_len(mut self, length: usize) -> Self {
        self.frame_len = length;
        self
    }

    /// Bytes that the frame takes.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.headers_len() + self.payload.len()).max(self.frame_len)
    }

    /// Builds the frame at the beginning of `buffer` and returns its length; allocates nothing.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn write(&self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        self.check()?;
        let (need, have) = (self.size(), buffer.len());
        let frame = buffer.get_mut(..need).ok_or(BuildError::NoRoom { need, have })?;
        frame.fill(0);
        let mut at = Writer { frame: &mut *frame, at: 0 };
        self.write_link(&mut at);
        self.write_network(&mut at, need);
        at.put(self.payload);
        self.write_checksums(frame);
        Ok(need)
    }

    /// Builds the frame.
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

    fn link_len(&self) -> usize {
        14 + 4 * self.tags.iter().flatten().count()
    }

    fn transport_len(&self) -> usize {
        match self.transport {
            _ if self.is_later_fragment() => 0,
            Transport::None(_) => 0,
            Transport::Tcp { .. } => 20,
            Transport::Udp { .. } | Transport::Echo { .. } => 8,
        }
    }

    fn headers_len(&self) -> usize {
        let transport = self.transport_len();
        let network = match self.network {
            Network::Raw(_) => 0,
            Network::Arp { .. } => 28,
            Network::Ip { source: IpAddr::V4(_), .. } => 20 + transport,
            Network::Ip { .. } if self.fragment.is_some() => 48 + transport,
            Network::Ip { .. } => 40 + transport,
        };
        self.link_len() + network
    }

    fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|(_, offset, _)| offset != 0)
    }

    fn write_link(&self, at: &mut Writer<'_>) {
        at.put(&self.destination.0);
        at.put(&self.source.0);
        for (kind, vlan) in self.tags.iter().flatten() {
            at.word(kind.0);
            at.word(vlan.get());
        }
        at.word(match self.network {
            Network::Raw(ether_type) => ether_type.0,
            Network::Arp { .. } => EtherType::ARP.0,
            Network::Ip { source: IpAddr::V4(_), .. } => EtherType::IPV4.0,
            Network::Ip { .. } => EtherType::IPV6.0,
        });
    }

    fn write_network(&self, at: &mut Writer<'_>, end: usize) {
        match self.network {
            Network::Raw(_) => {}
            Network::Arp { operation, source, target, target_mac } => {
                at.put(&[0, 1, 8, 0, 6, 4]);
                at.word(operation);
                at.put(&self.source.0);
                at.put(&source.octets());
                at.put(&target_mac.0);
                at.put(&target.octets());
            }
            Network::Ip { source: IpAddr::V4(source), destination: IpAddr::V4(destination) } => {
                self.write_ipv4(at, end, source, destination);
                self.write_transport(at, end);
            }
            Network::Ip { source, destination } => {
                let v6 = |ip: IpAddr| Ipv6Addr::from_bits(Address::from(ip).v6_bits());
                self.write_ipv6(at, end, v6(source), v6(destination));
                self.write_transport(at, end);
            }
        }
    }

    fn write_ipv4(&self, at: &mut Writer<'_>, end: usize, source: Ipv4Addr, destination: Ipv4Addr) {
        let (identification, field) = self.fragment.map_or((0, 0x4000), |(identification, offset, more)| {
            (identification, offset | if more { 0x2000 } else { 0 })
        });
        let total_len = end - at.at;
        at.put(&[0x45, self.dscp << 2]);
        at.word(total_len as u16);
        at.word(identification);
        at.word(field);
        at.put(&[self.ttl, self.protocol_number(false).0, 0, 0]);
        at.put(&source.octets());
        at.put(&destination.octets());
    }

    fn write_ipv6(&self, at: &mut Writer<'_>, end: usize, source: Ipv6Addr, destination: Ipv6Addr) {
        let protocol = self.protocol_number(true);
        let payload_len = end - at.at - 40;
        at.put(&[0x60 | self.dscp >> 2, self.dscp << 6, 0, 0]);
        at.word(payload_len as u16);
        let next = if self.fragment.is_some() { IpProto::FRAGMENT } else { protocol };
        at.put(&[next.0, self.ttl]);
        at.put(&source.octets());
        at.put(&destination.octets());
        if let Some((identification, offset, more)) = self.fragment {
            at.put(&[protocol.0, 0]);
            at.word(offset << 3 | u16::from(more));
            at.word(0);
            at.word(identification);
        }
    }

    fn protocol_number(&self, v6: bool) -> IpProto {
        match self.transport {
            Transport::None(protocol) => protocol,
            Transport::Tcp { .. } => IpProto::TCP,
            Transport::Udp { .. } => IpProto::UDP,
            Transport::Echo { .. } if v6 => IpProto::ICMPV6,
            Transport::Echo { .. } => IpProto::ICMP,
        }
    }

    fn write_transport(&self, at: &mut Writer<'_>, end: usize) {
        if self.is_later_fragment() {
            return;
        }
        match self.transport {
            Transport::None(_) => {}
            Transport::Udp { source, destination } => {
                let length = end - at.at;
                at.word(source);
                at.word(destination);
                at.word(length as u16);
                at.word(0);
            }
            Transport::Tcp { source, destination, flags, sequence, acknowledgment } => {
                at.word(source);
                at.word(destination);
                at.put(&sequence.to_be_bytes());
                at.put(&acknowledgment.to_be_bytes());
                at.put(&[0x50, flags.bits(), 0xff, 0xff, 0, 0, 0, 0]);
            }
            Transport::Echo { reply, identifier, sequence } => {
                let kind = match (self.protocol_number(self.is_v6()), reply) {
                    (IpProto::ICMPV6, false) => 128,
                    (IpProto::ICMPV6, true) => 129,
                    (_, false) => 8,
                    (_, true) => 0,
                };
                at.put(&[kind, 0, 0, 0]);
                at.word(identifier);
                at.word(sequence);
            }
        }
    }

    fn write_checksums(&self, frame: &mut [u8]) {
        let Network::Ip { source, destination } = self.network else { return };
        let (l3, l4) = (self.link_len(), self.headers_len() - self.transport_len());
        if source.is_ipv4() {
            let sum = frame.get(l3..l3 + 20).map_or(0, checksum::internet_checksum);
            checksum::store(frame, l3 + 10, sum);
        }
        let place = match self.transport {
            _ if self.fragment.is_some() => return,
            Transport::None(_) => return,
            Transport::Tcp { .. } => 16,
            Transport::Udp { .. } => 6,
            Transport::Echo { .. } => 2,
        };
        let segment = frame.get(l4..).unwrap_or_default();
        let sum = match self.protocol_number(!source.is_ipv4()) {
            IpProto::ICMP => checksum::internet_checksum(segment),
            IpProto::UDP => checksum::udp_checksum(source.into(), destination.into(), segment),
            protocol => checksum::transport_checksum(source.into(), destination.into(), protocol, segment),
        };
        checksum::store(frame, l4 + place, sum);
    }

    fn is_v6(&self) -> bool {
        matches!(self.network, Network::Ip { source: IpAddr::V6(_), .. })
    }
}

/// Writes one thing after another into a frame that is long enough.
struct Writer<'a> {
    frame: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.frame.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    fn word(&mut self, word: u16) {
        self.put(&word.to_be_bytes());
    }
}
