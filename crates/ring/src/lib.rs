// SPDX-License-Identifier: Apache-2.0
//! Single-producer single-consumer rings of packet descriptors in memory that a hostile peer also maps.
//!
//! In: 16-byte [`Descriptor`]s from a worker or an NF thread. Out: the same descriptors at the other end of the ring.
//! The peer may be a process or a VM that netvm does not trust, so each side keeps its own index in private memory and
//! treats the index that the peer publishes as a claim. An impossible claim is counted ([`Producer::faults`],
//! [`Consumer::faults`]) and read as "full" or "empty". The consumer copies a descriptor out of shared memory once, as
//! two words, and the code that acts on it checks it. The worst that a peer can do to a ring is to lose its own
//! packets.
//!
//! ```text
//!  byte 0     Header     layout version, capacity (written once by the engine, for people and debuggers)
//!       128   tail       next index to write; written only by the producer
//!       256   head       next index to read; written only by the consumer
//!       384   waiting    1 while the consumer sleeps and needs a wake-up; set by the consumer, cleared by either side
//!       512   low words  capacity x 8 bytes, in blocks of 16; the blocks are in bit-reversed order: [`word_offsets`]
//!             high words the same again
//! ```
//!
//! Indexes run freely through `u32`. Bit 31 of a slot's low word is the lap bit. It alternates from one lap of the ring
//! to the next, starting with 1 in zeroed memory. By it the engine finds the slots that a producer wrote but did not
//! publish before it died ([`RingMemory::unpublished`]).

mod descriptor;
#[cfg(any(test, loom))]
mod heap;
mod memory;
mod message;
mod ring;
mod sync;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use descriptor::{Descriptor, MaskedKey, Span, VerdictKind};
#[cfg(any(test, loom))]
pub use heap::HeapRing;
pub use memory::{CapacityError, LAYOUT_VERSION, RingMemory, ring_bytes, word_offsets};
pub use message::Message;
pub use ring::{Consumer, Producer};
pub use sync::full_fence;
