//! An entry of the forwarding database: one word.
//!
//! ```text
//!  63                                          17  16  15       8 7        0
//! +----------------------------------------------+---+-----------+----------+
//! | tag                                          | a |   port    |  stamp   |
//! +----------------------------------------------+---+-----------+----------+
//! a: the bucket is the second one of its key.   stamp: 0 nothing is here, 1 to 254 last seen, 255 static
//! ```

use super::mix::Place;

/// Bits of the tag.
pub(super) const TAG_BITS: u32 = 47;

const KEY_SHIFT: u32 = 16;
const PORT_SHIFT: u32 = 8;
/// Stamp of static entries.
pub(super) const STATIC: u8 = 255;
/// Stamps of learnt entries are the time in units, modulo this, and 1.
const PERIOD: u32 = 254;
/// A stamp that lies up to so many units ahead is that of a thread whose clock is ahead.
const AHEAD: u32 = 8;

/// What is at a place of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub u64);

impl Word {
    pub const EMPTY: Self = Self(0);

    pub const fn learnt(place: &Place, second: bool, port: u16, stamp: u8) -> Self {
        Self(key(place.tag, second) << KEY_SHIFT | (port as u64 & 0xff) << PORT_SHIFT | stamp as u64)
    }

    pub const fn fixed(place: &Place, second: bool, port: u16) -> Self {
        Self::learnt(place, second, port, STATIC)
    }

    /// The same key elsewhere.
    #[inline]
    pub const fn with(self, port: u16, stamp: u8) -> Self {
        Self(self.0 >> KEY_SHIFT << KEY_SHIFT | (port as u64 & 0xff) << PORT_SHIFT | stamp as u64)
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 & 0xff == 0
    }

    #[inline]
    pub const fn is_static(self) -> bool {
        self.stamp() == STATIC
    }

    #[inline]
    pub const fn is_learnt(self) -> bool {
        !self.is_empty() && !self.is_static()
    }

    #[inline]
    pub const fn port(self) -> u16 {
        (self.0 >> PORT_SHIFT & 0xff) as u16
    }

    #[inline]
    pub const fn stamp(self) -> u8 {
        self.0 as u8
    }

    pub const fn tag(self) -> u64 {
        self.0 >> (KEY_SHIFT + 1)
    }

    pub const fn is_second(self) -> bool {
        self.0 >> KEY_SHIFT & 1 != 0
    }

    /// Port and stamp, and 1 less, if the key is this one; more than those can be, if it is another or there is nothing.
    #[inline]
    pub const fn distance(self, key: u64) -> u64 {
        (self.0 ^ key << KEY_SHIFT).wrapping_sub(1)
    }

    /// Port and stamp of the word at such a distance, without a key.
    #[inline]
    pub const fn at_distance(distance: u64) -> Self {
        if distance < (1 << KEY_SHIFT) - 1 { Self(distance + 1) } else { Self::EMPTY }
    }

    /// Whether the key is this one; what is empty may have it by chance.
    #[inline]
    pub const fn has(self, key: u64) -> bool {
        self.0 >> KEY_SHIFT == key
    }
}

/// The tag, and which of the two buckets.
#[inline]
pub(super) const fn key(tag: u64, second: bool) -> u64 {
    tag << 1 | second as u64
}

/// How ticks become stamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ageing {
    /// A unit is so many ticks, as a shift.
    shift: u32,
    /// What was seen more units ago is expired: 64 to 127 where ticks allow.
    units: u32,
}

impl Ageing {
    pub const fn new(max_age: u32) -> Self {
        let shift = (max_age | 64).ilog2() - 6;
        Self { shift, units: max_age.div_ceil(1 << shift) }
    }

    #[inline]
    pub const fn stamp(self, now: u32) -> u8 {
        ((now >> self.shift) % PERIOD + 1) as u8
    }

    /// Units since an entry was seen.
    #[inline]
    const fn age(stamp: u8, now: u8) -> u32 {
        let age = (now as u32 + PERIOD - stamp as u32) % PERIOD;
        if age >= PERIOD - AHEAD { 0 } else { age }
    }

    /// Whether an entry was seen in an earlier unit.
    #[inline]
    pub const fn is_older(self, word: Word, now: u8) -> bool {
        Self::age(word.stamp(), now) != 0
    }

    #[inline]
    pub const fn is_expired(self, word: Word, now: u8) -> bool {
        word.is_learnt() && Self::age(word.stamp(), now) > self.units
    }

    /// Units since a learnt entry was seen.
    pub const fn units_idle(word: Word, now: u8) -> u32 {
        Self::age(word.stamp(), now)
    }

    /// Ticks since a learnt entry was seen, to a unit.
    pub const fn ticks_idle(self, word: Word, now: u8) -> u32 {
        Self::age(word.stamp(), now) << self.shift
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_after_their_age_and_soon() {
        for max_age in [1, 10, 63, 64, 100, 3000, 65_537, 10_000_000] {
            let ageing = Ageing::new(max_age);
            assert!(ageing.units <= 128, "{} units", ageing.units);
            for seen in [0, 12_345, u32::MAX / 2] {
                let word = Word(u64::from(ageing.stamp(seen)));
                let expired = |after: u32| ageing.is_expired(word, ageing.stamp(seen + after));
                assert!(!expired(0) && !expired(max_age - 1) && !expired(max_age), "{max_age}");
                let late = max_age + 2 * max_age.div_ceil(64) + 1;
                assert!(expired(late), "{max_age}: not after {late}");
                // A thread whose clock is a unit behind.
                let behind = ageing.stamp(seen.saturating_sub(1 << ageing.shift));
                assert!(!ageing.is_expired(word, behind) && !ageing.is_older(word, behind));
            }
        }
    }

    #[test]
    fn a_word_says_what_it_was_told() {
        let place = Place { bucket: 1, alternate: 2, tag: (1 << TAG_BITS) - 1 };
        for second in [false, true] {
            let word = Word::learnt(&place, second, 255, 254);
            assert_eq!(
                (word.tag(), word.is_second(), word.port(), word.stamp()),
                (place.tag, second, 255, 254)
            );
            assert!(
                word.is_learnt() && word.has(key(place.tag, second)) && !word.has(key(place.tag, !second))
            );
            let fixed = Word::fixed(&place, second, 7);
            assert!(fixed.is_static() && !fixed.is_learnt() && fixed.port() == 7 && fixed.tag() == place.tag);
            assert_eq!(fixed.with(255, 254), word);
        }
        assert!(Word::EMPTY.is_empty());
    }
}
