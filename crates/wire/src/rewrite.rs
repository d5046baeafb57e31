// SPDX-License-Identifier: Apache-2.0
//! Rewrites frames in place: MAC addresses, TTL or hop limit, VLAN tags.
//!
//! Every function checks bounds against its slice, whatever the [`crate::Headers`] say, and changes nothing on error.
//!
//! Pushing or stripping a VLAN tag moves the 12 bytes of MAC addresses; the rest of the frame stays in place. So those
//! functions take a buffer and the offset of the frame in it, and return the new offset.

use thiserror::Error;

use crate::checksum;
use crate::parse::{Headers, Network};
use crate::values::{EtherType, MacAddr, VlanId};

/// The frame is shorter than the 12 bytes of its MAC addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {0} bytes is too short for MAC addresses")]
pub struct FrameTooShort(pub usize);

/// Sets both addresses.
///
/// # Errors
/// [`FrameTooShort`].
#[inline]
pub fn set_macs(frame: &mut [u8], destination: MacAddr, source: MacAddr) -> Result<(), FrameTooShort> {
    let length = frame.len();
    let macs = frame.first_chunk_mut::<12>().ok_or(FrameTooShort(length))?;
    macs[..6].copy_from_slice(&destination.0);
    macs[6..].copy_from_slice(&source.0);
    Ok(())
}

/// Swaps source and destination.
///
/// # Errors
/// [`FrameTooShort`].
#[inline]
pub fn swap_macs(frame: &mut [u8]) -> Result<(), FrameTooShort> {
    let length = frame.len();
    let macs = frame.first_chunk_mut::<12>().ok_or(FrameTooShort(length))?;
    let (destination, source) = macs.split_at_mut(6);
    destination.swap_with_slice(source);
    Ok(())
}

/// Why the TTL was not decremented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TtlError {
    /// The TTL is 0 or 1: drop the packet and send its sender an ICMP time exceeded message (RFC 1812 section 5.3.1,
    /// RFC 8200 section 3).
    #[error("the time to live has expired")]
    Expired,
    /// The packet is neither IPv4 nor IPv6.
    #[error("not an IP packet")]
    NotIp,
    /// The frame is shorter than its parsed headers.
    #[error("the frame is shorter than its headers say")]
    FrameTooShort,
}

/// Decrements the TTL of IPv4 and updates the header checksum (RFC 1624), or decrements the hop limit of IPv6. Returns
/// the new value.
///
/// # Errors
/// [`TtlError`].
#[inline]
pub fn decrement_ttl(frame: &mut [u8], headers: &Headers) -> Result<u8, TtlError> {
    let packet = frame.get_mut(headers.l3_offset()..).ok_or(TtlError::FrameTooShort)?;
    match headers.network() {
        Network::Ipv4 => decrement_ttl_v4(packet),
        Network::Ipv6 => decrement_ttl_v6(packet),
        Network::Arp | Network::Llc | Network::Other => Err(TtlError::NotIp),
    }
}

/// Like [`decrement_ttl`], for bytes that start with an IPv4 header.
///
/// # Errors
/// [`TtlError::Expired`] and [`TtlError::FrameTooShort`].
#[inline]
pub fn decrement_ttl_v4(packet: &mut [u8]) -> Result<u8, TtlError> {
    let header = packet.first_chunk_mut::<20>().ok_or(TtlError::FrameTooShort)?;
    let ttl = header[8];
    if ttl <= 1 {
        return Err(TtlError::Expired);
    }
    let old = u16::from_be_bytes([ttl, header[9]]);
    let sum = u16::from_be_bytes([header[10], header[11]]);
    [header[10], header[11]] = checksum::updated(sum, old, old - 0x0100).to_be_bytes();
    header[8] = ttl - 1;
    Ok(ttl - 1)
}

/// Like [`decrement_ttl`], for bytes that start with an IPv6 header.
///
/// # Errors
/// [`TtlError::Expired`] and [`TtlError::FrameTooShort`].
#[inline]
pub fn decrement_ttl_v6(packet: &mut [u8]) -> Result<u8, TtlError> {
    let header = packet.first_chunk_mut::<40>().ok_or(TtlError::FrameTooShort)?;
    if header[7] <= 1 {
        return Err(TtlError::Expired);
    }
    header[7] -= 1;
    Ok(header[7])
}

/// Increments the TTL of IPv4 and updates the header checksum (RFC 1624), or increments the hop limit of IPv6; 255
/// stays. Returns the new value.
///
/// # Errors
/// [`TtlError::NotIp`] and [`TtlError::FrameTooShort`].
pub fn increment_ttl(frame: &mut [u8], headers: &Headers) -> Result<u8, TtlError> {
    let packet = frame.get_mut(headers.l3_offset()..).ok_or(TtlError::FrameTooShort)?;
    match headers.network() {
        Network::Ipv4 => {
            let header = packet.first_chunk_mut::<20>().ok_or(TtlError::FrameTooShort)?;
            let old = u16::from_be_bytes([header[8], header[9]]);
            let ttl = header[8].saturating_add(1);
            let sum = u16::from_be_bytes([header[10], header[11]]);
            let new = u16::from_be_bytes([ttl, header[9]]);
            [header[10], header[11]] = checksum::updated(sum, old, new).to_be_bytes();
            header[8] = ttl;
            Ok(ttl)
        }
        Network::Ipv6 => {
            let header = packet.first_chunk_mut::<40>().ok_or(TtlError::FrameTooShort)?;
            header[7] = header[7].saturating_add(1);
            Ok(header[7])
        }
        Network::Arp | Network::Llc | Network::Other => Err(TtlError::NotIp),
    }
}

/// Why a tag was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VlanError {
    /// Fewer than 4 bytes of headroom.
    #[error("no room for a VLAN tag: 4 bytes of headroom are needed, the frame has {0}")]
    NoHeadroom(usize),
    /// The buffer ends within the Ethernet header.
    #[error("the frame is shorter than an Ethernet header")]
    FrameTooShort,
}

const MACS: usize = 12;
const TAG: usize = 4;
const VID: u16 = 0x0fff;

/// Sets the VLAN of the frame at `offset`. A tagged frame keeps its priority and tag type and gets the new id; an
/// untagged one gets an 802.1Q tag with priority 0. Returns the new offset of the frame.
///
/// # Errors
/// [`VlanError`].
pub fn set_vlan(buffer: &mut [u8], offset: usize, vlan: VlanId) -> Result<usize, VlanError> {
    if !outer_type(buffer, offset)?.is_vlan() {
        return push_vlan(buffer, offset, EtherType::VLAN, vlan);
    }
    let at = offset + MACS + 2;
    let tag = buffer.get_mut(at..at + 2).ok_or(VlanError::FrameTooShort)?;
    let tci = u16::from_be_bytes([tag[0], tag[1]]);
    tag.copy_from_slice(&(tci & !VID | vlan.get()).to_be_bytes());
    Ok(offset)
}

/// Adds an outer tag of type `tag` ([`EtherType::VLAN`] or [`EtherType::SERVICE_VLAN`]) with priority 0 to the frame at
/// `offset`. Returns the new offset of the frame, 4 bytes lower.
///
/// # Errors
/// [`VlanError`].
pub fn push_vlan(buffer: &mut [u8], offset: usize, tag: EtherType, vlan: VlanId) -> Result<usize, VlanError> {
    outer_type(buffer, offset)?;
    let start = offset.checked_sub(TAG).ok_or(VlanError::NoHeadroom(offset))?;
    buffer.copy_within(offset..offset + MACS, start);
    let place = buffer.get_mut(start + MACS..offset + MACS).ok_or(VlanError::FrameTooShort)?;
    let ([kind_high, kind_low], [id_high, id_low]) = (tag.0.to_be_bytes(), vlan.get().to_be_bytes());
    place.copy_from_slice(&[kind_high, kind_low, id_high, id_low]);
    Ok(start)
}

/// Strips the outer tag of the frame at `offset`. Returns the new offset of the frame: 4 bytes higher, or unchanged for
/// an untagged frame.
///
/// # Errors
/// [`VlanError::FrameTooShort`].
pub fn strip_vlan(buffer: &mut [u8], offset: usize) -> Result<usize, VlanError> {
    if !outer_type(buffer, offset)?.is_vlan() {
        return Ok(offset);
    }
    if buffer.len() < offset + MACS + TAG + 2 {
        return Err(VlanError::FrameTooShort);
    }
    buffer.copy_within(offset..offset + MACS, offset + TAG);
    Ok(offset + TAG)
}

/// The EtherType directly after the MAC addresses.
fn outer_type(buffer: &[u8], offset: usize) -> Result<EtherType, VlanError> {
    let header = buffer.get(offset..).and_then(<[u8]>::first_chunk::<14>);
    header
        .map(|header| EtherType(u16::from_be_bytes([header[12], header[13]])))
        .ok_or(VlanError::FrameTooShort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_set_and_swapped() {
        let mut frame: Vec<u8> = (0..14).collect();
        swap_macs(&mut frame).unwrap();
        assert_eq!(frame, [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13]);
        set_macs(&mut frame, MacAddr([1; 6]), MacAddr([2; 6])).unwrap();
        assert_eq!(frame, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 12, 13]);
    }

    #[test]
    fn short_frames_stay_unchanged() {
        let mut frame = [7; 11];
        assert_eq!(swap_macs(&mut frame), Err(FrameTooShort(11)));
        assert_eq!(set_macs(&mut frame, MacAddr::ZERO, MacAddr::ZERO), Err(FrameTooShort(11)));
        assert_eq!(frame, [7; 11]);
    }
}
