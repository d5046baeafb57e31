//! The benchmarks, a file each.

pub mod bindings;
pub mod capture;
pub mod chain;
pub mod container;
pub mod copy;
pub mod e1000;
pub mod hop;
pub mod idle;
pub mod latency;
pub mod overload;
pub mod policy;
pub mod reclaim;
pub mod route;
pub mod router;
pub mod vhost;
pub mod vm;
