//! L2 switching with nothing of DPDK.

#![forbid(unsafe_code)]

mod police;
mod sync;

pub use police::{Meter, Policer, PolicerError};
