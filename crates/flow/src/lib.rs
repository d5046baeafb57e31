//! The flow cache: exact match on flow keys, bounded, in bursts.
//!
//! A worker asks [`FlowCache::find`] for a burst of keys. What hits it counts with [`FlowCache::hit`], which gives the
//! decision back; what misses it decides by the policy and puts in with [`FlowCache::insert`]. Decisions are numbers
//! that mean something to the caller only: a flow that is to be dropped is one as any other.

mod cache;
mod entry;
mod memory;
mod options;
mod prefetch;
mod set;

pub use cache::{Counters, FlowCache, MAX_BURST, Moment, New, Verdict};
pub use entry::{Entry, Slot};
pub use options::{CacheError, Eviction, Options};
