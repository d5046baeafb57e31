// SPDX-License-Identifier: Apache-2.0
//! Finds the first matching entry for bursts of flow keys, for packets of new flows.
//!
//! A policy is a list of entries, each a set of [`Cube`]s; the first entry that contains a key decides.
//!
//! - [`Classifier`] compiles a list with DPDK's `rte_acl`, which takes milliseconds to seconds.
//! - [`Table`] is a classifier with up to a thousand newer changes, made in a millisecond at most, so that a new rule
//!   is in force at once while the next classifier is built.
//! - [`Prefilter`] proves for most packets that no entry contains them, in a few cycles each.
//!
//! The reference for all is [`Cube::contains`], entry by entry.
//!
//! # How a list is compiled
//!
//! Each family (IPv4, IPv6, others) is compiled separately, with only the fields that its cubes use; for IPv4
//! addresses, protocol and ports, keys are the classic 16 bytes. A cube that contains its whole family ends the list
//! and is stored separately. Lists beyond [`Limits::table_cubes`], and those that `rte_acl` cannot compile whole or
//! within the memory, are cut into several tables in order; keys go to the next table until one matches. A handful of
//! cubes is scanned instead.
//!
//! A classifier uses EAL memory, which is freed with the last reference. That takes milliseconds, so workers must not
//! drop it.

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

use layout::Numbered;
use tables::{Compiler, Tables};

/// No entry contains the key.
pub const NONE: u32 = u32::MAX;

/// Keys classified at once; longer bursts are split.
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

/// Limits of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of EAL memory, which must hold two classifiers during a replacement.
    pub memory: usize,
    /// Most cubes in a table. More make it slower to build (8,192: up to 8 s and 3.5 GB of ordinary memory, usually far
    /// less) and faster to classify, as each further table is another search.
    pub table_cubes: usize,
    /// Up to this many cubes of a family are scanned linearly.
    pub scan_cubes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 128 << 20, table_cubes: 8192, scan_cubes: 4 }
    }
}

/// A list cannot be compiled. All memory of the attempt is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// Too many entries.
    #[error("a policy of {entries} entries exceeds the limit of {MAX_ENTRIES}")]
    Entries {
        /// Their number.
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
        /// The available memory.
        memory: usize,
        /// The error of the last attempt.
        source: AclError,
    },
    /// Compiling failed for another reason.
    #[error(transparent)]
    Acl(#[from] AclError),
}

/// A compiled list of entries.
#[derive(Debug)]
pub struct Classifier {
    /// By [`Family`].
    families: [Tables; 3],
    bytes: usize,
}

impl Classifier {
    /// Compiles the cubes of the entries, in order. An entry without cubes matches nothing but has a number.
    ///
    /// # Errors
    /// [`BuildError`], mostly if they need more memory than `limits` permit.
    pub fn build(eal: Eal, entries: &[impl AsRef<[Cube]>], limits: &Limits) -> Result<Self, BuildError> {
        if entries.len() > MAX_ENTRIES {
            return Err(BuildError::Entries { entries: entries.len() });
        }
        let mut compiler = Compiler { eal, limits, memory: limits.memory };
        let mut tables = |family: Family| {
            let numbered = (0u32..).zip(entries);
            let cubes = numbered.flat_map(|(n, entry)| entry.as_ref().iter().map(move |cube| (*cube, n)));
            let cubes: Vec<Numbered> = cubes.filter(|(cube, _)| cube.family == family).collect();
            Tables::build(&mut compiler, family, cubes)
        };
        let families = [tables(Family::V4)?, tables(Family::V6)?, tables(Family::Other)?];
        Ok(Self { families, bytes: limits.memory - compiler.memory })
    }

    /// Writes for each key the number of the first entry that contains it, or [`NONE`], up to the shorter slice. Does
    /// not allocate. Bursts of 32 and more are fastest.
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

    /// EAL memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of `rte_acl` tables: one for each family with rules, more for very long lists.
    #[must_use]
    pub fn tables(&self) -> usize {
        self.families.iter().map(Tables::count).sum()
    }
}
