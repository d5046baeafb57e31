//! [`translate`]: new first bytes for a packet.

use netvm_wire::{Address, EtherType, Fragment, IpProto, parse_prefix};

use super::Untranslatable;
use super::error::translate_error;
use super::icmp;
use super::ip::{Ip, has_source_route};
use super::transport::{Sums, translate_transport};

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

/// The new first bytes of a packet.
#[derive(Clone, Debug)]
pub struct Front {
    bytes: [u8; Self::ROOM],
    length: usize,
}

/// How a packet changes: the bytes of [`Front`] take the place of its first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Bytes of the packet that are replaced.
    pub replaced: usize,
    /// Its new length. It can be less than the bytes that follow allow, as padding is left out.
    pub length: usize,
    /// The checksum of TCP or UDP is that of the pseudo header alone.
    pub is_partial: bool,
}

impl Front {
    /// Most bytes: those of a packet's headers, twice for an ICMP error, and of an error with extensions (RFC 4884) also
    /// 128 bytes of the packet that it is about.
    pub const ROOM: usize = 384;

    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; Self::ROOM], length: 0 }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Untranslatable> {
        self.zeroes(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Adds bytes that are zero.
    pub(super) fn zeroes(&mut self, count: usize) -> Result<&mut [u8], Untranslatable> {
        let start = self.length;
        let added = self.bytes.get_mut(start..start + count).ok_or(Untranslatable::TooLong)?;
        added.fill(0);
        self.length += count;
        Ok(added)
    }

    /// Sets two bytes.
    pub(super) fn set(&mut self, at: usize, word: u16) {
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }
}

impl Default for Front {
    fn default() -> Self {
        Self::new()
    }
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

const ETHERNET: usize = 14;
const TAG: usize = 4;

/// Translates a packet to the other family. `front` then has its new first bytes; on an error, it has no meaning.
///
/// # Errors
/// [`Untranslatable`].
pub fn translate(
    packet: &Original<'_>,
    to: &Counterpart,
    front: &mut Front,
) -> Result<Translated, Untranslatable> {
    let headers = parse_prefix(packet.front, packet.length).map_err(|_| Untranslatable::Malformed)?;
    let l3 = headers.l3_offset();
    let is_plain_ethernet = l3 == ETHERNET + TAG * usize::from(headers.vlan_tags());
    if !headers.key().is_ip() || !is_plain_ethernet {
        return Err(Untranslatable::Malformed);
    }
    let bytes = packet.front.get(l3..).unwrap_or_default();
    let old = Ip::read(bytes)?;
    if old.is_v4() && has_source_route(bytes, old.header) {
        return Err(Untranslatable::SourceRoute);
    }
    let new = old.translated(to.ends.source, to.ends.destination)?;
    let bytes = bytes.get(..old.header + old.payload).unwrap_or(bytes);
    let ether_type = if new.is_v4() { EtherType::IPV4 } else { EtherType::IPV6 };
    front.length = 0;
    front.put(packet.front.get(..l3 - 2).unwrap_or_default())?;
    front.put(&ether_type.0.to_be_bytes())?;
    let packets = Packets { bytes, old, new };
    let is_icmp = matches!(old.protocol, IpProto::ICMP | IpProto::ICMPV6);
    if is_icmp && headers.key().fragment != Fragment::Whole {
        return Err(Untranslatable::FragmentedIcmp);
    }
    let from_l3 = if is_icmp && icmp::query(old.protocol, headers.key().icmp_type).is_none() {
        translate_error(&packets, to, front)?
    } else {
        new.write(to.identification, front)?;
        let sums = if packet.is_partial { Sums::Partial } else { Sums::Whole };
        translate_transport(&packets, to.ends.ports, sums, front)?
    };
    Ok(Translated { replaced: l3 + from_l3.replaced, length: l3 + from_l3.length, ..from_l3 })
}
