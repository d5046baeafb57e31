// SPDX-License-Identifier: Apache-2.0
//! Routing tables with the prefix lengths, nesting and clustering of the Internet's.
//!
//! In: a family, a number of prefixes and a seed. Out: distinct prefixes, in random order.
//!
//! A table is made length by length, shortest first. A prefix is either in the space of a registry's block that no
//! prefix covers yet, or more specific than one that is there. Either comes as a run of neighbours, as networks
//! announce parts of what they hold.

mod shares;

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use netvm_wire::{IpNet, Ipv4Net, Ipv6Net};

use self::shares::{Blocks, Shape, octet_weight};
pub use self::shares::{V4_COUNT, V6_COUNT};
use crate::random::{Random, mix};

/// The seed of the [`full_table`].
pub const SEED: u64 = 1;
/// Lengths of runs of neighbours, with weights.
const RUNS: [(u64, u32); 7] = [(2, 400), (3, 60), (4, 130), (8, 50), (16, 20), (32, 5), (128, 1)];
/// Of 1,000 prefixes with one above them, and of those with more, how many may have specifics of their own.
const PARENTS: [u64; 2] = [300, 220];
/// A run that finds no room is drawn again, at most this often for each prefix.
const DRAWS: usize = 50;

/// Both families in the size of a full Internet table: IPv4, then IPv6.
#[must_use]
pub fn full_table() -> Vec<IpNet> {
    let mut nets = v4(V4_COUNT, SEED);
    nets.extend(v6(V6_COUNT, SEED));
    nets
}

/// An IPv4 table.
#[must_use]
pub fn v4(count: usize, seed: u64) -> Vec<IpNet> {
    let nets = table(&shares::V4, count, seed);
    let net = |(bits, length)| Ipv4Net::new(Ipv4Addr::from_bits(bits as u32), length).ok();
    nets.into_iter().filter_map(net).map(IpNet::V4).collect()
}

/// An IPv6 table.
#[must_use]
pub fn v6(count: usize, seed: u64) -> Vec<IpNet> {
    let nets = table(&shares::V6, count, seed);
    let net = |(bits, length)| Ipv6Net::new(Ipv6Addr::from_bits(bits), length).ok();
    nets.into_iter().filter_map(net).map(IpNet::V6).collect()
}

/// A prefix: its bits, and its length.
type Prefix = (u128, u8);

fn table(shape: &Shape, count: usize, seed: u64) -> Vec<Prefix> {
    let mut plan = Plan {
        shape,
        random: Random::new(seed),
        pools: seed,
        nets: Vec::with_capacity(count),
        depths: Vec::with_capacity(count),
        known: HashSet::with_capacity(count),
        roots: HashSet::new(),
    };
    let all: u64 = shape.lengths.iter().map(|(_, share)| u64::from(*share)).sum();
    let mut so_far = 0;
    for &(length, share) in shape.lengths {
        so_far += u64::from(share);
        plan.fill(length, (count as u64 * so_far / all) as usize);
    }
    let Plan { mut nets, mut random, .. } = plan;
    // Tables are not sorted by length: Fisher and Yates's shuffle.
    for last in (1..nets.len()).rev() {
        nets.swap(last, random.below(last as u64 + 1) as usize);
    }
    nets
}

struct Plan<'a> {
    shape: &'a Shape,
    random: Random,
    /// Seed of the choice of busy pools.
    pools: u64,
    nets: Vec<Prefix>,
    /// How many prefixes cover each of `nets`.
    depths: Vec<u8>,
    known: HashSet<Prefix>,
    /// Prefixes that no other covers.
    roots: HashSet<Prefix>,
}

impl Plan<'_> {
    /// Adds prefixes of this length until there are `until`.
    fn fill(&mut self, length: u8, until: usize) {
        let shorter = self.nets.len();
        for _ in 0..until.saturating_sub(shorter) * DRAWS {
            if self.nets.len() >= until {
                return;
            }
            let is_single = self.random.per_mille(self.shape.single);
            let wanted = if is_single { 1 } else { *self.random.weighted(&RUNS) };
            let nested = self.nets.len() - self.roots.len();
            let is_nested = (nested as u64) * 1000 < self.shape.nested * self.nets.len() as u64;
            let parent = if is_nested || self.is_host(length) { self.parent(shorter) } else { None };
            let (start, room, depth) = match parent {
                Some(((bits, above), depth)) => {
                    let places = 1u128 << u32::from(length - above).min(64);
                    let place = (u128::from(self.random.bits()) % places) & !u128::from(wanted > 1);
                    (bits | place << self.below(length), places - place, depth + 1)
                }
                None => {
                    let start = self.fresh(length, wanted);
                    // A run ends with its pool.
                    let pool = 1u128 << u32::from(length.saturating_sub(self.shape.pools));
                    (start, pool - (start >> self.below(length)) % pool, 0)
                }
            };
            for n in 0..u128::from(wanted).min(room).min((until - self.nets.len()) as u128) {
                let net = (start + (n << self.below(length)), length);
                if depth == 0 && self.is_covered(net) || !self.known.insert(net) {
                    break;
                }
                if depth == 0 {
                    self.roots.insert(net);
                }
                self.nets.push(net);
                self.depths.push(depth);
            }
        }
    }

    /// A prefix of the first `shorter`; those that are more specific themselves are chosen less often.
    fn parent(&mut self, shorter: usize) -> Option<(Prefix, u8)> {
        let count = u64::try_from(shorter).ok().filter(|count| *count > 0)?;
        loop {
            let n = self.random.below(count) as usize;
            let depth = self.depths[n];
            if depth == 0 || self.random.per_mille(PARENTS[usize::from(depth > 1)]) {
                return Some((self.nets[n], depth));
            }
        }
    }

    /// A place in a registry's block, at a multiple of two if it is for two prefixes or more.
    fn fresh(&mut self, length: u8, wanted: u64) -> u128 {
        let (block, above) = self.block(length);
        let mut place = u128::from(self.random.bits()) << 64 | u128::from(self.random.bits());
        // In a busy pool, where this hash says so.
        let is_busy = self.random.per_mille(self.shape.busy);
        for _ in 0..8 {
            let address = block | place >> (u32::from(above) + 128 - self.shape.width);
            let pool = address >> self.below(self.shape.pools);
            if !is_busy || mix(self.pools ^ pool as u64).is_multiple_of(4) {
                break;
            }
            place = u128::from(self.random.bits()) << 64;
        }
        let address = block | place >> (u32::from(above) + 128 - self.shape.width);
        let unit = self.below(length) + u32::from(wanted > 1 && length > self.shape.pools);
        address >> unit << unit
    }

    /// A registry's block that is shorter than the prefix.
    fn block(&mut self, length: u8) -> Prefix {
        match self.shape.blocks {
            Blocks::Octets => {
                let all: u32 = (0..=255).map(octet_weight).sum();
                let mut left = self.random.below(all.into()) as u32;
                for octet in 0..=255 {
                    match left.checked_sub(octet_weight(octet)) {
                        Some(less) => left = less,
                        None => return (u128::from(octet) << 24, 8.min(length)),
                    }
                }
                (1 << 24, 8)
            }
            Blocks::List(list) => {
                let (bits, above) = *self.random.weighted(list);
                (bits << 112, above.min(length))
            }
        }
    }

    /// Whether a prefix without neighbours covers this one, or is it.
    fn is_covered(&self, (bits, length): Prefix) -> bool {
        let lengths = self.shape.lengths.iter().map(|(other, _)| *other).take_while(|other| *other <= length);
        let over = |other: u8| (bits >> self.below(other) << self.below(other), other);
        lengths.map(over).any(|net| self.roots.contains(&net))
    }

    /// Whether it is a link or a host of somebody's network.
    const fn is_host(&self, length: u8) -> bool {
        length > if self.shape.width == 32 { 24 } else { 48 }
    }

    /// Bits below a prefix.
    fn below(&self, length: u8) -> u32 {
        self.shape.width - u32::from(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share in 1,000 of each depth of nesting, and the share of prefixes whose neighbour is there, too.
    fn nesting(nets: &[IpNet]) -> (Vec<usize>, usize) {
        let key = |net: &IpNet| match net {
            IpNet::V4(net) => (u128::from(net.network().to_bits()) << 96, net.length()),
            IpNet::V6(net) => (net.network().to_bits(), net.length()),
        };
        let mut keys: Vec<Prefix> = nets.iter().map(key).collect();
        keys.sort_unstable();
        let known: HashSet<Prefix> = keys.iter().copied().collect();
        assert_eq!(known.len(), nets.len(), "each prefix once");
        let (mut above, mut depths, mut pairs) = (Vec::<Prefix>::new(), vec![0; 16], 0);
        for (bits, length) in keys {
            let mask = |length: u8| u128::MAX.unbounded_shl(128 - u32::from(length));
            while above.pop_if(|(other, at)| bits & mask(*at) != *other).is_some() {}
            depths[above.len()] += 1;
            pairs +=
                usize::from(known.contains(&(bits ^ 1u128.unbounded_shl(128 - u32::from(length)), length)));
            above.push((bits, length));
        }
        (depths.iter().map(|count| count * 1000 / nets.len()).collect(), pairs * 1000 / nets.len())
    }

    /// Against the public table: the comment of `shares` has the source.
    #[test]
    fn a_full_table_is_shaped_as_the_internets() {
        let nets = full_table();
        assert_eq!(nets.len(), V4_COUNT + V6_COUNT);
        let (v4, v6) = nets.split_at(V4_COUNT);
        for (nets, depths, pairs, lengths) in [
            (v4, [493, 359, 108, 29], 701, [(24, 596), (22, 120), (16, 15)]),
            (v6, [431, 377, 151, 34], 575, [(48, 471), (32, 141), (44, 90)]),
        ] {
            let (found, neighbours) = nesting(nets);
            println!("nesting {found:?}, published {depths:?}; neighbours {neighbours}, published {pairs}");
            for (depth, (ours, theirs)) in found.iter().zip(depths).enumerate() {
                assert!(ours.abs_diff(theirs) < 80, "depth {depth}: {ours} {theirs}");
            }
            assert!(neighbours.abs_diff(pairs) < 120, "{neighbours}");
            for (length, share) in lengths {
                let ours = nets.iter().filter(|net| net.length() == length).count() * 1000 / nets.len();
                assert!(ours.abs_diff(share) <= 2, "/{length}: {ours}");
            }
        }
        let octets: HashSet<u8> = v4.iter().filter_map(first_octet).collect();
        assert!(octets.len() > 200 && [0, 10, 127, 224].iter().all(|none| !octets.contains(none)));
    }

    fn first_octet(net: &IpNet) -> Option<u8> {
        match net {
            IpNet::V4(net) => Some(net.network().octets()[0]),
            IpNet::V6(_) => None,
        }
    }

    #[test]
    fn seeds_make_tables() {
        assert_eq!(v4(1000, 3), v4(1000, 3));
        assert_ne!(v6(1000, 3), v6(1000, 4));
    }
}
