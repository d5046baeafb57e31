// SPDX-License-Identifier: Apache-2.0
//! Lookup of bursts of addresses, by the vector instructions that the processor has.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

use netvm_cpu::Level;

use super::bits::{all_match, byte, top};
use super::node::{Entry, Line, entry_of_slot};
use super::{Address, ROOT};
use crate::next_hop::NextHopId;

/// Addresses that descend together.
const BURST: usize = 64;
/// The shifts of a window that bring its slots to the low byte.
const SHIFTS: [u8; 4] = [24, 16, 8, 0];

/// The part of a trie that lookups read.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) root: &'a [Entry; ROOT],
    pub(super) lines: &'a [Line],
    pub(super) default: NextHopId,
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
    fn window(self) -> (u8, usize) {
        let behind = self.depth.saturating_sub(16);
        (behind / 32, usize::from(behind % 32 / 8))
    }
}

impl View<'_> {
    /// Looks up with the instructions of `level`, which the processor must have.
    #[inline]
    pub(super) fn lookup(self, level: Level, addresses: &[Address], found: &mut [NextHopId]) {
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
    fn in_bursts<const N: usize>(
        self,
        addresses: &[Address],
        found: &mut [NextHopId],
        descend: impl Fn(&[Address; N], usize, Start) -> [Entry; N],
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
    fn start<const N: usize>(self, burst: &[Address; N]) -> Start {
        let root = Start { entry: Entry::NONE, depth: 16, is_root: true };
        let first = self.root[top(&burst[0])];
        if !first.is_test() {
            return root;
        }
        let Some(line) = self.lines.get(first.line()) else { return root };
        let (inside, _) = line.results();
        let (prefix, mask) = line.tested_prefix();
        if inside.has_slots() && all_match(burst, prefix, mask) {
            return Start { entry: inside, depth: line.tested_bits(), is_root: false };
        }
        root
    }

    /// Resolves the tests that addresses reached, and writes the next hops.
    #[inline(always)]
    fn resolve_tests<const N: usize>(
        self,
        addresses: &[Address],
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
                *id = self.resolve_test(u128::from_be_bytes(*address), entries[n]).id(self.default);
            }
        }
    }

    /// The leaf behind a test.
    #[inline(always)]
    fn resolve_test(self, address: u128, test: Entry) -> Entry {
        let (mut entry, mut depth) = (test, 0);
        loop {
            if entry.is_test() {
                let line = &self.lines[entry.line()];
                (entry, depth) = (line.tested(address), line.tested_bits());
            } else if entry.has_slots() {
                entry = entry_of_slot(self.lines, entry, byte(address, depth));
                depth += 8;
            } else {
                return entry;
            }
        }
    }
}
