// SPDX-License-Identifier: Apache-2.0
//! Tests of whole stages, without a process, a guest or a NIC.

mod actions;
mod classify;
mod connections;
mod offloads;
mod programs;
mod queue;
pub(super) mod rig;
mod shaper;
mod shares;
mod stages;
mod traces;
