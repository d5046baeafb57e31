// SPDX-License-Identifier: Apache-2.0
//! Which worker owns which flows. In: a hash of the flow. Out: its worker, for all workers the same.
//!
//! As the indirection table of a NIC with RSS: the flows are in [`PARTS`] parts, of which each worker has the same
//! number, but for one sixteenth. When workers come or go, only as many parts change their worker as is necessary for
//! that. Parts with one worker are next to each other, so that few bits of a hash decide: of a power of two of workers,
//! their logarithm.

/// Parts, as a power of two.
const ORDER: u32 = 10;
const PARTS: usize = 1 << ORDER;
/// Each worker gets at least so many runs of parts, if there are as many.
const RUNS: usize = 16;

/// The worker of each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowOwners {
    parts: [u8; PARTS],
    /// So many of the highest bits of a hash decide.
    bits: u32,
}

impl Default for FlowOwners {
    /// Worker 0 owns all flows.
    fn default() -> Self {
        Self { parts: [0; PARTS], bits: 0 }
    }
}

impl FlowOwners {
    /// Those of so many workers, at least one and at most 255. With a power of two of them, queue N of a NIC that has
    /// as many and symmetric RSS gets the packets of worker N.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let (mut owners, mut count) = (Self::default(), 1);
        while count < workers {
            count = (count * 2).min(workers);
            owners = owners.among(count);
        }
        owners
    }

    /// The worker that owns flows with this hash.
    #[inline(always)]
    #[must_use]
    pub const fn of(&self, hash: u64) -> u8 {
        self.parts[(hash >> (u64::BITS - ORDER)) as usize]
    }

    /// Whether flows with these hashes have the same owner, and those with `a ^ x` and `b ^ x`, whatever `x` is.
    pub(crate) const fn have_one_owner(&self, a: u64, b: u64) -> bool {
        match (a ^ b).checked_shr(u64::BITS - self.bits) {
            Some(differences) => differences == 0,
            None => true,
        }
    }

    /// Whether one worker owns all flows.
    pub(crate) const fn is_one(&self) -> bool {
        self.bits == 0
    }

    /// The same for so many workers, at least one and at most 255.
    #[must_use]
    pub fn among(&self, workers: usize) -> Self {
        let workers = workers.max(1);
        let run = (PARTS / (workers * RUNS)).max(1);
        let run = 1 << run.ilog2();
        let runs = PARTS / run;
        let due = |worker: usize| runs / workers + usize::from(worker < runs % workers);
        let mut left: Vec<usize> = (0..workers).map(due).collect();
        let mut free = Vec::new();
        let mut parts = self.parts;
        for parts in parts.chunks_exact_mut(run) {
            let owner = parts[0];
            match left.get_mut(usize::from(owner)) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    parts.fill(owner);
                }
                _ => free.push((usize::from(owner), parts)),
            }
        }
        for (before, parts) in free {
            // Of twice as many workers, each new one takes parts of one other, as queues of a NIC do.
            let first = before + workers / 2;
            let takers = std::iter::once(first).chain(0..workers);
            let mut takers = takers.filter(|worker| left.get(*worker).is_some_and(|left| *left > 0));
            if let Some(worker) = takers.next() {
                left[worker] -= 1;
                parts.fill(worker as u8);
            }
        }
        Self { parts, bits: deciding_bits(&parts) }
    }
}

/// How many of the highest bits of a part's number decide which worker has it.
fn deciding_bits(parts: &[u8; PARTS]) -> u32 {
    let decide = |bits: &u32| {
        let mut runs = parts.chunks_exact(PARTS >> bits);
        runs.all(|run| run.iter().all(|owner| *owner == run[0]))
    };
    (0..ORDER).find(decide).unwrap_or(ORDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(owners: &FlowOwners, workers: usize) -> Vec<usize> {
        (0..workers)
            .map(|worker| owners.parts.iter().filter(|owner| usize::from(**owner) == worker).count())
            .collect()
    }

    fn moved(before: &FlowOwners, after: &FlowOwners) -> usize {
        before.parts.iter().zip(&after.parts).filter(|(before, after)| before != after).count()
    }

    #[test]
    fn each_worker_owns_the_same_part_of_all_flows() {
        let mut owners = FlowOwners::default();
        for workers in [1, 2, 3, 2, 5, 8, 32, 31, 7, 1] {
            owners = owners.among(workers);
            let counts = counts(&owners, workers);
            assert_eq!(counts.iter().sum::<usize>(), PARTS, "{workers} workers");
            let most = PARTS.div_ceil(workers * RUNS).max(1);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= most, "{counts:?}");
        }
        assert_eq!(owners, FlowOwners::default());
    }

    #[test]
    fn no_more_flows_change_their_owner_than_have_to() {
        let two = FlowOwners::default().among(2);
        let three = two.among(3);
        assert_eq!(moved(&two, &three), counts(&three, 3)[2]);
        let stays = |(before, after): (&u8, &u8)| before == after || *after == 2;
        assert!(two.parts.iter().zip(&three.parts).all(stays), "only the new worker gets some");
        assert_eq!(moved(&three, &three.among(2)), counts(&three, 3)[2]);
        assert_eq!(moved(&two, &two.among(2)), 0);
    }

    #[test]
    fn hashes_are_spread_over_all_parts() {
        let owners = FlowOwners::new(2);
        assert_eq!([owners.of(0), owners.of(u64::MAX)], [0, 1]);
    }

    #[test]
    fn few_bits_decide() {
        let bits = |workers: usize| FlowOwners::new(workers).bits;
        assert_eq!([1, 2, 4, 8, 16, 32].map(bits), [0, 1, 2, 3, 4, 5]);
        assert!([3, 5, 6, 7].map(bits).into_iter().all(|bits| bits <= 7));
    }

    #[test]
    fn owners_of_hashes_that_have_one_owner_are_the_same_with_any_other_end() {
        for workers in 1..=32 {
            let owners = FlowOwners::new(workers);
            let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let same = (1..2000).filter(|n| owners.have_one_owner(hash(0), hash(*n)));
            for (n, x) in same.flat_map(|n| (0..64).map(move |x| (n, hash(x + 5000)))) {
                assert_eq!(owners.of(hash(0) ^ x), owners.of(hash(n) ^ x), "{workers} workers");
            }
        }
    }

    #[test]
    fn queues_of_a_nic_have_the_packets_of_their_workers() {
        for workers in [1, 2, 4, 8] {
            let owners = FlowOwners::new(workers);
            // The lowest bits of the NIC's hash are the highest here.
            let all =
                (0..512u64).all(|rss| usize::from(owners.of(rss.reverse_bits())) == rss as usize % workers);
            assert!(all, "{workers} workers");
        }
    }
}
