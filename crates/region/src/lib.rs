// SPDX-License-Identifier: Apache-2.0
//! The memory that the engine and the NFs of one trust group share.
//!
//! Each memory is a sealed memfd; a VM sees the same pages as the memory of an `ivshmem` device. It holds indexes and
//! offsets, never pointers, so each side can map it anywhere. There are three kinds, by writer:
//!
//! | memory | one per | written by | holds |
//! |---|---|---|---|
//! | [`Region`] | trust group and NUMA node | engine and all NFs of the group | packet buffers, the owner table, direct rings between NFs, backpressure flags |
//! | [`TablePublisher`] / [`TableReader`] | trust group | engine (NFs map it read-only) | the destination of each hop of each chain, names of ports and roles |
//! | [`Control`] | NF | engine and that NF | the NF's rings to and from the engine, its counters |
//!
//! The engine never reads a size, an offset or a count back from them: it keeps its own copy. It uses an NF's claims
//! (an epoch, a counter) only as numbers to show or to wait for, never as addresses.

mod control;
mod geometry;
mod kind;
mod map;
mod region;
mod sticky;
mod table;

pub use control::{
    Admission, BrokenMailbox, Command, Control, ControlError, ControlHeader, CounterBlock, MAX_COUNTERS,
    MAX_MAIL, MAX_REGIONS, MAX_THREADS, MAX_WORKERS, Mailbox, NfCounter, NotifyMode, Quota, ReadyMessage,
    Side,
};
pub use geometry::{Geometry, GeometryError, RegionSpec};
pub use kind::Kind;
pub use map::{MapError, Mapping, PageKind, Pages, lost_pages};
pub use region::{ENGINE, Region, RegionError};
pub use sticky::Sticky;
pub use table::{
    Balance, Destination, DestinationKind, MAX_CHAINS, MAX_HOPS, MAX_NF_THREADS, MAX_PORTS, MAX_REPLICAS,
    MAX_ROLES, NAME_BYTES, Name, RingRef, Table, TableCopy, TableError, TablePublisher, TableReader,
};

/// Version of the layout of shared memory, and of what an NF may write to its rings. An NF says the version that it was
/// built for, and the engine gives it control memory of that version.
pub const LAYOUT_VERSION: u32 = 11;
/// The oldest version of NFs that the engine admits.
pub const OLDEST_LAYOUT: u32 = 10;
/// Version of the memories that all NFs of a group share, whatever their versions: regions and next-hop tables.
pub const GROUP_LAYOUT: u32 = 10;
