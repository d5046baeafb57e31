// SPDX-License-Identifier: Apache-2.0
//! The next-hop table, by which an NF hands packets directly to the next NF. In: the engine's chains and roles. Out:
//! the destination of a packet that enters a hop or is sent to a role.
//!
//! The engine publishes it; NFs map it read-only (the memfd is sealed against other writable mappings). A sequence
//! count guards it: an NF checks one word per turn of its loop, and copies the table into private memory when that word
//! has changed. Then it stores the epoch in its [`crate::Control`] memory, so the engine knows when no NF uses an old
//! ring any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use netvm_ids::MAX_GROUP_THREADS;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::kind::{self, Kind};
use crate::{MapError, Mapping, Pages};

mod entry;

pub use entry::{Balance, Destination, DestinationKind, Name, RingRef};
pub use netvm_ids::{MAX_CHAINS, MAX_HOPS, MAX_PORTS, MAX_REPLICAS, MAX_ROLES, NAME_BYTES};

/// Numbers of NF threads in a trust group. Number 0 is the engine.
pub const MAX_NF_THREADS: usize = MAX_GROUP_THREADS + 1;

/// The table's content. A zeroed table sends everything to the engine.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Table {
    /// For each chain, the destination of each hop.
    pub hops: [[Destination; MAX_HOPS]; MAX_CHAINS],
    /// For each chain, the role number plus one at each hop; 0 beyond its end.
    pub hop_roles: [[u16; MAX_HOPS]; MAX_CHAINS],
    /// For each role, the destination of packets that an NF sends to it.
    pub roles: [Destination; MAX_ROLES],
    /// 1 while the direct rings of the group form a loop. Then an NF thread must not wait forever for room in one,
    /// because the next thread may be waiting for it.
    pub looped: u64,
    /// Bit mask of NF threads that never signal (polling VMs); readers of their rings must poll now and then.
    pub poll_only: u64,
    /// For each producing and each consuming NF thread, the ring between them.
    pub rings: [[RingRef; MAX_NF_THREADS]; MAX_NF_THREADS],
    /// Names of the ports.
    pub ports: [Name; MAX_PORTS],
    /// Names of the roles.
    pub role_names: [Name; MAX_ROLES],
    /// Names of the chains. At the end: an NF that was built without them reads the table up to here.
    pub chain_names: [Name; MAX_CHAINS],
}

impl Table {
    /// A table that sends everything to the engine.
    #[must_use]
    pub fn new_boxed() -> Box<Self> {
        // Fails only when memory runs out, which aborts in any other allocation too.
        Self::new_box_zeroed()
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(std::alloc::Layout::new::<Self>()))
    }

    /// The destination of a packet that enters `hop` of `chain`; the engine, for numbers out of range.
    #[inline]
    #[must_use]
    pub fn hop(&self, chain: u16, hop: u8) -> Destination {
        let hops = self.hops.get(usize::from(chain)).and_then(|hops| hops.get(usize::from(hop)));
        hops.copied().unwrap_or(Destination::engine(hop))
    }

    /// The destination of a packet that an NF at `hop` of `chain` sends to `role`: the chain's next hop with that role
    /// if there is one, else the role's NF threads. The packet then keeps its hop, so "next" after the detour is what
    /// it was before.
    #[inline]
    #[must_use]
    pub fn role(&self, chain: u16, hop: u8, role: u16) -> Destination {
        let Some(detour) = self.roles.get(usize::from(role)) else { return Destination::engine(hop) };
        if let Some(roles) = self.hop_roles.get(usize::from(chain)) {
            let later = roles.iter().skip(usize::from(hop) + 1).position(|other| *other == role + 1);
            if let Some(later) = later {
                return self.hop(chain, hop + 1 + later as u8);
            }
        }
        Destination { hop, ..*detour }
    }

    /// Number of the role with this name.
    #[must_use]
    pub fn role_number(&self, name: &str) -> Option<u16> {
        number_of(&self.role_names, name)
    }

    /// Number of the chain with this name.
    #[must_use]
    pub fn chain_number(&self, name: &str) -> Option<u16> {
        number_of(&self.chain_names, name)
    }

    /// Number of the port with this name.
    #[must_use]
    pub fn port_number(&self, name: &str) -> Option<u16> {
        number_of(&self.ports, name)
    }
}

fn number_of(names: &[Name], name: &str) -> Option<u16> {
    let name = Name::new(name)?;
    names.iter().position(|other| *other == name).map(|n| n as u16)
}

const EPOCH_AT: u64 = 128;
const TABLE_AT: u64 = 4096;
const WORDS: usize = size_of::<Table>() / 8;
const BYTES: u64 = (TABLE_AT + size_of::<Table>() as u64).next_multiple_of(4096);

const _: () = assert!(size_of::<Table>().is_multiple_of(8));

fn epoch(mapping: &Mapping) -> &AtomicU64 {
    // SAFETY: within the mapping, and only ever used as an atomic.
    unsafe { mapping.at::<AtomicU64>(EPOCH_AT).as_ref() }
}

fn words(mapping: &Mapping) -> &[AtomicU64; WORDS] {
    // SAFETY: within the mapping, and only ever used as atomics.
    unsafe { mapping.at::<[AtomicU64; WORDS]>(TABLE_AT).as_ref() }
}

/// Why an NF cannot use the next-hop table that it was given.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Its memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The memory does not hold a table.
    #[error("the memory passed as next-hop table does not hold one: the sender is not a netvm engine")]
    NotATable,
    /// Another version of netvm made it.
    #[error(
        "the next-hop table has layout {found}, this netlib reads {}: build the NF with the netlib of this netvm",
        crate::GROUP_LAYOUT
    )]
    Layout {
        /// The table's layout version.
        found: u64,
    },
}

/// The engine's side of the table.
#[derive(Debug)]
pub struct TablePublisher {
    mapping: Mapping,
    epoch: u64,
    copies: Vec<Weak<TableCopy>>,
}

/// A copy of the table for one NF, which may map it writable, as QEMU's `ivshmem-doorbell` device does. The engine
/// never reads it, so the NF can affect only itself.
#[derive(Debug)]
pub struct TableCopy(Mapping);

impl AsFd for TableCopy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Writes a table under its sequence count, and then publishes `epoch`.
fn write(mapping: &Mapping, content: impl Iterator<Item = u64>, epoch_now: u64) {
    let epoch = epoch(mapping);
    epoch.store(epoch_now - 1, Ordering::Relaxed);
    fence(Ordering::Release);
    for (word, value) in words(mapping).iter().zip(content) {
        word.store(value, Ordering::Relaxed);
    }
    epoch.store(epoch_now, Ordering::Release);
}

impl TablePublisher {
    /// Creates the table of a trust group, which sends everything to the engine.
    ///
    /// # Errors
    /// [`MapError`] if memory runs out or cannot be sealed.
    pub fn create(name: &str) -> Result<Self, MapError> {
        let mapping = Mapping::create_for_readers(name, BYTES)?;
        kind::write(&mapping, Kind::Table);
        Ok(Self { mapping, epoch: 0, copies: Vec::new() })
    }

    /// Creates a copy that is updated while it lives.
    ///
    /// # Errors
    /// [`MapError`] if memory runs out.
    pub fn copy(&mut self, name: &str) -> Result<Arc<TableCopy>, MapError> {
        let mapping = Mapping::create(name, BYTES, Pages::Normal, None)?;
        kind::write(&mapping, Kind::Table);
        if self.epoch > 0 {
            let content = words(&self.mapping).iter().map(|word| word.load(Ordering::Relaxed));
            write(&mapping, content, self.epoch);
        }
        let copy = Arc::new(TableCopy(mapping));
        self.copies.push(Arc::downgrade(&copy));
        Ok(copy)
    }

    /// Publishes `table`; returns the epoch that NFs confirm once they use it.
    pub fn publish(&mut self, table: &Table) -> u64 {
        self.epoch += 2;
        let content = || {
            let words = table.as_bytes().chunks_exact(8);
            words.map(|bytes| u64::from_ne_bytes(<[u8; 8]>::try_from(bytes).unwrap_or_default()))
        };
        write(&self.mapping, content(), self.epoch);
        let epoch = self.epoch;
        self.copies.retain(|copy| {
            copy.upgrade().is_some_and(|copy| {
                write(&copy.0, content(), epoch);
                true
            })
        });
        self.epoch
    }

    /// The epoch published last.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl AsFd for TablePublisher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }
}

/// An NF's side of the table: the mapping, and the private copy that it uses.
#[derive(Debug)]
pub struct TableReader {
    mapping: Mapping,
    epoch: u64,
    table: Box<Table>,
}

impl TableReader {
    /// Maps the table that the engine passed.
    ///
    /// # Errors
    /// [`TableError`] when the file is not a table of this layout.
    pub fn open(fd: OwnedFd) -> Result<Self, TableError> {
        let mapping = Mapping::open("table", fd, BYTES, false)?;
        let (kind, layout) = Kind::of(&mapping).ok_or(TableError::NotATable)?;
        if kind != Kind::Table {
            return Err(TableError::NotATable);
        }
        if layout != u64::from(crate::GROUP_LAYOUT) {
            return Err(TableError::Layout { found: layout });
        }
        Ok(Self { mapping, epoch: 0, table: Table::new_boxed() })
    }

    /// Whether a newer table has been published. One load, of a line that seldom changes.
    #[inline(always)]
    #[must_use]
    pub fn is_stale(&self) -> bool {
        epoch(&self.mapping).load(Ordering::Relaxed) != self.epoch
    }

    /// Copies the newest table, unless the engine is writing it at this moment; returns whether the copy changed.
    pub fn refresh(&mut self) -> bool {
        let before = epoch(&self.mapping).load(Ordering::Acquire);
        if before == self.epoch || before % 2 == 1 {
            return false;
        }
        let mut copy = Table::new_boxed();
        for (word, bytes) in words(&self.mapping).iter().zip(copy.as_mut_bytes().chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        fence(Ordering::Acquire);
        if epoch(&self.mapping).load(Ordering::Relaxed) != before {
            return false;
        }
        (self.table, self.epoch) = (copy, before);
        true
    }

    /// The copy.
    #[inline(always)]
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The epoch of the copy; 0 before the first.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

#[cfg(test)]
mod tests;
