// SPDX-License-Identifier: Apache-2.0
//! Entries of the next-hop table: destinations, rings and names.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MAX_NF_THREADS, MAX_REPLICAS, NAME_BYTES};

/// Where a packet that enters a hop goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DestinationKind {
    /// To the engine: end of the chain, another trust group, or a case that the engine decides.
    Engine = 0,
    /// To one of the NF threads.
    NfThreads = 1,
}

/// How one of several replicas is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Balance {
    /// The NF thread whose ring holds the fewest packets.
    #[default]
    LeastOccupied = 0,
    /// By the flow's hash: a flow stays with its replica while the set of replicas stays.
    FlowHash = 1,
    /// As [`Balance::LeastOccupied`] at a flow's first packet; the flow then stays with its replica while that exists.
    Sticky = 2,
}

/// Where packets that enter a hop, or that an NF sends to a role, go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Destination {
    pub(super) kind: u8,
    /// The hop at which the packets arrive; differs from the requested hop if that is bypassed.
    pub hop: u8,
    pub(super) balance: u8,
    pub(super) count: u8,
    pub(super) nf_threads: [u8; MAX_REPLICAS],
}

impl Destination {
    /// The engine, at `hop`.
    #[must_use]
    pub const fn engine(hop: u8) -> Self {
        Self { kind: DestinationKind::Engine as u8, hop, balance: 0, count: 0, nf_threads: [0; MAX_REPLICAS] }
    }

    /// One of the first [`MAX_REPLICAS`] of `nf_threads`, which are at `hop`; the engine if there are none.
    #[must_use]
    pub fn nf_threads(hop: u8, balance: Balance, nf_threads: &[u8]) -> Self {
        let mut this = Self::engine(hop);
        for (slot, nf_thread) in this.nf_threads.iter_mut().zip(nf_threads) {
            *slot = *nf_thread % MAX_NF_THREADS as u8;
            this.count += 1;
        }
        if this.count > 0 {
            (this.kind, this.balance) = (DestinationKind::NfThreads as u8, balance as u8);
        }
        this
    }

    /// The NF threads to choose from; empty means the engine.
    #[inline]
    #[must_use]
    pub fn replicas(&self) -> &[u8] {
        if self.kind == DestinationKind::NfThreads as u8 {
            self.nf_threads.get(..usize::from(self.count)).unwrap_or(&[])
        } else {
            &[]
        }
    }

    /// How to choose a replica.
    #[inline]
    #[must_use]
    pub const fn balance(&self) -> Balance {
        match self.balance {
            1 => Balance::FlowHash,
            2 => Balance::Sticky,
            _ => Balance::LeastOccupied,
        }
    }
}

/// The direct ring from one NF thread to another; `present` is 0 if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingRef {
    present: u8,
    /// The region (NUMA node of the group) that holds the ring.
    pub region: u8,
    /// Its index there.
    pub index: u16,
}

impl RingRef {
    /// Direct ring `index` of region `region`.
    #[must_use]
    pub const fn new(region: u8, index: u16) -> Self {
        Self { present: 1, region, index }
    }

    /// The ring, if there is one.
    #[must_use]
    pub const fn get(self) -> Option<Self> {
        if self.present == 1 { Some(self) } else { None }
    }
}

/// A name of at most [`NAME_BYTES`] bytes, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// The name; `None` if it is empty, too long, or contains a zero byte.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('\0') {
            return None;
        }
        let mut bytes = [0; NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    /// The name as text; empty for a number that is not in use.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}
