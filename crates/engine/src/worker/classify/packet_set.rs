//! Some packets of a burst.

use crate::worker::classify::lookup::MOST;

/// Their places, rising.
pub(crate) struct Places {
    list: [u8; MOST],
    count: usize,
}

impl Places {
    /// Those of the bits that are set.
    #[inline(always)]
    pub(crate) fn of(mut bits: u64) -> Self {
        let mut places = Self { list: [0; MOST], count: 0 };
        while bits != 0 {
            places.list[places.count] = bits.trailing_zeros() as u8;
            places.count += 1;
            bits &= bits - 1;
        }
        places
    }

    #[inline(always)]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(crate) fn list(&self) -> &[u8] {
        &self.list[..self.count]
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.list().iter().map(|place| usize::from(*place))
    }
}

/// So many packets, a bit each.
#[inline(always)]
pub(crate) const fn all(count: usize) -> u64 {
    match count {
        0 => 0,
        count => u64::MAX >> (64 - count),
    }
}
