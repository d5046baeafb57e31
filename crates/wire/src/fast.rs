//! The key of a frame without the rest of [`Headers`](crate::Headers), faster for what most traffic is.
//!
//! [`common`] knows frames with at most one VLAN tag and, directly behind it, TCP or UDP over whole IPv4 packets without
//! options or over IPv6. It looks at arrays of fixed size, so that bounds are checked once a header. Whatever it does not
//! know or like it leaves to [`parse_prefix`], which alone says what is wrong with a frame: it must never take a frame
//! that the general parser refuses, nor read another key out of it.

use crate::address::Address;
use crate::ether::{EtherType, MacAddr, VlanId};
use crate::flow::FlowKey;
use crate::malformed::Malformed;
use crate::parse::parse_prefix;
use crate::proto::{IpProto, TcpFlags};

impl FlowKey {
    /// The key of a frame of `frame_len` bytes, of which `headers` are the first: exactly that of [`parse_prefix`].
    ///
    /// # Errors
    /// As [`parse_prefix`].
    #[inline(always)]
    pub fn of_frame(headers: &[u8], frame_len: usize) -> Result<Self, Malformed> {
        match common(headers, frame_len) {
            Some(key) => Ok(key),
            None => general(headers, frame_len),
        }
    }
}

#[cold]
#[inline(never)]
fn general(headers: &[u8], frame_len: usize) -> Result<FlowKey, Malformed> {
    parse_prefix(headers, frame_len).map(|headers| *headers.key())
}

/// The key of a frame of a common kind with nothing wrong in it.
#[inline(always)]
fn common(bytes: &[u8], frame_len: usize) -> Option<FlowKey> {
    let (ethernet, rest) = bytes.split_first_chunk::<14>()?;
    let mut key = FlowKey::EMPTY;
    let [a, b, c, d, e, f, g, h, i, j, k, l, high, low] = *ethernet;
    key.destination_mac = MacAddr([a, b, c, d, e, f]);
    key.source_mac = MacAddr([g, h, i, j, k, l]);
    key.ether_type = EtherType(u16::from_be_bytes([high, low]));
    let room = frame_len.checked_sub(14)?;
    if key.ether_type.is_vlan() {
        let ([tag_high, tag_low, high, low], rest) = rest.split_first_chunk::<4>()?;
        let id = u16::from_be_bytes([*tag_high, *tag_low]) & 0x0fff;
        if id > VlanId::MAX {
            return None;
        }
        key.vlan = VlanId::new(id).ok();
        key.ether_type = EtherType(u16::from_be_bytes([*high, *low]));
        return network(key, rest, room.checked_sub(4)?);
    }
    network(key, rest, room)
}

/// IP and what it carries; the packet may have `room` bytes.
#[inline(always)]
fn network(mut key: FlowKey, bytes: &[u8], room: usize) -> Option<FlowKey> {
    const FRAGMENTED: u16 = 0x3fff;
    match key.ether_type {
        EtherType::IPV4 => {
            let (ip, rest) = bytes.split_first_chunk::<20>()?;
            let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            let fragment = u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENTED;
            if ip[0] != 0x45 || fragment != 0 || total > room {
                return None;
            }
            key.dscp = ip[1] >> 2;
            key.protocol = IpProto(ip[9]);
            key.source = Address::from_v4_octets([ip[12], ip[13], ip[14], ip[15]]);
            key.destination = Address::from_v4_octets([ip[16], ip[17], ip[18], ip[19]]);
            transport(key, rest, total.checked_sub(20)?)
        }
        EtherType::IPV6 => {
            let (ip, rest) = bytes.split_first_chunk::<40>()?;
            let payload = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            if ip[0] >> 4 != 6 || payload + 40 > room {
                return None;
            }
            let (_, addresses) = ip.split_first_chunk::<8>()?;
            key.source = Address::from_v6_octets(*addresses.first_chunk()?);
            key.destination = Address::from_v6_octets(*addresses.last_chunk()?);
            if key.source.is_v4() || key.destination.is_v4() {
                return None;
            }
            key.dscp = (ip[0] & 0x0f) << 2 | ip[1] >> 6;
            key.protocol = IpProto(ip[6]);
            transport(key, rest, payload)
        }
        _ => None,
    }
}

/// What IP carries in `room` bytes.
#[inline(always)]
fn transport(mut key: FlowKey, bytes: &[u8], room: usize) -> Option<FlowKey> {
    let header_len = match key.protocol {
        IpProto::TCP => {
            let tcp = bytes.first_chunk::<20>()?;
            key.tcp_flags = TcpFlags::from_bits_retain(tcp[13]);
            match usize::from(tcp[12] >> 4) * 4 {
                length if length < 20 => return None,
                length => length,
            }
        }
        IpProto::UDP => {
            let udp = bytes.first_chunk::<8>()?;
            match usize::from(u16::from_be_bytes([udp[4], udp[5]])) {
                length if length < 8 => return None,
                length => length,
            }
        }
        _ => return None,
    };
    if header_len > room {
        return None;
    }
    let [a, b, c, d] = *bytes.first_chunk()?;
    key.source_port = u16::from_be_bytes([a, b]);
    key.destination_port = u16::from_be_bytes([c, d]);
    Some(key)
}
