// SPDX-License-Identifier: Apache-2.0
//! Owners of packets: [`Mbuf`] of one, [`Batch`] of up to 64; and pending offloads of guests' packets (`offload`).

mod batch;
mod mbuf;
mod notes;
mod offload;
mod parts;

pub use batch::{Batch, Drain};
pub use mbuf::{BoundsError, Mbuf, MbufPtr, RawMbuf};
pub use offload::{MAX_HEADER_LENGTHS, Oversized, Unfinished};
pub use parts::{MAX_PARTS, Part};
