//! What load, idleness and watching cost: latency, overload, sleep, captures.

pub mod capture;
pub mod idle;
pub mod latency;
pub mod overload;
pub mod watch;
