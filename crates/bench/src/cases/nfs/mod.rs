// SPDX-License-Identifier: Apache-2.0
//! NFs: what a hop costs, in processes, VMs and other languages.

pub mod bindings;
pub mod chain;
pub mod copy;
pub mod hop;
pub mod reclaim;
pub mod vm;
