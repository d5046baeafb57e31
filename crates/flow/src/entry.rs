// SPDX-License-Identifier: Apache-2.0
//! The entry of a flow.

use netvm_wire::FlowKey;

/// The time and policy generation by which entries are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Generation of the policy; entries of other generations do not hit.
    pub generation: u32,
    /// Ticks of the caller's clock, wrapping.
    pub now: u32,
}

/// A decision to insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New {
    /// What to do with the flow's packets.
    pub decision: u32,
    /// Another number of the caller.
    pub extra: u32,
    /// Ticks until it ends even if busy; [`Options::NEVER`](crate::Options::NEVER) for no limit.
    pub lifetime: u32,
}

/// The decision in the cache for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// What to do with the flow's packets.
    pub decision: u32,
    /// Another number of the caller.
    pub extra: u32,
}

/// Index of an entry. It names the same flow until an insertion or removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// The first slot, to initialise arrays.
    pub const FIRST: Self = Self(0);

    /// The index, from 0.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flow of a [`FlowCache`](crate::FlowCache): a cache line with the key, then one with everything else, in an aligned
/// pair, which processors fetch together.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub struct Entry {
    pub(crate) line: Line,
    /// The decision; a number of the caller.
    pub decision: u32,
    /// Another number of the caller.
    pub extra: u32,
    /// Packets counted.
    pub packets: u64,
    /// Bytes counted.
    pub bytes: u64,
    /// Tick of the last counted packet, or of the insertion.
    pub last_used: u32,
    /// Tick of the insertion.
    pub created: u32,
    /// Ticks from `created` to its end; [`Options::NEVER`](crate::Options::NEVER) for no limit.
    pub lifetime: u32,
    /// Generation of the deciding policy.
    pub generation: u32,
    /// Number of the insertion, wrapping: with the slot, it identifies a flow for 2^32 insertions.
    pub serial: u32,
}

/// The words of a key, and the port in the upper 16 bits of the last.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Line([u64; 8]);

impl Line {
    #[inline(always)]
    pub(crate) const fn new(key: &FlowKey, port: u16) -> Self {
        let mut words = key.words();
        words[7] |= (port as u64) << 48;
        Self(words)
    }

    /// Branch-free comparison.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
    }
}

impl Entry {
    pub(crate) const EMPTY: Self = Self {
        line: Line::new(&FlowKey::EMPTY, 0),
        decision: 0,
        extra: 0,
        packets: 0,
        bytes: 0,
        last_used: 0,
        created: 0,
        lifetime: 0,
        generation: 0,
        serial: 0,
    };

    /// The key of its packets.
    #[must_use]
    pub fn key(&self) -> FlowKey {
        FlowKey::from(self.line.0)
    }

    /// The ingress port; a number of the caller.
    #[must_use]
    pub const fn port(&self) -> u16 {
        (self.line.0[7] >> 48) as u16
    }

    /// Whether it has expired. Ticks wrap: an entry not looked up for 2^32 ticks seems young again.
    #[inline(always)]
    pub(crate) const fn is_over(&self, now: u32, idle: u32) -> bool {
        // `NEVER` is the largest age, which is never exceeded.
        let unused = now.wrapping_sub(self.last_used);
        let age = now.wrapping_sub(self.created);
        (unused > idle) | ((age >= self.lifetime) & (self.lifetime != u32::MAX))
    }
}
