// SPDX-License-Identifier: Apache-2.0
//! The kind of a shared memory, in its first three words. A process knows the kind from the order of the descriptors
//! that it receives. A VM finds PCI devices, and reads these words to identify them.

use crate::{GROUP_LAYOUT, Mapping};

pub(crate) const CONTROL: u64 = u64::from_le_bytes(*b"netvmCTL");
const TABLE: u64 = u64::from_le_bytes(*b"netvmTBL");
const REGION: u64 = u64::from_le_bytes(*b"netvmRGN");

/// The kind of a shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An NF's control memory.
    Control,
    /// A group's next-hop table.
    Table,
    /// A group's packet memory.
    Region {
        /// Number of the group.
        group: u32,
        /// Index of the region in the group, from 0.
        number: u16,
    },
}

impl Kind {
    /// The kind of a memory of at least one page, and the version of its layout; `None` if it is not netvm's.
    #[must_use]
    pub fn of(mapping: &Mapping) -> Option<(Self, u64)> {
        // SAFETY: within the mapping; every bit pattern is three numbers, which are copied before they are checked.
        let [magic, layout, label] = unsafe { mapping.at::<[u64; 3]>(0).read_volatile() };
        match magic {
            // In control memory the layout has 32 bits; the group follows.
            CONTROL => Some((Self::Control, layout & 0xffff_ffff)),
            TABLE => Some((Self::Table, layout)),
            REGION => {
                let (group, number) = ((label >> 16) as u32, label as u16);
                Some((Self::Region { group, number }, layout))
            }
            _ => None,
        }
    }
}

/// Writes the first words of a memory that is not shared yet. Control memory has a header of its own.
pub(crate) fn write(mapping: &Mapping, kind: Kind) {
    let (magic, label) = match kind {
        Kind::Control => (CONTROL, 0),
        Kind::Table => (TABLE, 0),
        Kind::Region { group, number } => (REGION, u64::from(group) << 16 | u64::from(number)),
    };
    // SAFETY: within the mapping; only VMs that have not started yet read these words.
    unsafe { mapping.at::<[u64; 3]>(0).write_volatile([magic, u64::from(GROUP_LAYOUT), label]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn a_written_kind_is_read_back() {
        let memory = Mapping::create("kind-test", 4096, Pages::Normal, None).unwrap();
        assert_eq!(Kind::of(&memory), None);
        for kind in [Kind::Table, Kind::Region { group: 70_000, number: 3 }] {
            write(&memory, kind);
            assert_eq!(Kind::of(&memory), Some((kind, u64::from(GROUP_LAYOUT))));
        }
    }
}
