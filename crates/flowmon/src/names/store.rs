// SPDX-License-Identifier: Apache-2.0
//! The names of the flows of a table: a fixed number of places, as few flows have one.

use crate::entry::Name;

/// Places for names.
#[derive(Debug)]
pub(crate) struct Names {
    places: Box<[Option<Name>]>,
    free: Vec<u32>,
    /// Names that found no place.
    pub(crate) unplaced: u64,
}

impl Names {
    /// Places for `count` names.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            places: vec![None; count as usize].into_boxed_slice(),
            free: (0..count).rev().collect(),
            unplaced: 0,
        }
    }

    /// Keeps a name: its place plus 1, or 0 if there is none left.
    pub(crate) fn put(&mut self, name: Name) -> u32 {
        let Some(index) = self.free.pop() else {
            self.unplaced += 1;
            return 0;
        };
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Some(name);
        }
        index + 1
    }

    /// The name at what [`Names::put`] returned.
    pub(crate) fn get(&self, place: u32) -> Option<Name> {
        *self.places.get(place.checked_sub(1)? as usize)?
    }

    /// Frees the place.
    pub(crate) fn free(&mut self, place: u32) {
        if let Some(index) = place.checked_sub(1)
            && let Some(name) = self.places.get_mut(index as usize)
            && name.take().is_some()
        {
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::NameKind;

    #[test]
    fn places_are_bounded_and_used_again() {
        let mut names = Names::new(2);
        let name = Name::new(NameKind::Dns);
        let (a, b) = (names.put(name), names.put(name));
        assert_eq!((names.put(name), names.unplaced), (0, 1));
        assert!(a != b && names.get(a).is_some() && names.get(0).is_none() && names.get(9).is_none());
        names.free(a);
        names.free(a);
        assert_eq!((names.get(a), names.put(name), names.put(name)), (None, a, 0));
    }
}
