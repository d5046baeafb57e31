// SPDX-License-Identifier: Apache-2.0
//! Which faults of a port's peers the manager has been told of.

/// Counts of faults that were reported, one for each kind of fault.
#[derive(Debug)]
pub(in crate::interface) struct Reported<const N: usize>([u32; N]);

impl<const N: usize> Reported<N> {
    pub(in crate::interface) const fn new() -> Self {
        Self([0; N])
    }

    /// The text of the first kind that has another count than at the last call, and has a text. In: of each kind how
    /// many there were, and the last one.
    pub(in crate::interface) fn first_new(&mut self, faults: [(u32, Option<String>); N]) -> Option<String> {
        let before = std::mem::replace(&mut self.0, faults.each_ref().map(|(count, _)| *count));
        let new = faults.into_iter().zip(before).filter(|((count, _), before)| count != before);
        new.filter_map(|((_, text), _)| text).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_reported_once_and_the_first_kind_first() {
        let mut reported = Reported::new();
        let mut next = |faults: [(u32, Option<&str>); 2]| {
            reported.first_new(faults.map(|(count, text)| (count, text.map(str::to_owned))))
        };
        assert_eq!(next([(0, None), (0, None)]), None);
        assert_eq!(next([(1, Some("a")), (1, Some("b"))]).as_deref(), Some("a"));
        assert_eq!(next([(1, Some("a")), (1, Some("b"))]), None);
        assert_eq!(next([(1, Some("a")), (2, Some("c"))]).as_deref(), Some("c"));
        // One that is over has no text.
        assert_eq!(next([(2, None), (3, Some("d"))]).as_deref(), Some("d"));
    }
}
