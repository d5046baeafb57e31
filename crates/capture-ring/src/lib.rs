// SPDX-License-Identifier: Apache-2.0
//! What a worker and the reader of a packet capture share.
//!
//! | part | what it is |
//! |---|---|
//! | [`Filter`] | a program of classic BPF, verified once and run for each packet |
//! | [`Record`] | what is known of a captured packet: time, capture point, direction, chain, verdict, drop reason |
//! | [`Writer`], [`Reader`] | a ring of records in shared memory, from one worker to one reader |
//! | [`send_handover`], [`receive_handover`] | the rings' memory, passed to the reader over a Unix socket |
//!
//! In come packets of a worker, out goes what a capture file needs. A reader that is slow or hostile loses its own
//! records, which are counted for each interface, and never delays the worker.

mod filter;
mod handover;
mod record;
mod ring;

pub use filter::{Filter, FilterError, Instruction, MAX_INSTRUCTIONS, Outcome};
pub use handover::{HandoverError, MAX_RINGS, receive_handover, send_handover};
pub use record::{Direction, NONE_U8, NONE_U16, Origin, Record};
pub use ring::{Counts, MAX_INTERFACES, Reader, RingError, Writer, ring_bytes};
