// SPDX-License-Identifier: Apache-2.0
//! NFs in VMs: real guests under QEMU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod nf;
#[path = "../support/mod.rs"]
mod support;
