// SPDX-License-Identifier: Apache-2.0
//! A process that keeps open files of netvmd for the netvmd that replaces it. In: files, each with a number, under a
//! name. Out: the same files, to the process that opens this name next.
//!
//! Some connections cannot be made again: QEMU's vfio-user client never reconnects. So a second process has them open,
//! too, and a netvmd that was killed leaves them behind. systemd has such a store (`FDSTORE=1`,
//! sd_pid_notify_with_fds(3)), but only for its services, and it hands files over at the start only.
//!
//! ```text
//!  netvmd ── Store::open("a") ──▶ ┌────────────────────────────────────┐
//!         ◀─ files of "a" ─────── │ store: "a": 0 ─ socket, 1 ─ memfd … │
//!         ── Kept::put(2, file) ▶ │        "b": …                      │
//!                                 └────────────────────────────────────┘
//! ```
//!
//! The store is started by the first [`Store::open`], in a session of its own. Its socket is for its owner's user only.
//! It closes the files of a name some time after their owner has gone, or as soon as the other end of file 0 is closed,
//! and ends when it has nothing to keep.

mod client;
mod message;
mod server;

pub use client::{Store, StoredFiles};
pub use message::MAX_FILES;
pub use server::serve;
