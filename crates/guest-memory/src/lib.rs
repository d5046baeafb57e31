// SPDX-License-Identifier: Apache-2.0
//! Memory that guests share with netvm: which files may hold it, and how they are mapped.
//!
//! A worker takes a page fault if a guest's memory has no page yet. If the memory is a file whose pages come from a
//! process (a FUSE server, perhaps the guest's own), from the network or from a disk, the worker waits for that server,
//! and all traffic waits with it. So every file must be one in memory ([`is_in_memory`]). Its owner may truncate it all
//! the same; a worker that then touches a missing page gets SIGBUS. There are two answers to that:
//!
//! - vhost-user allows such files, on hugetlbfs, too; its workers survive the signal, and the guest is disconnected.
//! - Cards over vfio-user demand a file that cannot shrink ([`SealedFile`]), so that no access fails.
//!
//! rust-vmm's `vm-memory` does the mapping. Who may map what at which address of a guest is up to each protocol.

mod file;
mod mapping;

pub use file::{FileError, FileId, SealedFile, is_in_memory};
pub use mapping::{Access, Mapping};
