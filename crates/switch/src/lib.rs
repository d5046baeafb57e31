//! L2 switching with nothing of DPDK.

#![forbid(unsafe_code)]

mod fdb;
mod police;
mod sync;

pub use fdb::{
    Binding, Fdb, FdbError, FdbKey, FdbOptions, Learned, MAX_PORTS, StaticError, TICKS_PER_SECOND,
};
pub use police::{Meter, Policer, PolicerError};
