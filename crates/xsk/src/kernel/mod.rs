//! The kernel's interface: system calls, mapped rings, and the BPF program.

pub(crate) mod program;
pub(crate) mod ring;
pub(crate) mod sys;
