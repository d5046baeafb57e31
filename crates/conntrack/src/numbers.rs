// SPDX-License-Identifier: Apache-2.0
//! Numbers of entries: which are free. A table that is set aside once takes one for each new entry.

use netvm_flow_table::{NoMemory, Table};

/// No number.
const NONE: u32 = u32::MAX;

pub(crate) struct Numbers {
    /// For each free number that was used before, the next one.
    next: Table<u32>,
    most: u32,
    /// Numbers that were used at least once.
    used: u32,
    /// The first free number that was used before.
    free: u32,
}

impl Numbers {
    /// The numbers below `most`.
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        let next = Table::try_new(NONE, most.max(1).next_power_of_two().trailing_zeros())?;
        Ok(Self { next, most, used: 0, free: NONE })
    }

    /// Takes a free number.
    pub(crate) fn take(&mut self) -> Option<u32> {
        match self.free {
            NONE if self.used == self.most => None,
            NONE => {
                self.used += 1;
                Some(self.used - 1)
            }
            free => {
                self.free = *self.next.at(free as usize);
                Some(free)
            }
        }
    }

    /// Frees a number.
    pub(crate) fn give(&mut self, number: u32) {
        *self.next.at_mut(number as usize) = self.free;
        self.free = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_owner_at_a_time() {
        let mut numbers = Numbers::new(3).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(taken, [0, 1, 2]);
        numbers.give(1);
        numbers.give(0);
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(0), Some(1), None]);
    }
}
