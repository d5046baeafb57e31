// SPDX-License-Identifier: Apache-2.0
//! Tests eight packets at a time; a vector holds one field of all of them.

use core::arch::x86_64::*;

use dpdk::Mbuf;
use netvm_classifier::{BUCKETS, Part, Prefilter};

use super::{ETHERNET_BITS, FRONT, Front, Fronts, GroupResult, Prefiltered, prefilter_by};

/// As [`super::prefilter()`].
#[target_feature(enable = "avx2")]
pub(super) fn prefilter(
    prefilter: &Prefilter,
    packets: &[Mbuf],
    see: impl FnMut(usize, u32, Front),
) -> Prefiltered {
    prefilter_by(packets, see, |fronts, first| test_group(prefilter, fronts, first))
}

/// Tests eight packets.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn test_group(prefilter: &Prefilter, fronts: &Fronts, first: u128) -> GroupResult {
    let starts = rows(fronts, 0);
    let [_, _, _, types] = columns(starts);
    let [lengths, fragments, sources, both] = columns(rows(fronts, 16));
    let [destinations, ports, _, offsets] = columns(rows(fronts, 32));

    let zero = _mm256_setzero_si256();
    let masked = |column, mask| _mm256_and_si256(column, _mm256_set1_epi32(mask));
    // EtherType 0x0800, version 4, 5 words of header.
    let is_v4 = _mm256_cmpeq_epi32(masked(types, 0x00ff_ffff), _mm256_set1_epi32(0x0045_0008));
    let is_whole = _mm256_cmpeq_epi32(masked(fragments, 0x0000_ff3f), zero);
    let protocol = _mm256_srli_epi32::<24>(fragments);
    let is_tcp = _mm256_cmpeq_epi32(protocol, _mm256_set1_epi32(6));
    let is_udp = _mm256_cmpeq_epi32(protocol, _mm256_set1_epi32(17));

    let total = _mm256_srli_epi32::<16>(swapped(lengths));
    let payload = _mm256_sub_epi32(total, _mm256_set1_epi32(20));
    let ports = swapped(ports);
    let tcp_length = masked(_mm256_srli_epi32::<18>(offsets), 0x3c);
    let length = _mm256_blendv_epi8(masked(ports, 0xffff), tcp_length, is_tcp);
    let shortest = _mm256_blendv_epi8(_mm256_set1_epi32(8), _mm256_set1_epi32(20), is_tcp);
    let too_long = _mm256_or_si256(
        _mm256_cmpgt_epi32(total, load(&fronts.rooms)),
        _mm256_or_si256(_mm256_cmpgt_epi32(length, payload), _mm256_cmpgt_epi32(shortest, length)),
    );
    let known = _mm256_and_si256(_mm256_and_si256(is_v4, is_whole), _mm256_or_si256(is_tcp, is_udp));
    let sound = _mm256_andnot_si256(too_long, known);

    // The lower half of `sources` has the upper one of the source address, and so on: one field after the other.
    let (sources, both, destinations) = (swapped(sources), swapped(both), swapped(destinations));
    let high = |column| _mm256_srli_epi32::<20>(_mm256_slli_epi32::<16>(column));
    let groups = _mm256_blendv_epi8(
        _mm256_set1_epi32(prefilter.udp().cast_signed()),
        _mm256_set1_epi32(prefilter.tcp().cast_signed()),
        is_tcp,
    );
    let by_source = words(prefilter.table(Part::SourceHigh), high(sources));
    let by_destination = words(prefilter.table(Part::DestinationHigh), high(both));
    let mut left = _mm256_and_si256(groups, _mm256_and_si256(by_source, by_destination));
    let wanted = bits(sound);
    let mut proven = wanted & bits(_mm256_cmpeq_epi32(left, zero));
    if proven != wanted {
        let middle = |upper, lower| {
            let address = _mm256_or_si256(_mm256_slli_epi32::<16>(upper), _mm256_srli_epi32::<16>(lower));
            masked(_mm256_srli_epi32::<8>(address), 0xfff)
        };
        let more = [
            words(prefilter.table(Part::SourceMiddle), middle(sources, both)),
            words(prefilter.table(Part::DestinationMiddle), middle(both, destinations)),
            words(prefilter.table(Part::SourcePort), high(destinations)),
            words(prefilter.table(Part::DestinationPort), _mm256_srli_epi32::<20>(ports)),
        ];
        for words in more {
            left = _mm256_and_si256(left, words);
        }
        proven = wanted & bits(_mm256_cmpeq_epi32(left, zero));
    }
    GroupResult { proven, same_header: have_header(starts, first) }
}

/// Sixteen bytes of each packet: of the first and the fifth, the second and the sixth, and so on.
#[target_feature(enable = "avx2")]
#[inline]
fn rows(fronts: &Fronts, at: usize) -> [__m256i; 4] {
    let pair = |lane: usize| {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&fronts.bytes[lane][at..at + 16]);
        bytes[16..].copy_from_slice(&fronts.bytes[lane + 4][at..at + 16]);
        load(&bytes)
    };
    [pair(0), pair(1), pair(2), pair(3)]
}

/// The four words of each row: of all packets, in their order.
#[target_feature(enable = "avx2")]
#[inline]
fn columns([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (low, low_too) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (upper, upper_too) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(low, low_too),
        _mm256_unpackhi_epi64(low, low_too),
        _mm256_unpacklo_epi64(upper, upper_too),
        _mm256_unpackhi_epi64(upper, upper_too),
    ]
}

/// Whether the first 14 bytes of all packets are these.
#[target_feature(enable = "avx2")]
#[inline]
fn have_header(starts: [__m256i; 4], header: u128) -> bool {
    let twice = |number: u128| load(&[number, number]);
    let header = twice(header);
    let mut differences = _mm256_setzero_si256();
    for row in starts {
        differences = _mm256_or_si256(differences, _mm256_xor_si256(row, header));
    }
    _mm256_testz_si256(differences, twice(ETHERNET_BITS)) == 1
}

/// The bytes of each word in reverse.
#[target_feature(enable = "avx2")]
#[inline]
fn swapped(column: __m256i) -> __m256i {
    let order = [3u8, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];
    _mm256_shuffle_epi8(column, load(&[order, order]))
}

/// The upper bit of each word.
#[target_feature(enable = "avx2")]
#[inline]
fn bits(column: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(column)) as u8
}

/// The words of a table for buckets of it.
#[target_feature(enable = "avx2")]
#[inline]
fn words(table: &[u32; BUCKETS], buckets: __m256i) -> __m256i {
    let buckets = _mm256_and_si256(buckets, _mm256_set1_epi32(BUCKETS as i32 - 1));
    // SAFETY: just made sure that each bucket is one of the table's.
    unsafe { _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), buckets) }
}

/// Loads a value of the size of a vector.
#[target_feature(enable = "avx2")]
#[inline]
fn load<T: Copy>(bytes: &T) -> __m256i {
    const { assert!(size_of::<T>() == size_of::<__m256i>()) };
    // SAFETY: so many initialised bytes are there, of arrays of integers, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(core::ptr::from_ref(bytes).cast()) }
}

const _: () = assert!(FRONT == 48);
