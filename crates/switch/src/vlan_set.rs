// SPDX-License-Identifier: Apache-2.0
//! Sets of VLANs.

use std::fmt;

use netvm_wire::VlanId;

const WORDS: usize = 64;

/// A set of VLANs: 4096 bits.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; WORDS]>);

impl VlanSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self(Box::new([0; WORDS]))
    }

    /// Adds a VLAN.
    pub fn insert(&mut self, vlan: VlanId) {
        let vlan = usize::from(vlan.get());
        self.0[vlan / 64 % WORDS] |= 1 << (vlan % 64);
    }

    /// Whether the set contains a VLAN.
    #[inline]
    #[must_use]
    pub fn contains(&self, vlan: u16) -> bool {
        let vlan = usize::from(vlan);
        self.0.get(vlan / 64).is_some_and(|word| word >> (vlan % 64) & 1 != 0)
    }

    /// The VLANs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = VlanId> {
        (1..=VlanId::MAX).filter(|vlan| self.contains(*vlan)).filter_map(|vlan| VlanId::new(vlan).ok())
    }
}

impl Default for VlanSet {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<VlanId> for VlanSet {
    fn from_iter<I: IntoIterator<Item = VlanId>>(vlans: I) -> Self {
        let mut set = Self::new();
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        set
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_btree_set(vlans in prop::collection::btree_set(1..=4094u16, 0..50)) {
            let set: VlanSet = vlans.iter().map(|vlan| VlanId::new(*vlan).unwrap()).collect();
            prop_assert_eq!(set.iter().map(VlanId::get).collect::<BTreeSet<_>>(), vlans.clone());
            prop_assert!((0..=u16::MAX).all(|vlan| set.contains(vlan) == vlans.contains(&vlan)));
        }
    }
}
