// SPDX-License-Identifier: Apache-2.0
//! Addresses that branch and lean as those of a flavour.

use crate::random::{Random, mix};

/// Share of 1,000 draws that take the heavier of two branches: between an even split and a single path (the paper's
/// skew).
const HEAVIER_BRANCH_SHARE: u64 = 600;

/// A binary tree of IPv4 addresses, of which only the walked nodes exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    seed: u64,
    branching: [u16; 8],
    /// Levels from the root that always have both branches.
    wide: u32,
}

impl Tree {
    /// The tree of a seed, whose first `wide` levels have both branches.
    pub(super) const fn new(seed: u64, branching: [u16; 8], wide: u32) -> Self {
        Self { seed, branching, wide }
    }

    /// An address, which a router could forward to: not in 0/8, 10/8, 127/8 or from 224 on.
    pub(super) fn address(&self, random: &mut Random) -> u32 {
        let mut path = 0u32;
        for level in 0..32u32 {
            let hash = mix(self.seed ^ u64::from(path) << 6 ^ u64::from(level));
            let has_both = level < self.wide || hash % 1000 < u64::from(self.branching[level as usize / 4]);
            let heavier = (hash >> 32) as u32 & 1;
            let takes_heavier = !has_both || random.per_mille(HEAVIER_BRANCH_SHARE);
            path = path << 1 | if takes_heavier { heavier } else { heavier ^ 1 };
        }
        match path >> 24 {
            0 | 10 | 127 => path ^ 0x4500_0000,
            224.. => path ^ 0xa500_0000,
            _ => path,
        }
    }
}
