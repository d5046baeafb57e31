// SPDX-License-Identifier: Apache-2.0
//! Fast path that reads the flow key of a frame without the rest of [`Headers`](crate::Headers).
//!
//! [`fast_path`] reads frames with at most one VLAN tag followed by TCP or UDP over unfragmented IPv4 without options,
//! or over IPv6 without extension headers. It reads arrays of fixed size, so bounds are checked once per header. It
//! leaves everything else to [`parse_prefix`], which alone reports what is wrong with a frame. [`fast_path`] must never
//! accept a frame that the general parser refuses, nor read a different key from it.

use std::hint::select_unpredictable;

use super::{Malformed, ethernet_key, parse_prefix};
use crate::flow::FlowKey;
use crate::values::{Address, EtherType, IpProto, MacAddr, TcpFlags, VlanId};

impl FlowKey {
    /// The key of a frame of `frame_len` bytes that starts with `headers`: exactly the key of [`parse_prefix`].
    ///
    /// # Errors
    /// Like [`parse_prefix`].
    #[inline]
    pub fn of_frame(headers: &[u8], frame_len: usize) -> Result<Self, Malformed> {
        let mut key = Self::EMPTY;
        key.read_frame(headers, frame_len)?;
        Ok(key)
    }

    /// The key that a switch needs: MAC addresses, VLAN tags and EtherType ([`EtherType::LLC`] for a length field).
    ///
    /// # Errors
    /// Like [`parse_prefix`], for the Ethernet header and its tags only.
    pub fn of_ethernet(headers: &[u8], frame_len: usize) -> Result<Self, Malformed> {
        ethernet_key(headers, frame_len)
    }

    /// Like [`FlowKey::of_frame`], but writes the key in place, which saves bursts a copy. After an error, `self` is
    /// [`FlowKey::EMPTY`].
    ///
    /// # Errors
    /// Like [`parse_prefix`].
    #[inline(always)]
    pub fn read_frame(&mut self, headers: &[u8], frame_len: usize) -> Result<(), Malformed> {
        match fast_path(headers, frame_len, self) {
            Some(()) => Ok(()),
            None => slow_path(headers, frame_len, self),
        }
    }
}

#[cold]
#[inline(never)]
fn slow_path(headers: &[u8], frame_len: usize, key: &mut FlowKey) -> Result<(), Malformed> {
    *key = FlowKey::EMPTY;
    *key = *parse_prefix(headers, frame_len)?.key();
    Ok(())
}

/// Reads the key of a common, correct frame; `None` leaves the frame to the general parser.
#[inline(always)]
fn fast_path(bytes: &[u8], frame_len: usize, key: &mut FlowKey) -> Option<()> {
    let (ethernet, rest) = bytes.split_first_chunk::<14>()?;
    let ether_type = EtherType(u16::from_be_bytes([ethernet[12], ethernet[13]]));
    let room = frame_len.checked_sub(14)?;
    if !ether_type.is_vlan() {
        return network(Link { ethernet, vlan: None, ether_type }, rest, room, key);
    }
    let ([tag_high, tag_low, high, low], rest) = rest.split_first_chunk::<4>()?;
    let id = u16::from_be_bytes([*tag_high, *tag_low]) & 0x0fff;
    if id > VlanId::MAX {
        return None;
    }
    let ether_type = EtherType(u16::from_be_bytes([*high, *low]));
    network(Link { ethernet, vlan: VlanId::new(id).ok(), ether_type }, rest, room.checked_sub(4)?, key)
}

/// The link layer's headers.
#[derive(Clone, Copy)]
struct Link<'a> {
    ethernet: &'a [u8; 14],
    vlan: Option<VlanId>,
    ether_type: EtherType,
}

/// Fields of the IP header.
struct Ip {
    source: Address,
    destination: Address,
    dscp: u8,
    protocol: IpProto,
}

/// Reads IP and its payload, of which the frame has `room` bytes.
#[inline(always)]
fn network(link: Link<'_>, bytes: &[u8], room: usize, key: &mut FlowKey) -> Option<()> {
    const FRAGMENTED: u16 = 0x3fff;
    let Link { ethernet, vlan, ether_type } = link;
    let (ip, bytes, room) = match ether_type {
        EtherType::IPV4 => {
            let (header, rest) = bytes.split_first_chunk::<20>()?;
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENTED;
            if header[0] != 0x45 || fragment != 0 || total > room {
                return None;
            }
            let ip = Ip {
                source: Address::from_v4_octets([header[12], header[13], header[14], header[15]]),
                destination: Address::from_v4_octets([header[16], header[17], header[18], header[19]]),
                dscp: header[1] >> 2,
                protocol: IpProto(header[9]),
            };
            (ip, rest, total.checked_sub(20)?)
        }
        EtherType::IPV6 => {
            let (header, rest) = bytes.split_first_chunk::<40>()?;
            let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
            if header[0] >> 4 != 6 || payload + 40 > room {
                return None;
            }
            let (_, addresses) = header.split_first_chunk::<8>()?;
            let ip = Ip {
                source: Address::from_v6_octets(*addresses.first_chunk()?),
                destination: Address::from_v6_octets(*addresses.last_chunk()?),
                dscp: (header[0] & 0x0f) << 2 | header[1] >> 6,
                protocol: IpProto(header[6]),
            };
            if ip.source.is_v4() || ip.destination.is_v4() {
                return None;
            }
            (ip, rest, payload)
        }
        _ => return None,
    };
    // TCP and UDP alternate unpredictably, so no branch between them. Both are read as if they had the 20 bytes of TCP.
    let header = match bytes.first_chunk::<20>() {
        Some(header) => *header,
        None if ip.protocol == IpProto::UDP => short(bytes.first_chunk()?),
        None => return None,
    };
    let (is_tcp, is_udp) = (ip.protocol == IpProto::TCP, ip.protocol == IpProto::UDP);
    let data_offset = usize::from(header[12] >> 4) * 4;
    let udp_length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let length = select_unpredictable(is_tcp, data_offset, udp_length);
    let shortest = select_unpredictable(is_tcp, 20, 8);
    if !(is_tcp | is_udp) | (length < shortest) | (length > room) {
        return None;
    }
    let tcp_flags = TcpFlags::from_bits_retain(select_unpredictable(is_tcp, header[13], 0));
    let [a, b, c, d, ..] = header;
    let [e, f, g, h, i, j, k, l, m, n, o, p, ..] = *ethernet;
    *key = FlowKey {
        source: ip.source,
        destination: ip.destination,
        destination_mac: MacAddr([e, f, g, h, i, j]),
        source_mac: MacAddr([k, l, m, n, o, p]),
        ether_type,
        vlan,
        source_port: u16::from_be_bytes([a, b]),
        destination_port: u16::from_be_bytes([c, d]),
        protocol: ip.protocol,
        tcp_flags,
        dscp: ip.dscp,
        ..FlowKey::EMPTY
    };
    Some(())
}

/// Pads a UDP header with fewer than 12 bytes after it.
fn short(udp: &[u8; 8]) -> [u8; 20] {
    let mut header = [0; 20];
    header[..8].copy_from_slice(udp);
    header
}
