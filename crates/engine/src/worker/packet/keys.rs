// SPDX-License-Identifier: Apache-2.0
//! Reads flow keys from a private copy of packets' headers, which NFs and guests cannot change.

use dpdk::Mbuf;
use netvm_wire::{EtherType, FlowHasher, FlowKey, Malformed, TcpFlags};

/// Bytes of the first copy: one cache line, which holds all headers of most packets.
const FIRST_LINE: usize = 64;
/// The most bytes of headers that are read.
pub(crate) const HEADER_BYTES: usize = 256;
/// Addresses and EtherType.
const ETHERNET: usize = 14;
/// Addresses, two tags and the EtherType.
const TAGGED: usize = 22;

/// The key of a packet.
#[inline]
pub(crate) fn key_of(mbuf: &Mbuf) -> Result<FlowKey, Malformed> {
    let mut key = FlowKey::EMPTY;
    read_key(mbuf, &mut key)?;
    Ok(key)
}

/// Reads the key of a packet into `key`.
#[inline(always)]
pub(crate) fn read_key(mbuf: &Mbuf, key: &mut FlowKey) -> Result<(), Malformed> {
    let length = mbuf.pkt_len() as usize;
    let mut line = [0u8; FIRST_LINE];
    let copied = mbuf.copy_first(&mut line);
    if copied > 0 && (copied == length || is_plain_v4(&line)) {
        return key.read_frame(&line[..copied], length);
    }
    read_long_key(mbuf, key)
}

/// Whether one cache line holds all headers of a packet: untagged IPv4 without options, and TCP or UDP.
#[inline(always)]
fn is_plain_v4(line: &[u8; FIRST_LINE]) -> bool {
    let protocol = line[23];
    line[12] == 8 && line[13] == 0 && line[14] == 0x45 && (protocol == 6 || protocol == 17)
}

#[inline(never)]
fn read_long_key(mbuf: &Mbuf, key: &mut FlowKey) -> Result<(), Malformed> {
    let mut headers = [0u8; HEADER_BYTES];
    let copied = mbuf.copy_to(&mut headers);
    key.read_frame(&headers[..copied], mbuf.pkt_len() as usize)
}

/// Reads the key of a packet into `key`, and copies the headers to `front`. Returns how many bytes of the packet are
/// there: the options of TCP only of segments that open a connection.
#[inline(always)]
pub(crate) fn read_front(
    mbuf: &Mbuf,
    front: &mut [u8; HEADER_BYTES],
    key: &mut FlowKey,
) -> Result<usize, Malformed> {
    let length = mbuf.pkt_len() as usize;
    if let Some(line) = front.first_chunk_mut::<FIRST_LINE>() {
        let copied = mbuf.copy_first(line);
        if copied > 0 && (copied == length || is_plain_v4(line)) {
            key.read_frame(&line[..copied], length)?;
            if copied == length || !key.tcp_flags.contains(TcpFlags::SYN) {
                return Ok(copied);
            }
        }
    }
    let copied = mbuf.copy_to(front);
    key.read_frame(&front[..copied], length)?;
    Ok(copied)
}

/// The first 14 bytes of a packet without tags, as a number; `None` for any other packet.
#[inline(always)]
pub(crate) fn untagged_header(mbuf: &Mbuf) -> Option<u128> {
    let mut bytes = [0; 16];
    let copied = mbuf.copy_first(&mut bytes);
    let header = u128::from_le_bytes(bytes) & (u128::MAX >> 16);
    let ether_type = EtherType(u16::from_be_bytes([bytes[12], bytes[13]]));
    (copied >= ETHERNET && !ether_type.is_vlan()).then_some(header)
}

/// The key for L2 switching: addresses, tags, EtherType.
pub(crate) fn ethernet_key_of(mbuf: &Mbuf) -> Result<FlowKey, Malformed> {
    ethernet_key(mbuf, untagged_header(mbuf))
}

/// [`ethernet_key_of`] a packet with this [`untagged_header`].
#[inline(never)]
pub(crate) fn ethernet_key(mbuf: &Mbuf, header: Option<u128>) -> Result<FlowKey, Malformed> {
    let length = mbuf.pkt_len() as usize;
    if let Some(header) = header {
        return FlowKey::of_ethernet(&header.to_le_bytes()[..ETHERNET], length);
    }
    let mut bytes = [0; TAGGED];
    let copied = mbuf.copy_to(&mut bytes);
    FlowKey::of_ethernet(&bytes[..copied], length)
}

/// Eight bits of the hash of a packet's flow, the same for both directions; 0 for a packet without ports.
pub(crate) fn hash_of(mbuf: &Mbuf) -> u8 {
    symmetric_hash_of(mbuf) as u8
}

/// The hash of a packet's flow, the same for both directions; 0 for a packet without ports.
pub(crate) fn symmetric_hash_of(mbuf: &Mbuf) -> u64 {
    let tuple = key_of(mbuf).ok().and_then(|key| key.five_tuple());
    tuple.map_or(0, |tuple| tuple.symmetric_hash())
}

/// What decides which worker owns a packet's flow: the same for both directions. `None` for a packet that has no flow.
pub(crate) fn owner_hash_of(mbuf: &Mbuf) -> Option<u64> {
    Some(owner_hash(&key_of(mbuf).ok()?))
}

/// The same for a flow of this key.
pub(crate) fn owner_hash(key: &FlowKey) -> u64 {
    if let Some(tuple) = key.five_tuple() {
        return tuple.symmetric_hash();
    }
    let ends = [key.source_mac, key.destination_mac].map(|mac| {
        let [a, b, c, d, e, f] = mac.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    });
    let [lower, higher] = [ends[0].min(ends[1]), ends[0].max(ends[1])];
    FlowHasher::shared().words([lower, higher, key.ether_type.0.into(), 0, 0])
}

#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
