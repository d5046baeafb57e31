// SPDX-License-Identifier: Apache-2.0
//! The flow cache: exact match on flow keys, bounded, in bursts.
//!
//! A worker looks up a burst of keys with [`FlowCache::find`]. It counts hits with [`FlowCache::hit`], which returns
//! the decision; it decides misses by the policy and adds them with [`FlowCache::insert`]. Decisions are numbers with a
//! meaning only for the caller; the cache does not distinguish drops.
//!
//! ```text
//! hash ──┬─ low bits ──> set of 8 tags (16 bytes) ──> entries (128 bytes): line 0  key and port
//!        └─ top bits ──> tag, 13 bits and 1                                line 1  decision, counters, times
//! ```
//!
//! - A cache belongs to one worker: nothing is shared, and a scan cannot flood an upcall path. Its memory is allocated
//!   and touched at creation, on transparent huge pages if the kernel has them.
//! - An entry is valid while its generation is the policy's and it has not expired. A new policy thus invalidates all
//!   entries at once; packets overwrite them one by one. Correctness is one-sided: a hit is a decision for exactly this
//!   key, port and generation; a miss is always permitted.
//! - `find` processes the burst in steps, each prefetching the lines of the next: hashes (a set each), tags (two lines
//!   of an entry each), keys. In a run of equal keys only the first is looked up.
//! - The policy may mask fields that no rule uses, so that a flow does not have an entry for each combination of TCP
//!   flags.
//!
//! # Cost
//!
//! The key, the hash, the comparisons of tags and of keys, and counting. Up to 1,000 flows fit into L2; at 100,000 two
//! lines per packet come from L3, 16 at a time. Bursts with frames of several kinds mispredict branches. Counting a
//! single flow is slower than many, as each count depends on the previous one. The figures are in
//! `docs/notes/performance.md`.
//!
//! # Size
//!
//! The default is 262,144 entries, 34 MiB per worker: 128 bytes of entry and 2.1 of set each. With 100,000 flows 99.8 %
//! of packets hit; with half the size 94 %, as 5.6 % of flows share their set with eight others (0.2 % here). The
//! processor's caches hold the busy entries, so size costs memory and not time; the tags, which every packet reads,
//! take 512 KiB and stay in the L2 of current servers. From 2^20 entries on they do not.

#![forbid(unsafe_code)]

mod cache;
mod entry;
mod options;
mod set;

pub use cache::{Counters, FlowCache, MAX_BURST};
pub use entry::{Entry, Hit, New, Slot, Validity};
pub use options::{CacheError, Eviction, Options};
