//! What has changed since a list was compiled.

use netvm_policy::Cube;
use netvm_wire::FlowKey;

use crate::NONE;
use crate::changes::common;

/// Most entries that are newer than the compiled list.
pub(crate) const MAX_ADDED: usize = 64;
/// Most cubes of these.
pub(crate) const MAX_ADDED_CUBES: usize = 256;
/// Most entries of the compiled list that are no longer there.
pub(crate) const MAX_GONE: usize = 64;

/// In [`Overlay::numbers`]: the entry is gone, and the other bits say where in [`Overlay::instead`] to go on.
const GONE: u32 = 1 << 31;

/// From the numbers of the compiled list to those of the new one. An entry that moves is one that is gone and one that
/// is added.
#[derive(Debug)]
pub(crate) struct Overlay {
    /// The new number of each entry.
    numbers: Box<[u32]>,
    /// For each entry that is gone, the compiled ones that packets can come to instead, in order.
    instead: Box<[Box<[u32]>]>,
    /// The cubes of entries that are new, and their numbers, which rise.
    added: Box<[(Cube, u32)]>,
    changes: usize,
}

impl Overlay {
    /// The way from one list to the other; none if it is too long.
    pub(crate) fn between(old: &[Box<[Cube]>], new: &[&[Cube]]) -> Option<Self> {
        let kept = common(&old.iter().map(AsRef::as_ref).collect::<Vec<_>>(), new);
        let (gone, added) = (old.len() - kept.len(), new.len() - kept.len());
        if gone > MAX_GONE || added > MAX_ADDED {
            return None;
        }
        let mut numbers = vec![GONE; old.len()];
        let mut is_kept = vec![false; new.len()];
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
        let gone_ones: Vec<usize> = (0..old.len()).filter(|n| numbers[*n] == GONE).collect();
        let instead = gone_ones.iter().map(|n| instead(old, *n, &numbers)).collect();
        for (place, n) in (0..).zip(gone_ones) {
            numbers[n] = GONE | place;
        }
        Some(Self { numbers: numbers.into(), instead, added: added_cubes, changes: gone + added })
    }

    /// Entries that are gone and entries that are added.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    /// Makes what the compiled list says of the keys what the new one says.
    pub(crate) fn correct(&self, old: &[Box<[Cube]>], keys: &[FlowKey], found: &mut [u32]) {
        for (key, found) in keys.iter().zip(found) {
            let known = self.numbers.get(*found as usize).map_or(NONE, |number| {
                if number & GONE == 0 { *number } else { self.find_instead(old, *number & !GONE, key) }
            });
            let first =
                self.added.iter().take_while(|(_, n)| *n < known).find(|(cube, _)| cube.contains(key));
            *found = first.map_or(known, |(_, number)| *number);
        }
    }

    #[cold]
    fn find_instead(&self, old: &[Box<[Cube]>], place: u32, key: &FlowKey) -> u32 {
        let candidates = self.instead.get(place as usize).map_or(&[][..], |list| list);
        let contains = |n: &&u32| old[**n as usize].iter().any(|cube| cube.contains(key));
        candidates.iter().find(contains).map_or(NONE, |n| self.numbers[*n as usize])
    }
}

/// Entries behind one that is gone, which share keys with it; none behind one that has all of its keys.
fn instead(old: &[Box<[Cube]>], gone: usize, numbers: &[u32]) -> Box<[u32]> {
    let cubes = &old[gone];
    let mut list = Vec::new();
    for n in gone + 1..old.len() {
        let others = &old[n];
        if numbers[n] == GONE || !cubes.iter().any(|cube| others.iter().any(|other| other.meets(cube))) {
            continue;
        }
        list.push(n as u32);
        if cubes.iter().all(|cube| others.iter().any(|other| other.covers(cube))) {
            break;
        }
    }
    list.into()
}
