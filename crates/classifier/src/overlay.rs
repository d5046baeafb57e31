//! What has changed since a list was compiled.

use std::sync::Arc;

use netvm_policy::Cube;
use netvm_wire::FlowKey;

use crate::NONE;
use crate::changes::common;
use crate::index::Index;

/// Most entries that are newer than the compiled list.
pub(crate) const MAX_ADDED: usize = 1024;
/// Most cubes of these.
pub(crate) const MAX_ADDED_CUBES: usize = 4096;
/// Most entries of the compiled list that are no longer there.
pub(crate) const MAX_GONE: usize = 1024;

/// Most cubes that packets can come to instead of those, in all: some 30 MB.
pub(crate) const MAX_INSTEAD: usize = 1 << 17;

/// In [`Overlay::numbers`]: the entry is gone, and the other bits say where in [`Overlay::gone`] to go on.
const GONE: u32 = 1 << 31;

/// From the numbers of the compiled list to those of the new one. An entry that moves is one that is gone and one that
/// is added.
#[derive(Debug)]
pub(crate) struct Overlay {
    /// The new number of each entry.
    numbers: Box<[u32]>,
    /// Entries that are gone, rising, and what of the compiled list packets can come to instead: that depends on nothing
    /// else, so that the next overlay has it from this one.
    gone: Box<[(u32, Arc<Index>)]>,
    /// The cubes of entries that are new, and their numbers, which rise.
    added: Index,
    changes: usize,
}

/// The cubes of an entry. Lists that come from each other mostly share them, which is seen before they are compared.
#[derive(Debug, Eq)]
struct Same<'a>(&'a Arc<[Cube]>);

impl PartialEq for Same<'_> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.0, other.0) || self.0 == other.0
    }
}

impl std::hash::Hash for Same<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Overlay {
    /// The way from one list to the other; none if it is too long. `before` is one from the same compiled list.
    pub(crate) fn between(old: &[Arc<[Cube]>], new: &[Arc<[Cube]>], before: Option<&Self>) -> Option<Self> {
        let (old_count, new_count) = (old.len(), new.len());
        if new_count > old_count + MAX_ADDED || old_count > new_count + MAX_GONE {
            return None;
        }
        let kept =
            common(&old.iter().map(Same).collect::<Vec<_>>(), &new.iter().map(Same).collect::<Vec<_>>());
        let (gone, added) = (old_count - kept.len(), new_count - kept.len());
        if gone > MAX_GONE || added > MAX_ADDED {
            return None;
        }
        let mut numbers = vec![GONE; old_count];
        let mut is_kept = vec![false; new_count];
        for (before, now) in kept {
            numbers[before as usize] = now;
            is_kept[now as usize] = true;
        }
        let new_ones = (0u32..).zip(new).filter(|(now, _)| !is_kept[*now as usize]);
        let added_cubes: Box<[_]> =
            new_ones.flat_map(|(now, entry)| entry.iter().map(move |cube| (*cube, now))).collect();
        if added_cubes.len() > MAX_ADDED_CUBES {
            return None;
        }
        let known = |n: u32| before.and_then(|before| before.instead_of(n));
        let mut gone_ones = Vec::with_capacity(gone);
        let mut instead_cubes = 0;
        for (n, number) in (0u32..).zip(&mut numbers).filter(|(_, number)| **number == GONE) {
            *number |= gone_ones.len() as u32;
            let instead = known(n).unwrap_or_else(|| Arc::new(instead(old, n as usize)));
            instead_cubes += instead.len();
            if instead_cubes > MAX_INSTEAD {
                return None;
            }
            gone_ones.push((n, instead));
        }
        Some(Self {
            numbers: numbers.into(),
            gone: gone_ones.into(),
            added: Index::new(added_cubes),
            changes: gone + added,
        })
    }

    /// What packets of an entry that is gone can come to instead.
    fn instead_of(&self, entry: u32) -> Option<Arc<Index>> {
        let place = self.gone.binary_search_by_key(&entry, |(n, _)| *n).ok()?;
        Some(Arc::clone(&self.gone[place].1))
    }

    /// Entries that are gone and entries that are added.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    /// Makes what the compiled list says of the keys what the new one says.
    pub(crate) fn correct(&self, keys: &[FlowKey], found: &mut [u32]) {
        for (key, found) in keys.iter().zip(found) {
            let known = self.numbers.get(*found as usize).map_or(NONE, |number| {
                if number & GONE == 0 { *number } else { self.find_instead(*number & !GONE, key) }
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
                if number & GONE == 0 {
                    return number;
                }
                after = Some(number & !GONE);
            }
            // The list may have ended with one that took all and is gone, too: then it goes on behind that one, and what
            // is there is all that is behind the others.
            match after {
                Some(behind) => place = behind,
                None => return NONE,
            }
        }
    }
}

/// Entries behind one, which share keys with it, up to one that has all of its keys.
fn instead(old: &[Arc<[Cube]>], gone: usize) -> Index {
    let cubes = &old[gone];
    let mut list = Vec::new();
    for (n, others) in (0u32..).zip(old).skip(gone + 1) {
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
