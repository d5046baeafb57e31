// SPDX-License-Identifier: Apache-2.0
//! The compiled tables of a family.

use std::collections::VecDeque;
use std::ops::Range;

use dpdk::{Acl, AclBuilder, AclError, Eal};
use netvm_policy::{Cube, Family, Fields};
use netvm_wire::FlowKey;

use crate::layout::{CLASSIC, Layout, Numbered, WIDE, pack_classic};
use crate::{BURST, BuildError, Limits, NONE};

/// Most tables of a family: each costs a lookup for packets that earlier ones do not match.
const MAX_TABLES: usize = 64;

/// Finds the first entry for packets of a family.
#[derive(Debug)]
pub(crate) struct Tables {
    kind: Kind,
    /// The entry that contains everything; [`NONE`] if none does.
    otherwise: u32,
}

#[derive(Debug)]
enum Kind {
    /// Cubes to scan linearly.
    Scan(Box<[Numbered]>),
    Classic(Box<[Acl<CLASSIC>]>),
    Wide(Layout, Box<[Acl<WIDE>]>),
}

impl Tables {
    /// Compiles the cubes of a family, in the order of their entries.
    pub(crate) fn build(
        compiler: &mut Compiler<'_>,
        family: Family,
        mut cubes: Vec<Numbered>,
    ) -> Result<Self, BuildError> {
        cubes.retain(|(cube, _)| !is_empty(cube));
        let everything = cubes.iter().position(|(cube, _)| cube.fields == Fields::ANY);
        let otherwise = everything.map_or(NONE, |at| cubes[at].1);
        cubes.truncate(everything.unwrap_or(cubes.len()));
        if cubes.len() <= compiler.limits.scan_cubes {
            return Ok(Self { kind: Kind::Scan(cubes.into()), otherwise });
        }
        let layout = Layout::of(family, &cubes);
        let kind = if layout.is_classic() {
            Kind::Classic(compiler.compile(&layout, &cubes)?)
        } else {
            let tables = compiler.compile(&layout, &cubes)?;
            Kind::Wide(layout, tables)
        };
        Ok(Self { kind, otherwise })
    }

    /// Writes the first entry for the keys of the rows, which are indexes in `keys` and `out`, at most a burst.
    #[inline]
    pub(crate) fn classify(&self, keys: &[FlowKey], rows: &mut [u8], out: &mut [u32]) {
        match &self.kind {
            Kind::Scan(cubes) => {
                for row in rows.iter().map(|row| usize::from(*row)) {
                    if let (Some(key), Some(out)) = (keys.get(row), out.get_mut(row)) {
                        let first = cubes.iter().find(|(cube, _)| cube.contains(key));
                        *out = first.map_or(self.otherwise, |(_, entry)| *entry);
                    }
                }
            }
            Kind::Classic(tables) => {
                let mut packed = [[0; CLASSIC]; BURST];
                pack_classic(keys, rows, &mut packed);
                self.look_up(tables, &mut packed, rows, out);
            }
            Kind::Wide(layout, tables) => {
                let mut packed = [[0; WIDE]; BURST];
                layout.pack(keys, rows, &mut packed);
                self.look_up(tables, &mut packed, rows, out);
            }
        }
    }

    /// Tables hold entries in order: keys go to the next one until one matches.
    #[inline(always)]
    fn look_up<const N: usize>(
        &self,
        tables: &[Acl<N>],
        packed: &mut [[u8; N]; BURST],
        rows: &mut [u8],
        out: &mut [u32],
    ) {
        let mut results = [0; BURST];
        let mut left = rows.len().min(BURST);
        for (n, table) in tables.iter().enumerate() {
            let count = rounded(left);
            table.classify(&packed[..count], &mut results[..count]);
            for (row, result) in rows.iter().zip(&results[..left]) {
                // A result is the entry's number plus 1, so that 0 becomes NONE.
                if let Some(out) = out.get_mut(usize::from(*row)) {
                    *out = result.wrapping_sub(1).min(self.otherwise);
                }
            }
            if n + 1 < tables.len() {
                left = keep_missed(&results[..left], packed, rows);
            }
        }
    }

    /// Number of `rte_acl` tables.
    pub(crate) fn count(&self) -> usize {
        match &self.kind {
            Kind::Scan(_) => 0,
            Kind::Classic(tables) => tables.len(),
            Kind::Wide(_, tables) => tables.len(),
        }
    }
}

/// Rounds up to 16 or 32 keys, which take less time than slightly fewer (with AVX-512); padding keys may have any
/// value.
const fn rounded(count: usize) -> usize {
    match count {
        13..16 => 16,
        24..32 => 32,
        count => count,
    }
}

/// Moves keys without a result to the front; returns how many there are.
fn keep_missed<const N: usize>(results: &[u32], packed: &mut [[u8; N]; BURST], rows: &mut [u8]) -> usize {
    let mut missed = 0;
    for (n, result) in results.iter().enumerate() {
        packed[missed] = packed[n];
        rows[missed] = rows[n];
        missed += usize::from(*result == 0);
    }
    missed
}

/// Whether a cube contains no key.
pub(crate) fn is_empty(cube: &Cube) -> bool {
    let fields = &cube.fields;
    let spans = [
        fields.ether_type,
        fields.vlan,
        fields.inner_vlan,
        fields.source_ports,
        fields.destination_ports,
        fields.arp_operation,
    ];
    let bytes = [fields.dscp, fields.icmp_type, fields.icmp_code, fields.fragment, fields.state];
    spans.iter().any(|span| span.first > span.last)
        || bytes.iter().any(|span| span.first > span.last)
        || [fields.source, fields.destination].iter().any(|set| set.value & !set.mask != 0)
        || [fields.source_mac, fields.destination_mac].iter().any(|set| set.value & !set.mask != 0)
        || [fields.protocol, fields.tcp_flags].iter().any(|set| set.value & !set.mask != 0)
}

/// Compiles tables within limits.
pub(crate) struct Compiler<'a> {
    pub(crate) eal: Eal,
    pub(crate) limits: &'a Limits,
    /// Bytes that are left for tables.
    pub(crate) memory: usize,
}

impl Compiler<'_> {
    /// Compiles cubes into few tables, in order: splits a table that does not fit.
    fn compile<const N: usize>(
        &mut self,
        layout: &Layout,
        cubes: &[Numbered],
    ) -> Result<Box<[Acl<N>]>, BuildError> {
        let limits = self.limits;
        let mut waiting = pieces(0..cubes.len(), cubes.len().div_ceil(limits.table_cubes.max(1)));
        let mut tables = Vec::new();
        while let Some(piece) = waiting.pop_front() {
            let error = match compile_one(self.eal, layout, &cubes[piece.clone()], self.memory) {
                Ok(table) => {
                    self.memory -= table.bytes().min(self.memory);
                    tables.push(table);
                    continue;
                }
                Err(error @ (AclError::TooLarge { .. } | AclError::NoMemory { .. })) => error,
                Err(error) => return Err(error.into()),
            };
            if piece.len() < 2 || tables.len() + waiting.len() + 2 > MAX_TABLES {
                let (cubes, memory) = (cubes.len(), limits.memory);
                return Err(BuildError::TooLarge { cubes, memory, source: error });
            }
            for half in pieces(piece, 2).into_iter().rev() {
                waiting.push_front(half);
            }
        }
        Ok(tables.into())
    }
}

/// Splits a range into pieces of similar length.
fn pieces(range: Range<usize>, count: usize) -> VecDeque<Range<usize>> {
    let at = |n: usize| range.start + range.len() * n / count.max(1);
    (0..count).map(|n| at(n)..at(n + 1)).collect()
}

fn compile_one<const N: usize>(
    eal: Eal,
    layout: &Layout,
    cubes: &[Numbered],
    memory: usize,
) -> Result<Acl<N>, AclError> {
    let mut builder = AclBuilder::new(&layout.fields())?;
    let last = cubes.last().map_or(0, |(_, entry)| *entry);
    for (n, (cube, entry)) in cubes.iter().enumerate() {
        let number = |n: u32| std::num::NonZeroU32::MIN.saturating_add(n);
        debug_assert!(*entry <= last, "cube {n} is out of order");
        builder.rule(&layout.values(cube), number(last.saturating_sub(*entry)), number(*entry))?;
    }
    builder.build(eal, memory, None)
}
