// SPDX-License-Identifier: Apache-2.0
//! Packets as bytes and in batches: reading keys, changing tags, counting bytes, splitting a batch into groups.

pub(crate) mod digest;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod packet_set;
pub(crate) mod probe;
pub(crate) mod retag;

use dpdk::Batch;

/// Bytes of all packets.
#[inline]
pub(crate) fn bytes_of(batch: &Batch) -> u64 {
    batch.as_slice().iter().map(|mbuf| u64::from(mbuf.pkt_len())).sum()
}
