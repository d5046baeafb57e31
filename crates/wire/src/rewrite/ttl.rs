//! Decrements the TTL or hop limit, as routers do.

use thiserror::Error;

use crate::checksum;
use crate::parse::{Headers, Network};

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
