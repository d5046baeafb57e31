// SPDX-License-Identifier: Apache-2.0
//! Changes of a list since it was compiled.

use std::sync::Arc;

use netvm_policy::{Cube, Edit};
use netvm_wire::FlowKey;

use crate::NONE;
use crate::changes::common;
use crate::index::Index;

/// Most added entries.
pub(crate) const MAX_ADDED: usize = 1024;
/// Most cubes of added entries.
pub(crate) const MAX_ADDED_CUBES: usize = 4096;
/// Most removed entries.
pub(crate) const MAX_GONE: usize = 1024;

/// Most cubes that replace removed entries, in all: some 30 MB.
pub(crate) const MAX_INSTEAD: usize = 1 << 17;
/// Edits of up to this many entries are assumed to be the shortest.
const SMALL_EDIT: usize = 8;

/// In [`Overlay::numbers`]: the entry was removed, and the other bits are its index in [`Overlay::gone`].
const REMOVED: u32 = 1 << 31;

/// Maps numbers of the compiled list to the new one. An entry that moves is removed and added.
#[derive(Debug)]
pub(crate) struct Overlay {
    /// The new number of each entry.
    numbers: Box<[u32]>,
    /// Removed entries, ascending, with the later cubes of the compiled list that intersect them. These depend on the
    /// compiled list only, so the next overlay reuses them.
    gone: Box<[(u32, Arc<Index>)]>,
    /// The cubes of added entries with their ascending numbers.
    added: Index,
    /// Number of added entries, including those without cubes.
    added_entries: usize,
}

/// Whether two entries are equal. Compares pointers first, as successive lists mostly share entries.
pub(crate) fn same<T: ?Sized + AsRef<[Cube]>>(a: &Arc<T>, b: &Arc<T>) -> bool {
    Arc::ptr_eq(a, b) || (**a).as_ref() == (**b).as_ref()
}

/// An entry, compared by its cubes.
struct Same<'a, T: ?Sized>(&'a Arc<T>);

impl<T: ?Sized + AsRef<[Cube]>> PartialEq for Same<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        same(self.0, other.0)
    }
}

impl<T: ?Sized + AsRef<[Cube]>> Eq for Same<'_, T> {}

impl<T: ?Sized + AsRef<[Cube]>> std::hash::Hash for Same<'_, T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self.0).as_ref().hash(state);
    }
}

/// A new list, by what it keeps and adds.
struct New {
    /// New numbers of kept entries, [`REMOVED`] for removed ones.
    numbers: Box<[u32]>,
    added: Box<[(Cube, u32)]>,
    added_entries: usize,
}

impl Overlay {
    /// The overlay from one list to another; `None` if it is too large. `before`: an overlay of the same compiled list.
    pub(crate) fn between<T: ?Sized + AsRef<[Cube]>>(
        old: &[Arc<T>],
        new: &[Arc<T>],
        before: Option<&Self>,
    ) -> Option<Self> {
        let (old_count, new_count) = (old.len(), new.len());
        if new_count > old_count + MAX_ADDED || old_count > new_count + MAX_GONE {
            return None;
        }
        let kept =
            common(&old.iter().map(Same).collect::<Vec<_>>(), &new.iter().map(Same).collect::<Vec<_>>());
        let mut numbers = vec![REMOVED; old_count];
        let mut is_kept = vec![false; new_count];
        let added_entries = new_count - kept.len();
        for (before, now) in kept {
            numbers[before as usize] = now;
            is_kept[now as usize] = true;
        }
        let new_ones = (0u32..).zip(new).filter(|(now, _)| !is_kept[*now as usize]);
        let added = new_ones.flat_map(|(now, entry)| numbered(entry, now)).collect();
        Self::new(old, New { numbers: numbers.into(), added, added_entries }, before)
    }

    /// Applies an edit to `before`; `None` if the result is too large or may not be the shortest.
    pub(crate) fn edited<T: ?Sized + AsRef<[Cube]>>(
        old: &[Arc<T>],
        before: Option<&Self>,
        new: &[Arc<T>],
        edit: Edit,
    ) -> Option<Self> {
        if edit.len() > SMALL_EDIT {
            return None;
        }
        let now = |number: u32| edit.now(number as usize).map(|number| number as u32);
        let numbers: Box<[u32]> = match before {
            None => (0..old.len() as u32).map(|n| now(n).unwrap_or(REMOVED)).collect(),
            Some(before) => {
                let numbers = before.numbers.iter();
                let moved = |number: &u32| if *number & REMOVED == 0 { now(*number) } else { None };
                numbers.map(|number| moved(number).unwrap_or(REMOVED)).collect()
            }
        };
        // Every entry of the new list is compiled or added.
        let kept = numbers.iter().filter(|number| **number != REMOVED).count();
        let first = edit.added().start as u32;
        let earlier = before.map_or(&[][..], |before| before.added.cubes());
        let (ahead, behind) = earlier.split_at(earlier.partition_point(|(_, number)| *number < first));
        let still = |cubes: &[(Cube, u32)]| -> Vec<(Cube, u32)> {
            cubes.iter().filter_map(|(cube, number)| Some((*cube, now(*number)?))).collect()
        };
        let newest = edit.added().flat_map(|place| numbered(&new[place], place as u32)).collect();
        let added = [still(ahead), newest, still(behind)].concat().into();
        Self::new(old, New { numbers, added, added_entries: new.len() - kept }, before)
    }

    fn new<T: ?Sized + AsRef<[Cube]>>(old: &[Arc<T>], new: New, before: Option<&Self>) -> Option<Self> {
        let New { mut numbers, added, added_entries } = new;
        let gone = numbers.iter().filter(|number| **number == REMOVED).count();
        if gone > MAX_GONE || added_entries > MAX_ADDED || added.len() > MAX_ADDED_CUBES {
            return None;
        }
        let known = |n: u32| before.and_then(|before| before.instead_of(n));
        let mut gone_ones = Vec::with_capacity(gone);
        let mut instead_cubes = 0;
        for (n, number) in (0u32..).zip(&mut numbers).filter(|(_, number)| **number == REMOVED) {
            *number |= gone_ones.len() as u32;
            let instead = known(n).unwrap_or_else(|| Arc::new(instead(old, n as usize)));
            instead_cubes += instead.len();
            if instead_cubes > MAX_INSTEAD {
                return None;
            }
            gone_ones.push((n, instead));
        }
        Some(Self { numbers, gone: gone_ones.into(), added: Index::new(added), added_entries })
    }

    /// The cubes that replace a removed entry.
    fn instead_of(&self, entry: u32) -> Option<Arc<Index>> {
        let place = self.gone.binary_search_by_key(&entry, |(n, _)| *n).ok()?;
        Some(Arc::clone(&self.gone[place].1))
    }

    /// Number of removed and added entries.
    pub(crate) fn changes(&self) -> usize {
        self.gone.len() + self.added_entries
    }

    /// Corrects the compiled list's results to those of the new list.
    pub(crate) fn correct(&self, keys: &[FlowKey], found: &mut [u32]) {
        for (key, found) in keys.iter().zip(found) {
            let known = self.numbers.get(*found as usize).map_or(NONE, |number| {
                if number & REMOVED == 0 { *number } else { self.find_instead(*number & !REMOVED, key) }
            });
            let mut earlier = self.added.candidates(key).take_while(|(_, n)| *n < known);
            *found = earlier.find(|(cube, _)| cube.contains(key)).map_or(known, |(_, n)| *n);
        }
    }

    #[cold]
    fn find_instead(&self, mut place: u32, key: &FlowKey) -> u32 {
        loop {
            let Some((_, instead)) = self.gone.get(place as usize) else { return NONE };
            let mut after = None;
            for (cube, entry) in instead.candidates(key) {
                if !cube.contains(key) {
                    continue;
                }
                let number = self.numbers[*entry as usize];
                if number & REMOVED == 0 {
                    return number;
                }
                after = Some(number & !REMOVED);
            }
            // The list may have ended with one that took all and is gone, too: then it goes on behind that one, and
            // what is there is all that is behind the others.
            match after {
                Some(behind) => place = behind,
                None => return NONE,
            }
        }
    }
}

/// The cubes of an entry, with its number.
fn numbered<T: ?Sized + AsRef<[Cube]>>(entry: &Arc<T>, number: u32) -> impl Iterator<Item = (Cube, u32)> {
    (**entry).as_ref().iter().map(move |cube| (*cube, number))
}

/// Entries behind one, which share keys with it, up to one that has all of its keys.
fn instead<T: ?Sized + AsRef<[Cube]>>(old: &[Arc<T>], gone: usize) -> Index {
    let cubes = (*old[gone]).as_ref();
    let mut list = Vec::new();
    for (n, others) in (0u32..).zip(old).skip(gone + 1) {
        let others = (**others).as_ref();
        if !cubes.iter().any(|cube| others.iter().any(|other| other.meets(cube))) {
            continue;
        }
        list.extend(others.iter().map(|other| (*other, n)));
        if cubes.iter().all(|cube| others.iter().any(|other| other.covers(cube))) {
            break;
        }
    }
    Index::new(list.into())
}
