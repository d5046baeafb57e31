// SPDX-License-Identifier: Apache-2.0
//! One entry of the forwarding database: a 64-bit word.
//!
//! ```text
//!  63                                          17  16  15         6 5      0
//! +----------------------------------------------+---+-------------+--------+
//! | tag                                          | s |    port     | stamp  |
//! +----------------------------------------------+---+-------------+--------+
//! s: the entry is in the secondary bucket of its key.   stamp: 0 empty, 1 to 61 last seen, 62 external, 63 static
//! ```

use super::MAX_PORTS;
use super::mix::BucketPair;

/// Bits of the tag.
pub(super) const TAG_BITS: u32 = 47;

const KEY_SHIFT: u32 = 16;
const PORT_SHIFT: u32 = 6;
const PORT_MASK: u64 = (1 << (KEY_SHIFT - PORT_SHIFT)) - 1;
const STAMP_MASK: u64 = (1 << PORT_SHIFT) - 1;
const _: () = assert!(MAX_PORTS as u64 <= PORT_MASK + 1);
/// Stamp of static entries.
pub(super) const STATIC: u8 = STAMP_MASK as u8;
/// Stamp of entries that a control plane has said.
pub(super) const EXTERNAL: u8 = STATIC - 1;
/// Learned entries are stamped with the time in units, modulo this, plus 1.
const PERIOD: u32 = EXTERNAL as u32 - 1;
/// The maximum age is `1 << UNITS_LOG` units, or up to twice as many.
const UNITS_LOG: u32 = 4;
/// A stamp at most this many units ahead comes from a thread whose clock runs ahead.
const AHEAD: u32 = 2;

/// An entry as its slot stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub u64);

impl Entry {
    pub const EMPTY: Self = Self(0);

    pub const fn new_learned(pair: &BucketPair, is_secondary: bool, port: u16, stamp: u8) -> Self {
        Self(
            key(pair.tag, is_secondary) << KEY_SHIFT | (port as u64 & PORT_MASK) << PORT_SHIFT | stamp as u64,
        )
    }

    pub const fn new_static(pair: &BucketPair, is_secondary: bool, port: u16) -> Self {
        Self::new_learned(pair, is_secondary, port, STATIC)
    }

    pub const fn new_external(pair: &BucketPair, is_secondary: bool, port: u16) -> Self {
        Self::new_learned(pair, is_secondary, port, EXTERNAL)
    }

    /// The same key with another port and stamp.
    #[inline]
    pub const fn with(self, port: u16, stamp: u8) -> Self {
        Self(self.0 >> KEY_SHIFT << KEY_SHIFT | (port as u64 & PORT_MASK) << PORT_SHIFT | stamp as u64)
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 & STAMP_MASK == 0
    }

    #[inline]
    pub const fn is_static(self) -> bool {
        self.stamp() == STATIC
    }

    #[inline]
    pub const fn is_external(self) -> bool {
        self.stamp() == EXTERNAL
    }

    #[inline]
    pub const fn is_learned(self) -> bool {
        !self.is_empty() && self.stamp() < EXTERNAL
    }

    #[inline]
    pub const fn port(self) -> u16 {
        (self.0 >> PORT_SHIFT & PORT_MASK) as u16
    }

    #[inline]
    pub const fn stamp(self) -> u8 {
        (self.0 & STAMP_MASK) as u8
    }

    pub const fn tag(self) -> u64 {
        self.0 >> (KEY_SHIFT + 1)
    }

    pub const fn is_secondary(self) -> bool {
        self.0 >> KEY_SHIFT & 1 != 0
    }

    /// Port and stamp minus 1 if the entry has this key; a larger number if the key differs or the slot is empty.
    #[inline]
    pub const fn distance(self, key: u64) -> u64 {
        (self.0 ^ key << KEY_SHIFT).wrapping_sub(1)
    }

    /// The port and stamp at a distance, without the key.
    #[inline]
    pub const fn at_distance(distance: u64) -> Self {
        if distance < (1 << KEY_SHIFT) - 1 { Self(distance + 1) } else { Self::EMPTY }
    }

    /// Whether the entry has this key. An empty slot may match by chance.
    #[inline]
    pub const fn has(self, key: u64) -> bool {
        self.0 >> KEY_SHIFT == key
    }
}

/// The tag, and whether the entry is in the secondary bucket.
#[inline]
pub(super) const fn key(tag: u64, is_secondary: bool) -> u64 {
    tag << 1 | is_secondary as u64
}

/// Converts clock ticks to stamps and ages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ageing {
    /// A unit is `1 << shift` ticks.
    shift: u32,
    /// Entries idle for more units have expired: 16 to 32 if `max_age` is at least 16 ticks.
    units: u32,
}

impl Ageing {
    pub const fn new(max_age: u32) -> Self {
        let shift = (max_age | 1 << UNITS_LOG).ilog2() - UNITS_LOG;
        Self { shift, units: max_age.div_ceil(1 << shift) }
    }

    #[inline]
    pub const fn stamp(self, now: u32) -> u8 {
        ((now >> self.shift) % PERIOD + 1) as u8
    }

    /// The stamp of the unit before.
    pub const fn before(stamp: u8) -> u8 {
        if stamp <= 1 { PERIOD as u8 } else { stamp - 1 }
    }

    /// Units since the entry was last seen.
    #[inline]
    const fn age(stamp: u8, now: u8) -> u32 {
        let age = (now as u32 + PERIOD - stamp as u32) % PERIOD;
        if age >= PERIOD - AHEAD { 0 } else { age }
    }

    /// Whether the entry was last seen in an earlier unit.
    #[inline]
    pub const fn is_older(self, entry: Entry, now: u8) -> bool {
        Self::age(entry.stamp(), now) != 0
    }

    #[inline]
    pub const fn is_expired(self, entry: Entry, now: u8) -> bool {
        entry.is_learned() && Self::age(entry.stamp(), now) > self.units
    }

    /// Units since a learned entry was last seen.
    pub const fn units_idle(entry: Entry, now: u8) -> u32 {
        Self::age(entry.stamp(), now)
    }

    /// Ticks since a learned entry was last seen, rounded to a unit.
    pub const fn ticks_idle(self, entry: Entry, now: u8) -> u32 {
        Self::age(entry.stamp(), now) << self.shift
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_soon_after_their_maximum_age() {
        for max_age in [1, 10, 15, 16, 31, 63, 64, 100, 3000, 65_537, 10_000_000] {
            let ageing = Ageing::new(max_age);
            assert!(ageing.units <= 32, "{} units", ageing.units);
            for seen in [0, 12_345, u32::MAX / 2] {
                let entry = Entry(u64::from(ageing.stamp(seen)));
                let expired = |after: u32| ageing.is_expired(entry, ageing.stamp(seen + after));
                assert!(!expired(0) && !expired(max_age - 1) && !expired(max_age), "{max_age}");
                let late = max_age + 2 * max_age.div_ceil(16) + 1;
                assert!(expired(late), "{max_age}: not after {late}");
                // A thread whose clock is one unit behind.
                let behind = ageing.stamp(seen.saturating_sub(1 << ageing.shift));
                assert!(!ageing.is_expired(entry, behind) && !ageing.is_older(entry, behind));
            }
        }
    }

    #[test]
    fn an_entry_returns_the_fields_it_was_made_of() {
        let pair = BucketPair { primary: 1, secondary: 2, tag: (1 << TAG_BITS) - 1 };
        for is_secondary in [false, true] {
            let entry = Entry::new_learned(&pair, is_secondary, 1023, 61);
            assert_eq!(
                (entry.tag(), entry.is_secondary(), entry.port(), entry.stamp()),
                (pair.tag, is_secondary, 1023, 61)
            );
            assert!(
                entry.is_learned()
                    && entry.has(key(pair.tag, is_secondary))
                    && !entry.has(key(pair.tag, !is_secondary))
            );
            let fixed = Entry::new_static(&pair, is_secondary, 7);
            assert!(fixed.is_static() && !fixed.is_learned() && fixed.port() == 7 && fixed.tag() == pair.tag);
            assert_eq!(fixed.with(1023, 61), entry);
            let said = Entry::new_external(&pair, is_secondary, 7);
            assert!(said.is_external() && !said.is_learned() && !said.is_static() && said.port() == 7);
        }
        assert!(Entry::EMPTY.is_empty());
    }
}
