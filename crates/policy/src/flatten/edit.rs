// SPDX-License-Identifier: Apache-2.0
//! The difference of two lists with a common start and end: one run of elements replaces another.

use std::ops::Range;

/// A replacement of one run of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    start: usize,
    gone: usize,
    added: usize,
}

impl Edit {
    /// The shortest edit from `old` to `new`. O(n): compares each element once.
    pub fn between<T>(old: &[T], new: &[T], same: impl Fn(&T, &T) -> bool) -> Self {
        let is_same = |(old, new): &(&T, &T)| same(old, new);
        let start = old.iter().zip(new).take_while(is_same).count();
        let (old, new) = (&old[start..], &new[start..]);
        let end = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
        Self { start, gone: old.len() - end, added: new.len() - end }
    }

    /// Whether the lists are the same.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of removed and added elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.gone + self.added
    }

    /// Indexes of removed elements in the old list.
    #[must_use]
    pub const fn gone(&self) -> Range<usize> {
        self.start..self.start + self.gone
    }

    /// Indexes of added elements in the new list.
    #[must_use]
    pub const fn added(&self) -> Range<usize> {
        self.start..self.start + self.added
    }

    /// New index of an element of the old list; `None` if removed.
    #[inline]
    #[must_use]
    pub fn now(&self, place: usize) -> Option<usize> {
        Self { start: self.start, gone: self.added, added: self.gone }.before(place)
    }

    /// Old index of an element of the new list; `None` if added.
    #[inline]
    #[must_use]
    pub fn before(&self, place: usize) -> Option<usize> {
        if place < self.start {
            return Some(place);
        }
        let behind = (place - self.start).checked_sub(self.added)?;
        Some(self.start + self.gone + behind)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn unedited_elements_are_the_same(
            list in vec(0u8..4, 0..12),
            at in 0usize..12,
            gone in 0usize..4,
            added in vec(0u8..4, 0..4),
        ) {
            let at = at.min(list.len());
            let mut new = list.clone();
            let gone = new.splice(at..list.len().min(at + gone), added.iter().copied()).count();
            let edit = Edit::between(&list, &new, PartialEq::eq);
            prop_assert!(edit.len() <= gone + added.len());
            prop_assert_eq!(edit.is_empty(), list == new);
            for (place, element) in list.iter().enumerate() {
                prop_assert_eq!(edit.now(place).is_none(), edit.gone().contains(&place));
                if let Some(now) = edit.now(place) {
                    prop_assert_eq!(&new[now], element);
                    prop_assert_eq!(edit.before(now), Some(place));
                }
            }
            let kept = (0..new.len()).filter(|place| edit.before(*place).is_some()).count();
            prop_assert_eq!(kept + edit.added().len(), new.len());
        }
    }
}
