//! Tests of whole stages, without a process, a guest or a NIC.

mod actions;
mod classify;
mod offloads;
mod rig;
mod shaper;
mod shares;
mod stages;
