// SPDX-License-Identifier: Apache-2.0
//! The remote VTEPs of a tunnel. Each packet looks one up, by its number or its address, and a network may have a
//! thousand of them.

use std::ops::Deref;

use netvm_wire::Address;

use super::Vtep;

/// The VTEPs in their order; a place is a position there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remotes {
    all: Box<[Vtep]>,
    /// Sorted, with the places.
    by_number: Box<[(u16, u16)]>,
    by_address: Box<[(Address, u16)]>,
}

impl Remotes {
    pub(super) fn place_of(&self, number: u16) -> Option<u16> {
        let n = self.by_number.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(self.by_number[n].1)
    }

    /// The place of the one with an address.
    pub(crate) fn place_at(&self, address: Address) -> Option<u16> {
        let n = self.by_address.binary_search_by_key(&address, |(address, _)| *address).ok()?;
        Some(self.by_address[n].1)
    }
}

impl FromIterator<Vtep> for Remotes {
    fn from_iter<T: IntoIterator<Item = Vtep>>(vteps: T) -> Self {
        let all: Box<[Vtep]> = vteps.into_iter().collect();
        let mut by_number: Box<[_]> = all.iter().map(|vtep| vtep.number).zip(0..).collect();
        by_number.sort_unstable();
        let mut by_address: Box<[_]> = all.iter().map(|vtep| vtep.address).zip(0..).collect();
        by_address.sort_unstable();
        Self { all, by_number, by_address }
    }
}

impl Deref for Remotes {
    type Target = [Vtep];

    fn deref(&self) -> &[Vtep] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vtep_is_found_by_number_and_by_address() {
        let vtep =
            |n: u16| Vtep { number: n * 7 % 1009, address: Address::from_v4_bits(u32::from(n * 5 % 1013)) };
        let remotes: Remotes = (0..1000).map(vtep).collect();
        for (place, vtep) in (0..).zip(remotes.iter()) {
            assert_eq!(remotes.place_of(vtep.number), Some(place));
            assert_eq!(remotes.place_at(vtep.address), Some(place));
        }
        assert_eq!((remotes.place_of(2000), remotes.place_at(Address::UNSPECIFIED)), (None, None));
    }
}
