// SPDX-License-Identifier: Apache-2.0
//! A longest common subsequence of two lists of entries, exact unless entries repeat.

use std::collections::HashMap;
use std::hash::Hash;

use rapidhash::fast::RandomState;

/// Index pairs of equal entries, ascending in both lists: the common start and end, and in between the longest
/// ascending run, where repeated entries pair in order. O(n log n).
pub(crate) fn common<T: Eq + Hash>(old: &[T], new: &[T]) -> Vec<(u32, u32)> {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[start..], &new[start..]);
    let end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let middle = pairs(&old_rest[..old_rest.len() - end], &new_rest[..new_rest.len() - end]);
    let shifted = rising(&middle).into_iter().map(|(a, b)| (a + start, b + start));
    let head = (0..start).map(|n| (n, n));
    let tail = (0..end).rev().map(|n| (old.len() - 1 - n, new.len() - 1 - n));
    head.chain(shifted).chain(tail).map(|(a, b)| (a as u32, b as u32)).collect()
}

/// Index pairs of equal entries, in the order of the new list.
fn pairs<T: Eq + Hash>(old: &[T], new: &[T]) -> Vec<(usize, usize)> {
    // The first index of each entry, and for each index the next one of the same entry.
    let mut firsts: HashMap<&T, usize, RandomState> =
        HashMap::with_capacity_and_hasher(old.len(), RandomState::new());
    let mut nexts = vec![usize::MAX; old.len()];
    for (place, entry) in old.iter().enumerate().rev() {
        if let Some(next) = firsts.insert(entry, place) {
            nexts[place] = next;
        }
    }
    let place = |(n, entry)| {
        let first = firsts.get_mut(entry).filter(|first| **first != usize::MAX)?;
        let place = *first;
        *first = nexts[place];
        Some((place, n))
    };
    new.iter().enumerate().filter_map(place).collect()
}

/// The longest subsequence in which the first numbers also ascend (patience sorting).
fn rising(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // The end of the best run of each length so far; the predecessor of each pair in its run.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (n, (place, _)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].0 < *place);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(n);
        } else {
            ends[length] = n;
        }
    }
    let mut run: Vec<_> =
        std::iter::successors(ends.last().copied(), |n| before[*n]).map(|n| pairs[n]).collect();
    run.reverse();
    run
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Length of the longest common subsequence, by the textbook algorithm.
    fn longest(old: &[u8], new: &[u8]) -> usize {
        let mut row = vec![0; new.len() + 1];
        for a in old {
            let mut diagonal = 0;
            for (n, b) in new.iter().enumerate() {
                let above = row[n + 1];
                row[n + 1] = if a == b { diagonal + 1 } else { above.max(row[n]) };
                diagonal = above;
            }
        }
        row[new.len()]
    }

    fn check(old: &[u8], new: &[u8]) -> usize {
        let found = common(old, new);
        assert!(found.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{found:?}");
        assert!(found.iter().all(|(a, b)| old[*a as usize] == new[*b as usize]), "{found:?}");
        found.len()
    }

    proptest! {
        #[test]
        fn pairs_are_equal_entries(old in vec(0u8..20, 0..30), new in vec(0u8..20, 0..30)) {
            prop_assert!(check(&old, &new) <= longest(&old, &new));
        }

        #[test]
        fn the_result_is_longest_without_repeated_entries(
            old in Just((0..30).collect::<Vec<u8>>()).prop_shuffle(),
            new in Just((0..30).collect::<Vec<u8>>()).prop_shuffle(),
            kept in (0usize..31, 0usize..31),
        ) {
            let (old, new) = (&old[..kept.0.min(30)], &new[..kept.1.min(30)]);
            prop_assert_eq!(check(old, new), longest(old, new));
        }
    }

    #[test]
    fn one_entry_more_or_less_is_one_change() {
        let list = [1, 2, 3, 3, 3, 4];
        for n in 0..list.len() {
            let mut other = list.to_vec();
            other.remove(n);
            assert_eq!((check(&list, &other), check(&other, &list)), (5, 5));
            other.insert(n, 9);
            assert_eq!(check(&list, &other), 5);
        }
        assert_eq!((check(&list, &[]), check(&[], &list), check(&list, &list)), (0, 0, 6));
    }
}
