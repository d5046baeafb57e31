//! Owners of packets: [`Mbuf`] of one, [`Batch`] of up to 64; and pending offloads of guests' packets (`offload`).

mod batch;
mod mbuf;
mod offload;
mod parts;

pub use batch::{Batch, Drain};
pub use mbuf::{BoundsError, Mbuf, MbufPtr, RawMbuf};
pub use offload::{LONGEST_HEADERS, Oversized, Unfinished};
pub use parts::{MOST_PARTS, Part};
