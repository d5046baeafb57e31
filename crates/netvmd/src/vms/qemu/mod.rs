// SPDX-License-Identifier: Apache-2.0
//! QEMU as a process: its folder, sockets, start, control channel and console.

pub(super) mod console;
pub(super) mod folder;
pub(super) mod launch;
pub(super) mod listeners;
pub(super) mod monitor;
pub(super) mod process;
