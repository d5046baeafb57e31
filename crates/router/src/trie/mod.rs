//! Longest-prefix match: a root indexed by the first 16 bits, then nodes of 8 bits each.
//!
//! A node whose slots are all leaves takes half the memory; in a full Internet table, most nodes are such.
//!
//! Prefixes are pushed down to the leaves, so a lookup ends at the first leaf and never backtracks. A burst descends
//! level by level, so that the loads of a level overlap: sixteen addresses per vector with AVX-512, eight of IPv6 with AVX2,
//! otherwise one at a time, prefetched. A test of a prefix replaces a chain of nodes. The default route is not in the
//! trie, so that changing it is one write.
//!
//! Predicted for bursts of 64 with AVX-512 at 2.3 GHz: 1.5 cycles per address and level in the L1 cache. In a full
//! table, most IPv4 addresses take one line of 13 MB, which the L3 cache delivers in some 75 ns, sixteen at a time: 11
//! cycles, less what L2 holds. IPv6 takes four levels, of which two miss: 22 cycles. Measured: 1.1 cycles (16 routes of
//! IPv4, one level), 6.5 (16 of IPv6, five), 6 and 21 (full tables).

mod arena;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bits;
mod build;
mod node;
mod pages;
mod plain;
#[cfg(test)]
mod tests;

use arena::Arena;
use bits::{Bits, Key, Stride};
use build::{Builder, Routes};
use node::{Entry, Line, entry_of_slot};

use netvm_cpu::Level;

use crate::next_hop::NextHopId;

pub(crate) use bits::Prefix;

/// Slots of the root.
const ROOT: usize = 1 << 16;
/// Most lines of one family: 1 GiB. Routes beyond that are left to the kernel.
const LIMIT: u32 = 1 << 24;
/// Addresses that descend together.
const BURST: usize = 64;

/// The routes of one family.
pub(crate) struct Trie<A> {
    root: Box<[Entry; ROOT]>,
    arena: Arena,
    /// Next hop of the default route, kept apart so that changing it is one write.
    default: NextHopId,
    routes: Routes<A>,
    /// Number of routes of each length.
    lengths: [u32; 129],
}

/// The part of a trie that lookups read.
#[derive(Clone, Copy)]
struct View<'a> {
    root: &'a [Entry; ROOT],
    lines: &'a [Line],
    default: NextHopId,
}

/// Where a burst of addresses begins its descent.
#[derive(Clone, Copy)]
struct Start {
    /// The node, unless it is the root.
    entry: Entry,
    /// Bits that lead to it, or to the children of the root: 16 and more.
    depth: u8,
    is_root: bool,
}

impl Start {
    /// The window of the first slot, and the number of slots in that window before it.
    #[inline(always)]
    fn window<K: Key>(self) -> (u8, usize) {
        if K::WINDOWS == 1 {
            return (0, 0);
        }
        let behind = self.depth.saturating_sub(16);
        (behind / 32, usize::from(behind % 32 / 8))
    }
}

/// The shifts of a window that bring its slots to the low byte.
const SHIFTS: [u8; 4] = [24, 16, 8, 0];

impl<A: Bits> Default for Trie<A> {
    fn default() -> Self {
        Self::with_limit(LIMIT)
    }
}

impl<A: Bits> Trie<A> {
    fn with_limit(lines: u32) -> Self {
        Self {
            root: Box::new([Entry::NONE; ROOT]),
            arena: Arena::new(lines),
            default: NextHopId::PUNT,
            routes: Routes::new(),
            lengths: [0; 129],
        }
    }

    /// Adds or replaces routes, and removes those without a next hop.
    pub fn apply(&mut self, changes: impl Iterator<Item = (Prefix<A>, Option<NextHopId>)>) {
        let mut changed: Vec<Prefix<A>> =
            changes.filter_map(|(prefix, id)| self.set(prefix, id).then_some(prefix)).collect();
        if changed.iter().any(|prefix| prefix.length == 0) {
            let default = Prefix::new(A::ZERO, 0);
            self.default = self.routes.get(&default).copied().unwrap_or(NextHopId::PUNT);
            changed.retain(|prefix| prefix.length > 0);
        }
        changed.sort_unstable();
        // Rebuilding the outer prefix rebuilds the inner one too.
        changed.dedup_by(|inner, outer| outer.contains(*inner));
        let mut builder = Builder { arena: &mut self.arena, routes: &self.routes, lengths: &self.lengths };
        builder.refresh(&mut self.root[..], Stride::Root, &changed);
    }

    /// Sets or removes a route and returns whether anything changed.
    fn set(&mut self, prefix: Prefix<A>, id: Option<NextHopId>) -> bool {
        let before = match id {
            Some(id) => self.routes.insert(prefix, id),
            None => self.routes.remove(&prefix),
        };
        let count = &mut self.lengths[usize::from(prefix.length)];
        match (before, id) {
            (None, Some(_)) => *count += 1,
            (Some(_), None) => *count -= 1,
            _ => {}
        }
        before != id
    }

    /// Looks up the next hop of each address.
    #[inline]
    pub fn lookup_burst<K: Key<Bits = A>>(&self, addresses: &[K], found: &mut [NextHopId]) {
        self.view().lookup(Level::current(), addresses, found);
    }

    #[inline(always)]
    fn view(&self) -> View<'_> {
        View { root: &self.root, lines: self.arena.lines(), default: self.default }
    }

    /// Number of routes.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Bytes used, assuming that the nodes of the route map are two thirds full.
    pub fn memory(&self) -> usize {
        let route = size_of::<Prefix<A>>() + size_of::<NextHopId>() + 2;
        size_of_val(&*self.root) + self.arena.memory() + self.routes.len() * route * 3 / 2
    }
}

impl View<'_> {
    /// Looks up with the instructions of `level`, which the processor must have.
    #[inline]
    fn lookup<K: Key>(self, level: Level, addresses: &[K], found: &mut [NextHopId]) {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                // SAFETY: the caller vouches for the level, which includes the features of the function.
                #[allow(unsafe_code, reason = "calls a function with a target feature")]
                unsafe {
                    avx512::lookup(self, addresses, found);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                // SAFETY: as above.
                #[allow(unsafe_code, reason = "calls a function with a target feature")]
                unsafe {
                    avx2::lookup(self, addresses, found);
                }
            }
            _ => plain::lookup(self, addresses, found),
        }
    }

    /// Splits the addresses into bursts of `N`, calls `descend` for each, and resolves the tests. The last burst may be
    /// shorter.
    #[inline(always)]
    fn in_bursts<K: Key, const N: usize>(
        self,
        addresses: &[K],
        found: &mut [NextHopId],
        descend: impl Fn(&[K; N], usize, Start) -> [Entry; N],
    ) {
        let (bursts, rest) = addresses.as_chunks();
        let mut chunks = found.chunks_mut(N);
        for (burst, found) in bursts.iter().zip(&mut chunks) {
            self.resolve_tests(burst, &descend(burst, N, self.start(burst)), found);
        }
        if let (Some(first), Some(found)) = (rest.first(), chunks.next()) {
            let mut burst = [*first; N];
            burst[..rest.len()].copy_from_slice(rest);
            self.resolve_tests(rest, &descend(&burst, rest.len(), self.start(&burst)), found);
        }
    }

    /// Where a burst starts: where few routes share a long prefix, usually all of its addresses have that prefix, too.
    #[inline(always)]
    fn start<K: Key, const N: usize>(self, burst: &[K; N]) -> Start {
        let root = Start { entry: Entry::NONE, depth: 16, is_root: true };
        let first = self.root[burst[0].top()];
        if !first.is_test() {
            return root;
        }
        let Some(line) = self.lines.get(first.line()) else { return root };
        let (inside, _) = line.results();
        let (prefix, mask) = line.tested_prefix();
        if inside.has_slots() && K::all_match(burst, prefix, mask) {
            return Start { entry: inside, depth: line.tested_bits(), is_root: false };
        }
        root
    }

    /// Resolves the tests that addresses reached, and writes the next hops.
    #[inline(always)]
    fn resolve_tests<K: Key, const N: usize>(
        self,
        addresses: &[K],
        entries: &[Entry; N],
        found: &mut [NextHopId],
    ) {
        for (id, entry) in found.iter_mut().zip(entries).take(addresses.len()) {
            *id = entry.id(self.default);
        }
        // Few bursts have any.
        if !entries.iter().fold(false, |any, entry| any | entry.is_test()) {
            return;
        }
        let mut tests: u64 = (0..).zip(entries).map(|(n, entry)| u64::from(entry.is_test()) << n).sum();
        while tests != 0 {
            let n = tests.trailing_zeros() as usize % N;
            tests &= tests - 1;
            if let (Some(id), Some(address)) = (found.get_mut(n), addresses.get(n)) {
                *id = self.resolve_test(*address, entries[n]).id(self.default);
            }
        }
    }

    /// The leaf behind a test.
    #[inline(always)]
    fn resolve_test<K: Key>(self, address: K, test: Entry) -> Entry {
        let (mut entry, mut depth) = (test, 0);
        loop {
            if entry.is_test() {
                let line = &self.lines[entry.line()];
                (entry, depth) = (line.tested(address.bits()), line.tested_bits());
            } else if entry.has_slots() {
                entry = entry_of_slot(self.lines, entry, address.bits().byte(depth));
                depth += 8;
            } else {
                return entry;
            }
        }
    }
}
