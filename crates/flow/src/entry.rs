//! What is known of a flow.

use netvm_wire::FlowKey;

/// Place of an entry. It names the same flow until something is inserted or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// The first place: what arrays of slots are made of.
    pub const FIRST: Self = Self(0);

    /// The number of the place, from 0.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One flow of a [`FlowCache`](crate::FlowCache): a cache line of what is compared, then one of everything else. The two
/// lie in one aligned pair, which processors fetch together.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub struct Entry {
    pub(crate) line: Line,
    /// What to do with its packets; the caller's number.
    pub decision: u32,
    /// A further number of the caller's.
    pub extra: u32,
    /// Packets counted.
    pub packets: u64,
    /// Bytes counted.
    pub bytes: u64,
    /// Tick of the last packet that was counted, or of the insertion.
    pub last_used: u32,
    /// Tick of the insertion.
    pub created: u32,
    /// Ticks after `created` at which it ends; [`Options::NEVER`](crate::Options::NEVER) for no such limit.
    pub lifetime: u32,
    /// Generation of the policy that decided.
    pub generation: u32,
    /// Number of the insertion, which wraps around: with its slot, a name that another flow has not had for 2^32 insertions.
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

    /// Without a branch.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differences, (ours, theirs)| differences | (ours ^ theirs)) == 0
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

    /// The fields of its packets.
    #[must_use]
    pub fn key(&self) -> FlowKey {
        FlowKey::from(self.line.0)
    }

    /// Port that the packets come in through; the caller's number.
    #[must_use]
    pub const fn port(&self) -> u16 {
        (self.line.0[7] >> 48) as u16
    }

    /// Whether its time is over. Ticks wrap around: one that nobody looked at for 2^32 ticks seems young again.
    #[inline(always)]
    pub(crate) const fn is_over(&self, now: u32, idle: u32) -> bool {
        // `NEVER` is the greatest age there is, and is not exceeded.
        let unused = now.wrapping_sub(self.last_used);
        let age = now.wrapping_sub(self.created);
        (unused > idle) | ((age >= self.lifetime) & (self.lifetime != u32::MAX))
    }
}
