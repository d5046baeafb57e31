//! First matching entry for bursts of flow keys: what the policy's fast path asks for packets of new flows.
//!
//! A policy is a list of entries, each a set of [`Cube`]s; the first entry that contains a key decides.
//!
//! - [`Classifier`] compiles a list with DPDK's `rte_acl`: 25 to 70 cycles a key for 1,000 rules in bursts of 32,
//!   milliseconds to seconds to build.
//! - [`Table`] is a classifier and the changes that are newer than it, up to a thousand: made in a millisecond at most, so
//!   that a new rule acts at once while the next classifier is being built.
//! - [`Prefilter`] proves of most packets that no entry contains them, in a few cycles each.
//!
//! The reference that all are held against is [`Cube::contains`], entry by entry.
//!
//! # How a list is compiled
//!
//! Packets are told apart by family (IPv4, IPv6, others). For each, `rte_acl` sees the fields that some cube of the family
//! looks at and no others; where these are IPv4 addresses, protocol and ports, keys are the classic 16 bytes. A cube that
//! takes everything of its family ends the list, and is not compiled but remembered. Lists beyond [`Limits::table_cubes`],
//! and those that `rte_acl` cannot take whole or not within the memory, are cut into several tables in order; keys go on
//! to the next table until one has something for them. A handful of cubes is not compiled at all.
//!
//! A classifier's memory is the EAL's, and is freed when the last reference is dropped, which takes milliseconds: not a
//! worker.

#![forbid(unsafe_code)]

mod changes;
mod index;
mod layout;
mod overlay;
mod prefilter;
mod table;
mod tables;

use dpdk::{AclError, Eal};
use netvm_policy::{Cube, Family};
use netvm_wire::FlowKey;
use thiserror::Error;

pub use prefilter::{BUCKETS, Part, Prefilter, Tuple};
pub use table::Table;

use tables::{Numbered, Tables};

/// No entry contains the key.
pub const NONE: u32 = u32::MAX;

/// Keys that are classified at once; longer bursts are cut.
pub const BURST: usize = 64;

/// The rows of a burst.
const ALL: [u8; BURST] = {
    let mut rows = [0; BURST];
    let mut row = 0;
    while row < BURST {
        rows[row] = row as u8;
        row += 1;
    }
    rows
};

/// Most entries of a list.
pub const MAX_ENTRIES: usize = 1 << 24;

/// What a classifier may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the EAL's memory, which has to hold two classifiers while one replaces the other.
    pub memory: usize,
    /// Most cubes in one table. More make it slower to build (8,192: up to 8 s and 3.5 GB of ordinary memory, mostly far
    /// below) and packets faster to classify, as each further table costs about 30 cycles.
    pub table_cubes: usize,
    /// Up to so many cubes of a family are not compiled but tried one after the other.
    pub scan_cubes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 128 << 20, table_cubes: 8192, scan_cubes: 4 }
    }
}

/// A list could not be compiled. Nothing is left of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// Too many entries.
    #[error("a policy of {entries} entries: {MAX_ENTRIES} are possible")]
    Entries {
        /// How many.
        entries: usize,
    },
    /// It takes too much memory.
    #[error(
        "the policy's {cubes} combinations of values do not fit into the {memory} bytes set aside for compiled rules \
         ({source}): set more aside, or have fewer rules, or rules that overlap in fewer fields"
    )]
    TooLarge {
        /// Cubes of the family that did not fit.
        cubes: usize,
        /// What is set aside.
        memory: usize,
        /// What the last attempt said.
        source: AclError,
    },
    /// Compiling failed for another reason.
    #[error(transparent)]
    Acl(#[from] AclError),
}

/// A compiled list of entries.
#[derive(Debug)]
pub struct Classifier {
    /// For each [`Family`], by its number.
    families: [Tables; 3],
    bytes: usize,
}

impl Classifier {
    /// Compiles the entries: the cubes of each, in order. An entry without cubes contains nothing, but counts.
    ///
    /// # Errors
    /// [`BuildError`], above all if they take more memory than `limits` allow.
    pub fn build(eal: Eal, entries: &[impl AsRef<[Cube]>], limits: &Limits) -> Result<Self, BuildError> {
        if entries.len() > MAX_ENTRIES {
            return Err(BuildError::Entries { entries: entries.len() });
        }
        let mut memory = limits.memory;
        let mut tables = |family: Family| {
            let numbered = (0u32..).zip(entries);
            let cubes = numbered.flat_map(|(n, entry)| entry.as_ref().iter().map(move |cube| (*cube, n)));
            let cubes: Vec<Numbered> = cubes.filter(|(cube, _)| cube.family == family).collect();
            Tables::build(eal, family, cubes, limits, &mut memory)
        };
        let families = [tables(Family::V4)?, tables(Family::V6)?, tables(Family::Other)?];
        Ok(Self { families, bytes: limits.memory - memory })
    }

    /// Writes the number of the first entry that contains the key, or [`NONE`], for as many keys as both slices have.
    /// Does not allocate. Bursts of 32 and more are fastest.
    #[inline]
    pub fn classify(&self, keys: &[FlowKey], out: &mut [u32]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.burst(keys, out);
        }
    }

    #[inline]
    fn burst(&self, keys: &[FlowKey], out: &mut [u32]) {
        let keys = &keys[..keys.len().min(out.len())];
        let Some(first) = keys.first() else { return };
        if keys.iter().all(|key| key.ether_type == first.ether_type) {
            let mut rows = ALL;
            self.families[Family::of(first) as usize].classify(keys, &mut rows[..keys.len()], out);
        } else {
            self.mixed(keys, out);
        }
    }

    fn mixed(&self, keys: &[FlowKey], out: &mut [u32]) {
        let mut rows = [[0_u8; BURST]; 3];
        let mut counts = [0_usize; 3];
        for (row, key) in keys.iter().enumerate() {
            let family = Family::of(key) as usize;
            rows[family][counts[family]] = row as u8;
            counts[family] += 1;
        }
        for ((tables, rows), count) in self.families.iter().zip(&mut rows).zip(counts) {
            if count > 0 {
                tables.classify(keys, &mut rows[..count], out);
            }
        }
    }

    /// Bytes of the EAL's memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many tables of `rte_acl` it has: one for each family that has rules, unless there are very many.
    #[must_use]
    pub fn tables(&self) -> usize {
        self.families.iter().map(Tables::count).sum()
    }
}
