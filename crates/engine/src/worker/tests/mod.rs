//! Tests of whole stages, without a process, a guest or a NIC.

mod actions;
mod classify;
mod rig;
mod stages;
