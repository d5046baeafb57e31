// SPDX-License-Identifier: Apache-2.0
//! The prefilter: finds packets of a burst that provably match no rule of their port. In: packets, and the prefilter of
//! the rules. Out: a bit mask ([`Prefiltered`]), and the beginning of each packet.
//!
//! The prefilter copies the first 48 bytes of each packet once, and reads only the copy, because NFs and guests may
//! write to packets at any time. It tests untagged, unfragmented IPv4 without options whose TCP or UDP lengths fit:
//! frames that the parser accepts. Other packets (such as malformed packets and fragments) are not proven, and take the
//! reference path.
//!
//! Cost with AVX2, for eight packets at a time: copies, turning rows into columns, checks, two gathers of 8 words from
//! 16 KiB each, the mbufs' fields. If these do not prove all eight packets, four more gathers follow.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

use dpdk::Mbuf;
use netvm_classifier::Prefilter;

use crate::worker::packet::packet_set::first_bits;
use crate::worker::state::BURST;

/// Packets tested at a time.
const LANES: usize = 8;
/// Bytes read of each packet: up to the flags of TCP.
const FRONT: usize = 48;
/// Ethernet, IPv4 and TCP headers. If the first segment is shorter, only its bytes count as the packet's length.
const HEADERS: u16 = 54;
/// Ethernet header.
const ETHERNET: u32 = 14;
/// The Ethernet header among the first 16 bytes.
pub(crate) const ETHERNET_BITS: u128 = u128::MAX >> 16;

/// Copies of the first bytes of packets, and the number of bytes of each packet after the Ethernet header.
struct Fronts {
    bytes: [[u8; FRONT]; LANES],
    rooms: [u32; LANES],
}

/// The result for eight packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupResult {
    /// Packets that match no rule, one bit each.
    proven: u8,
    /// All eight have the Ethernet header with which they were compared.
    same_header: bool,
}

/// Ethernet header and source address of a packet.
pub(crate) struct Front {
    /// The first 16 bytes as a number.
    pub(crate) header: u128,
    /// The source address, if it is IPv4.
    pub(crate) source: [u8; 4],
}

impl Front {
    #[inline(always)]
    fn of(front: &[u8; FRONT]) -> Self {
        Self { header: header(front), source: [front[26], front[27], front[28], front[29]] }
    }
}

/// The result for a burst.
pub(crate) struct Prefiltered {
    /// Packets that match no rule, one bit each.
    pub(crate) proven: u64,
    /// All packets have the Ethernet header of the first packet.
    pub(crate) same_header: bool,
}

/// Tests a burst, and calls `see` with the index, the length and the [`Front`] of each packet.
#[inline]
pub(crate) fn prefilter(
    table: &Prefilter,
    packets: &[Mbuf],
    see: impl FnMut(usize, u32, Front),
) -> Prefiltered {
    #[cfg(target_arch = "x86_64")]
    if netvm_cpu::Level::current() >= netvm_cpu::Level::Avx2 {
        // SAFETY: the level is at most the processor's, and includes what the function is compiled for.
        return unsafe { avx2::prefilter(table, packets, see) };
    }
    prefilter_by(packets, see, |fronts, first| scalar::test_group(table, fronts, first))
}

/// As [`prefilter()`], with a function that tests eight packets and gets the first 16 bytes of the burst.
#[inline(always)]
fn prefilter_by(
    packets: &[Mbuf],
    mut see: impl FnMut(usize, u32, Front),
    test_group: impl Fn(&Fronts, u128) -> GroupResult,
) -> Prefiltered {
    let count = packets.len().min(BURST);
    let mut prefiltered = Prefiltered { proven: 0, same_header: true };
    let mut first = 0;
    for start in (0..count).step_by(LANES) {
        let mut fronts = Fronts { bytes: [[0; FRONT]; LANES], rooms: [0; LANES] };
        for lane in 0..LANES {
            // The last packet fills the unused lanes of a short burst.
            let index = (start + lane).min(count - 1);
            let mbuf = &packets[index];
            let (length, in_first) = (mbuf.pkt_len(), mbuf.data_len());
            mbuf.copy_first(&mut fronts.bytes[lane]);
            let believed = if in_first < HEADERS { length.min(in_first.into()) } else { length };
            fronts.rooms[lane] = believed.saturating_sub(ETHERNET);
            see(index, length, Front::of(&fronts.bytes[lane]));
        }
        if start == 0 {
            first = header(&fronts.bytes[0]);
        }
        let result = test_group(&fronts, first);
        prefiltered.proven |= u64::from(result.proven) << start;
        prefiltered.same_header &= result.same_header;
    }
    prefiltered.proven &= first_bits(count);
    prefiltered
}

#[inline(always)]
fn header(front: &[u8; FRONT]) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&front[..16]);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests;
