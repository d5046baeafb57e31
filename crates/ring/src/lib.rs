//! Single-producer single-consumer rings of packet descriptors over memory that a hostile peer maps too.
//!
//! One side of a ring may be a process or a VM that netvm does not trust, so each side keeps its own index in
//! private memory and treats the index that the other side publishes as a claim: a claim that does not fit the ring is
//! counted ([`Producer::faults`], [`Consumer::faults`]) and read as "full" or "empty". A descriptor is copied out of
//! shared memory once, as two words, and checked by the code that acts on it; the worst that a peer can do to a ring is to
//! lose its own packets.
//!
//! ```text
//!  byte 0     RingHeader      layout version, capacity (written once by the engine, for people and debuggers)
//!       128   tail            next index that the producer writes; written by the producer only
//!       256   head            next index that the consumer reads; written by the consumer only
//!       384   waiting         1 while the consumer sleeps and wants to be woken; written by the consumer only
//!       512   low words       capacity x 8 bytes, in blocks of 16, these in bit-reversed order: [`words_at`]
//!             high words      the same again
//! ```
//!
//! Indexes run freely through `u32`. Bit 31 of a slot's buffer is its lap bit: it differs between one lap of the ring and
//! the next, and from zeroed memory, so that slots which a producer wrote but did not live to publish can be told
//! from those of the lap before ([`RingMemory::unpublished`]).

mod descriptor;
mod memory;
mod ring;
mod sync;

#[cfg(all(test, loom))]
mod model;

pub use descriptor::{CommonBits, Descriptor, Message, Span, VerdictKind};
#[cfg(any(test, loom))]
pub use memory::HeapRing;
pub use memory::{CapacityError, LAYOUT_VERSION, RingMemory, ring_bytes, words_at};
pub use ring::{Consumer, Producer};
pub use sync::full_fence;
