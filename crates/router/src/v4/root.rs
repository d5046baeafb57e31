// SPDX-License-Identifier: Apache-2.0
//! The groups by the first bits of an address.

use std::ops::{Index, RangeInclusive};

use super::GROUP_BITS;
use super::group::Group;
use crate::memory::{Buffer, Pages};

/// Number of groups.
pub(super) const GROUPS: usize = 1 << GROUP_BITS;
/// Groups in a page of memory.
const PER_PAGE: usize = 4096 / size_of::<Group>();

/// One group for each prefix of [`GROUP_BITS`] bits. Only the pages with groups that were written take memory.
pub(super) struct Root {
    groups: Buffer<Group>,
    /// The pages that were written.
    written: Box<[bool; GROUPS / PER_PAGE]>,
    is_huge: bool,
}

impl Default for Root {
    fn default() -> Self {
        let groups = Buffer::new(GROUPS, Pages::Small);
        Self { groups, written: Box::new([false; GROUPS / PER_PAGE]), is_huge: false }
    }
}

impl Root {
    #[inline(always)]
    pub fn groups(&self) -> Option<&[Group; GROUPS]> {
        self.groups.first_chunk()
    }

    pub fn set(&mut self, number: usize, group: Group) {
        self.groups[number] = group;
        self.written[number / PER_PAGE] = true;
    }

    /// Makes many groups the same.
    pub fn fill(&mut self, numbers: RangeInclusive<usize>, group: Group) {
        self.written[numbers.start() / PER_PAGE..=numbers.end() / PER_PAGE].fill(true);
        self.groups[numbers].fill(group);
    }

    /// Moves to huge pages, which take all of their memory at once.
    pub fn use_huge_pages(&mut self) {
        if !std::mem::replace(&mut self.is_huge, true) {
            self.groups.grow(GROUPS, GROUPS);
        }
    }

    /// Bytes that take memory.
    pub fn memory(&self) -> usize {
        let groups = if self.is_huge {
            GROUPS
        } else {
            self.written.iter().filter(|written| **written).count() * PER_PAGE
        };
        groups * size_of::<Group>() + size_of_val(&*self.written)
    }
}

impl Index<usize> for Root {
    type Output = Group;

    fn index(&self, number: usize) -> &Group {
        &self.groups[number]
    }
}
