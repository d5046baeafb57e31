//! Packets and who owns them: one ([`Mbuf`]), up to 64 ([`Batch`]), and the work that a sender left to others
//! (`offload`).

mod batch;
mod mbuf;
mod offload;

pub use batch::{Batch, Drain};
pub use mbuf::{BoundsError, Mbuf, MbufPtr, RawMbuf};
pub use offload::Oversized;
