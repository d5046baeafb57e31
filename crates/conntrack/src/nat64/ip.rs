// SPDX-License-Identifier: Apache-2.0
//! IP headers of both families, by what they have in common.

use netvm_wire::{Address, IpProto, checksum};

use super::Untranslatable;
use super::front::Front;
use crate::packet::headers::{Extensions, u16_at, u32_at, walk_extensions};

/// The fields of an IPv4 header, or of an IPv6 header with its extension headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ip {
    pub(super) source: Address,
    pub(super) destination: Address,
    traffic_class: u8,
    hop_limit: u8,
    pub(super) protocol: IpProto,
    fragment: Option<Fragment>,
    /// Bytes before the payload.
    pub(super) header: usize,
    /// Bytes of the payload, as the header says.
    pub(super) payload: usize,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    identification: u32,
    /// In units of 8 bytes.
    offset: u16,
    has_more: bool,
}

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const FRAGMENT_HEADER: usize = 8;
const MAX_DATAGRAM_OF_V4: usize = 65_535;
const MORE_FRAGMENTS_OF_V4: u16 = 0x2000;
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// The longest IPv4 packet that may be fragmented although no fragment header says so (RFC 7915 section 5.1).
const MAX_FRAGMENTABLE: usize = 1260;

impl Ip {
    /// Reads the header at the begin of `ip`. Its lengths may be those of a packet that is not all there.
    pub(super) fn read(ip: &[u8]) -> Result<Self, Untranslatable> {
        match ip.first().map(|byte| byte >> 4) {
            Some(4) => Self::read_v4(ip).ok_or(Untranslatable::Malformed),
            Some(6) => Self::read_v6(ip),
            _ => Err(Untranslatable::Malformed),
        }
    }

    fn read_v4(ip: &[u8]) -> Option<Self> {
        let fixed: &[u8; V4_HEADER] = ip.first_chunk()?;
        let header = usize::from(fixed[0] & 15) * 4;
        let field = u16_at(ip, 6)?;
        let fragment = Fragment {
            identification: u16_at(ip, 4)?.into(),
            offset: field & 0x1fff,
            has_more: field & MORE_FRAGMENTS_OF_V4 != 0,
        };
        (header >= V4_HEADER).then_some(())?;
        Some(Self {
            source: Address::from_v4_octets(*ip.get(12..)?.first_chunk()?),
            destination: Address::from_v4_octets(*ip.get(16..)?.first_chunk()?),
            traffic_class: fixed[1],
            hop_limit: fixed[8],
            protocol: IpProto(fixed[9]),
            fragment: fragment.is_part().then_some(fragment),
            header,
            payload: usize::from(u16_at(ip, 2)?).checked_sub(header)?,
        })
    }

    fn read_v6(ip: &[u8]) -> Result<Self, Untranslatable> {
        let walk = walk_extensions(ip).ok_or(Untranslatable::Malformed)?;
        if let Some(at) = walk.segments_left {
            return Err(Untranslatable::RoutingHeader { pointer: at as u32 });
        }
        let read = Self::read_walked(ip, &walk).ok_or(Untranslatable::Malformed)?;
        // What would be left out there is part of the fragments' offsets.
        let follows_fragment = |(at, _): (usize, bool)| at + FRAGMENT_HEADER != walk.end;
        let hides_headers = read.is_part() && walk.fragment.is_some_and(follows_fragment);
        if hides_headers { Err(Untranslatable::Protocol) } else { Ok(read) }
    }

    fn read_walked(ip: &[u8], walk: &Extensions) -> Option<Self> {
        let fragment = match walk.fragment {
            Some((at, _)) => {
                let field = u16_at(ip, at + 2)?;
                let (offset, has_more) = (field >> 3, field & 1 != 0);
                Some(Fragment { identification: u32_at(ip, at + 4)?, offset, has_more })
            }
            None => None,
        };
        let class = u16_at(ip, 0)? >> 4;
        let after_fixed = usize::from(u16_at(ip, 4)?);
        Some(Self {
            source: Address::from_v6_octets(*ip.get(8..)?.first_chunk()?),
            destination: Address::from_v6_octets(*ip.get(24..)?.first_chunk()?),
            traffic_class: class as u8,
            hop_limit: *ip.get(7)?,
            protocol: walk.protocol,
            fragment,
            header: walk.end,
            payload: (V6_HEADER + after_fixed).checked_sub(walk.end)?,
        })
    }

    pub(super) fn is_v4(&self) -> bool {
        self.source.is_v4()
    }

    /// Whether it is a fragment of a packet that has others.
    pub(super) fn is_part(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.is_part())
    }

    /// Whether it is a fragment without the header of its protocol.
    pub(super) fn is_later(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.offset != 0)
    }

    /// Whether it has a fragment header, or is a fragment.
    pub(super) const fn has_fragment_header(&self) -> bool {
        self.fragment.is_some()
    }

    /// The same header of a packet with a payload of another length.
    pub(super) const fn with_payload(self, payload: usize) -> Self {
        Self { payload, ..self }
    }

    /// The header of the other family, between these addresses.
    pub(super) fn translated(&self, source: Address, destination: Address) -> Result<Self, Untranslatable> {
        if source.is_v4() == self.is_v4() || destination.is_v4() == self.is_v4() {
            return Err(Untranslatable::Address);
        }
        let protocol = counterpart(self.protocol, self.is_v4()).ok_or(Untranslatable::Protocol)?;
        let header = match (self.is_v4(), self.is_part()) {
            (false, _) => V4_HEADER,
            (true, true) => V6_HEADER + FRAGMENT_HEADER,
            (true, false) => V6_HEADER,
        };
        Ok(Self { source, destination, protocol, header, ..*self })
    }

    /// Writes the header. `identification` is for an IPv4 packet that may be fragmented later.
    pub(super) fn write(&self, identification: u16, front: &mut Front) -> Result<(), Untranslatable> {
        if self.is_v4() { self.write_v4(identification, front) } else { self.write_v6(front) }
    }

    fn write_v4(&self, identification: u16, front: &mut Front) -> Result<(), Untranslatable> {
        let length = V4_HEADER + self.payload;
        let offset = self.fragment.map_or(0, |fragment| usize::from(fragment.offset) * 8);
        if offset + length > MAX_DATAGRAM_OF_V4 {
            return Err(Untranslatable::TooLong);
        }
        let total = u16::try_from(length).map_err(|_| Untranslatable::TooLong)?.to_be_bytes();
        let (identification, field) = match self.fragment {
            Some(Fragment { identification, offset, has_more }) => {
                (identification as u16, offset | if has_more { MORE_FRAGMENTS_OF_V4 } else { 0 })
            }
            None if length > MAX_FRAGMENTABLE => (0, DO_NOT_FRAGMENT),
            None => (identification, 0),
        };
        let mut header = [0; V4_HEADER];
        header[..2].copy_from_slice(&[0x45, self.traffic_class]);
        header[2..4].copy_from_slice(&total);
        header[4..6].copy_from_slice(&identification.to_be_bytes());
        header[6..8].copy_from_slice(&field.to_be_bytes());
        header[8..10].copy_from_slice(&[self.hop_limit, self.protocol.0]);
        for (place, address) in [(12, self.source), (16, self.destination)] {
            let bits = address.v4_bits().ok_or(Untranslatable::Address)?;
            header[place..place + 4].copy_from_slice(&bits.to_be_bytes());
        }
        let sum = checksum::internet_checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        front.put(&header)
    }

    fn write_v6(&self, front: &mut Front) -> Result<(), Untranslatable> {
        let fragment = self.fragment.filter(Fragment::is_part);
        let extension = if fragment.is_some() { FRAGMENT_HEADER } else { 0 };
        let length = u16::try_from(self.payload + extension).map_err(|_| Untranslatable::TooLong)?;
        let next = if fragment.is_some() { IpProto::FRAGMENT } else { self.protocol };
        let class = self.traffic_class;
        let mut header = [0; V6_HEADER];
        header[..2].copy_from_slice(&[6 << 4 | class >> 4, class << 4]);
        header[4..6].copy_from_slice(&length.to_be_bytes());
        header[6..8].copy_from_slice(&[next.0, self.hop_limit]);
        header[8..24].copy_from_slice(&self.source.v6_bits().to_be_bytes());
        header[24..].copy_from_slice(&self.destination.v6_bits().to_be_bytes());
        front.put(&header)?;
        let Some(Fragment { identification, offset, has_more }) = fragment else { return Ok(()) };
        let mut header = [self.protocol.0, 0, 0, 0, 0, 0, 0, 0];
        header[2..4].copy_from_slice(&(offset << 3 | u16::from(has_more)).to_be_bytes());
        header[4..].copy_from_slice(&identification.to_be_bytes());
        front.put(&header)
    }
}

impl Fragment {
    const fn is_part(&self) -> bool {
        self.offset != 0 || self.has_more
    }
}

/// The same protocol in the other family. `None`: it belongs to one family, or its checksum covers addresses in a way
/// of its own.
pub(crate) fn counterpart(protocol: IpProto, is_v4: bool) -> Option<IpProto> {
    match (protocol, is_v4) {
        (IpProto::ICMP, true) => Some(IpProto::ICMPV6),
        (IpProto::ICMPV6, false) => Some(IpProto::ICMP),
        (IpProto::ICMP | IpProto::ICMPV6 | IpProto::IGMP | IpProto::NO_NEXT, _)
        | (IpProto::HOP_BY_HOP | IpProto::ROUTING | IpProto::FRAGMENT | IpProto::DESTINATION_OPTIONS, _) => {
            None
        }
        _ => crate::nat::can_be_translated(protocol).then_some(protocol),
    }
}

/// Whether an IPv4 header has a source route whose end the packet has not reached (RFC 791 section 3.1).
pub(super) fn has_source_route(ip: &[u8], header: usize) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    let mut options = ip.get(V4_HEADER..header).unwrap_or_default();
    loop {
        options = match *options {
            [] | [END, ..] | [_] => return false,
            [NOTHING, ref rest @ ..] => rest,
            [LOOSE | STRICT, length, pointer, ..] if pointer <= length => return true,
            [_, length, ..] => options.get(usize::from(length.max(2))..).unwrap_or_default(),
        };
    }
}
