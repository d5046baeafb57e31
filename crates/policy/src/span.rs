// SPDX-License-Identifier: Apache-2.0
//! Ranges and masks of field values.

/// A range from `first` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span<T> {
    /// The lowest value.
    pub first: T,
    /// The highest value, not below the lowest.
    pub last: T,
}

impl<T: Copy + PartialOrd> Span<T> {
    /// From `first` to `last`; `None` if inverted.
    pub fn new(first: T, last: T) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// One value.
    pub const fn single(value: T) -> Self {
        Self { first: value, last: value }
    }

    /// Whether the value is in it.
    pub fn contains(&self, value: T) -> bool {
        self.first <= value && value <= self.last
    }

    /// Whether every value of `other` is in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// The values that are in both.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let first = if self.first < other.first { other.first } else { self.first };
        let last = if self.last < other.last { self.last } else { other.last };
        Self::new(first, last)
    }
}

/// The values whose bits in `mask` are those of `value`; `value` has no other bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Masked<T> {
    /// The bits.
    pub value: T,
    /// The significant bits.
    pub mask: T,
}

macro_rules! masked {
    ($($bits:ty),*) => {$(
        impl Masked<$bits> {
            /// Every value.
            pub const ANY: Self = Self { value: 0, mask: 0 };

            /// The bits of `value` in `mask`.
            #[must_use]
            pub const fn new(value: $bits, mask: $bits) -> Self {
                Self { value: value & mask, mask }
            }

            /// One value.
            #[must_use]
            pub const fn single(value: $bits) -> Self {
                Self { value, mask: <$bits>::MAX }
            }

            /// Whether the value is in it.
            #[must_use]
            pub const fn contains(&self, value: $bits) -> bool {
                value & self.mask == self.value
            }

            /// Whether every value of `other` is in it.
            #[must_use]
            pub const fn covers(&self, other: &Self) -> bool {
                self.mask & other.mask == self.mask && other.value & self.mask == self.value
            }

            /// The values that are in both.
            #[must_use]
            pub const fn intersect(&self, other: &Self) -> Option<Self> {
                let common = self.mask & other.mask;
                if self.value & common != other.value & common {
                    return None;
                }
                Some(Self { value: self.value | other.value, mask: self.mask | other.mask })
            }
        }
    )*};
}
masked!(u8, u32, u64, u128);
