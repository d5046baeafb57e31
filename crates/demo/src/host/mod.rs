// SPDX-License-Identifier: Apache-2.0
//! What the demo makes on the machine, and how it is removed: names, namespaces, processes, signals.

pub mod cleanup;
pub mod interrupt;
pub mod names;
pub mod namespaces;
pub mod process;
