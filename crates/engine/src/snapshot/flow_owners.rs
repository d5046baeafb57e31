//! Which worker owns which flows. In: a hash of the flow. Out: its worker, for all workers the same.
//!
//! The flows are in [`PARTS`] parts, of which each worker has the same number, give or take one. When workers come or
//! go, only as many parts change their worker as is necessary for that.

use crate::ids::WorkerId;

/// Parts, as a power of two: one of 32 workers has 3 % more than another, at most.
const ORDER: u32 = 10;
const PARTS: usize = 1 << ORDER;

/// The worker of each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowOwners([WorkerId; PARTS]);

impl Default for FlowOwners {
    /// Worker 0 owns all flows.
    fn default() -> Self {
        Self([WorkerId(0); PARTS])
    }
}

impl FlowOwners {
    /// The worker that owns flows with this hash.
    #[inline(always)]
    pub(crate) const fn of(&self, hash: u64) -> WorkerId {
        self.0[(hash >> (u64::BITS - ORDER)) as usize]
    }

    /// The same for so many workers, at least one.
    pub(crate) fn among(&self, workers: usize) -> Self {
        let workers = workers.max(1);
        let due = |worker: usize| PARTS / workers + usize::from(worker < PARTS % workers);
        let mut left: Vec<usize> = (0..workers).map(due).collect();
        let mut free = Vec::new();
        let mut new = self.clone();
        for (part, owner) in new.0.iter().enumerate() {
            match left.get_mut(owner.index()) {
                Some(left) if *left > 0 => *left -= 1,
                _ => free.push(part),
            }
        }
        let takers = left.iter().enumerate().flat_map(|(worker, left)| std::iter::repeat_n(worker, *left));
        for (part, worker) in free.into_iter().zip(takers) {
            new.0[part] = WorkerId(worker as u8);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(owners: &FlowOwners, workers: usize) -> Vec<usize> {
        (0..workers).map(|worker| owners.0.iter().filter(|owner| owner.index() == worker).count()).collect()
    }

    fn moved(before: &FlowOwners, after: &FlowOwners) -> usize {
        before.0.iter().zip(&after.0).filter(|(before, after)| before != after).count()
    }

    #[test]
    fn each_worker_owns_the_same_part_of_all_flows() {
        let mut owners = FlowOwners::default();
        for workers in [1, 2, 3, 2, 5, 32, 31, 7, 1] {
            owners = owners.among(workers);
            let counts = counts(&owners, workers);
            assert_eq!(counts.iter().sum::<usize>(), PARTS, "{workers} workers");
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
        assert_eq!(owners, FlowOwners::default());
    }

    #[test]
    fn no_more_flows_change_their_owner_than_have_to() {
        let two = FlowOwners::default().among(2);
        let three = two.among(3);
        assert_eq!(moved(&two, &three), PARTS / 3);
        let stays = |(before, after): (&WorkerId, &WorkerId)| before == after || after.index() == 2;
        assert!(two.0.iter().zip(&three.0).all(stays), "only the new worker gets some");
        assert_eq!(moved(&three, &three.among(2)), PARTS / 3);
        assert_eq!(moved(&two, &two.among(2)), 0);
    }

    #[test]
    fn hashes_are_spread_over_all_parts() {
        let owners = FlowOwners::default().among(2);
        let of = |hash: u64| owners.of(hash).0;
        assert_eq!([of(0), of(u64::MAX)], [0, 1]);
    }
}
