//! What netvm is compared with, each a process of its own.

pub mod fib;
pub mod guests;
pub mod ovs;
pub mod ring;
pub mod testpmd;
