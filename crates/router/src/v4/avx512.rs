// SPDX-License-Identifier: Apache-2.0
//! Lookup with AVX-512 where every group has one leaf for all slots: a gather of sixteen leaves, in a small table, is
//! faster than sixteen loads.

#![allow(unsafe_code, reason = "gathers read memory by address")]

use std::arch::x86_64::{
    __m256i, _mm256_storeu_si256, _mm512_cvtepi32_epi16, _mm512_i32gather_epi32, _mm512_loadu_si512,
    _mm512_mask_mov_epi32, _mm512_movepi32_mask, _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_sub_epi32,
};

use super::GROUP_BITS;
use super::group::Group;
use super::root::GROUPS;
use crate::next_hop::NextHopId;

/// Addresses per vector.
pub(super) const LANES: usize = 16;

/// Looks up addresses in groups that [`Group::uniform`] made.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
pub(super) fn lookup(
    root: &[Group; GROUPS],
    addresses: &[u32; LANES],
    found: &mut [NextHopId; LANES],
    default: NextHopId,
) {
    // SAFETY: the array has 64 bytes, and the load needs no alignment.
    let addresses = unsafe { _mm512_loadu_si512(addresses.as_ptr().cast()) };
    let groups = _mm512_srli_epi32::<{ 32 - GROUP_BITS as u32 }>(addresses);
    // SAFETY: the shift leaves a number of a group, and the second half of a group is the place of its first leaf.
    let places = unsafe { _mm512_i32gather_epi32::<8>(groups, root.as_ptr().cast::<i32>().add(1)) };
    let leaves = _mm512_sub_epi32(places, _mm512_set1_epi32(1));
    // A leaf without a route has its upper bit set.
    let none = _mm512_movepi32_mask(_mm512_slli_epi32::<16>(leaves));
    let ids = _mm512_mask_mov_epi32(leaves, none, _mm512_set1_epi32(default.0.into()));
    // SAFETY: the array has 32 bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(found.as_mut_ptr().cast::<__m256i>(), _mm512_cvtepi32_epi16(ids)) };
}
