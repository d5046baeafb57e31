//! The benchmarks, by what they measure.

pub mod forwarding;
pub mod guests;
pub mod load;
pub mod nfs;
