// SPDX-License-Identifier: Apache-2.0
//! Proves for most packets, by a few header bits, that no entry contains them: the bit vectors of Lakshman and
//! Stiliadis (SIGCOMM 1998), with a bit for each of 31 groups of cubes instead of each rule.
//!
//! For each field a table maps a bucket of values to the groups that may contain such a value. If the AND of all
//! fields' words is 0, no cube contains the packet. A word must hold every group that contains a packet of the bucket;
//! an extra group costs only a needless lookup.
//!
//! Covers unfragmented, untagged TCP and UDP over IPv4 of connections that are not tracked. Fields without a table (MAC
//! addresses, TCP flags, DSCP) count as unrestricted.
//!
//! Tables for a list with a few more entries are derived from the previous ones: added entries share a separate group.
//!
//! The quality depends on the groups. A cube joins those with the same protocols and the same most restricted field;
//! spare groups split these by the values of that field.

use std::sync::Arc;

use netvm_policy::{Cube, Edit, Family, Fields};
use netvm_wire::{ConnState, EtherType, Fragment, IpProto};

use crate::NONE;
use crate::overlay::same;
use crate::tables::is_empty;

/// Number of buckets: 12 bits of a field.
pub const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 12;
const LAST: u16 = (BUCKETS - 1) as u16;
/// Number of groups, a bit each.
const GROUPS: usize = u32::BITS as usize - 1;
/// The group of cubes added later.
const ADDED_LATER: u32 = 1 << GROUPS;
/// Edits of up to this many entries do not rebuild the tables.
const SMALL_EDIT: usize = 8;
/// Number of tables, in the order of [`Part`].
const PARTS: usize = 6;

/// The field of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The upper 12 bits of the source address.
    SourceHigh,
    /// The upper 12 bits of the destination address.
    DestinationHigh,
    /// Bits 19 to 8 of the source address.
    SourceMiddle,
    /// Bits 19 to 8 of the destination address.
    DestinationMiddle,
    /// The upper 12 bits of the source port.
    SourcePort,
    /// The upper 12 bits of the destination port.
    DestinationPort,
}

/// A packet that a prefilter covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// TCP, else UDP.
    pub is_tcp: bool,
}

impl Tuple {
    /// Its bucket in a part's table.
    #[inline(always)]
    #[must_use]
    pub const fn bucket(&self, part: Part) -> u16 {
        match part {
            Part::SourceHigh => (self.source >> 20) as u16,
            Part::DestinationHigh => (self.destination >> 20) as u16,
            Part::SourceMiddle => (self.source >> 8) as u16 & LAST,
            Part::DestinationMiddle => (self.destination >> 8) as u16 & LAST,
            Part::SourcePort => self.source_port >> 4,
            Part::DestinationPort => self.destination_port >> 4,
        }
    }
}

/// The tables of a list of entries.
#[derive(Clone, Debug)]
pub struct Prefilter {
    tables: Arc<[[u32; BUCKETS]; PARTS]>,
    tcp: u32,
    udp: u32,
    otherwise: u32,
}

/// The buckets of a cube in a table, inclusive.
type BucketRange = (u16, u16);
const ALL_BUCKETS: BucketRange = (0, LAST);

/// A cube reduced to buckets.
struct Outline {
    bucket_ranges: [BucketRange; PARTS],
    /// Bit 0: TCP; bit 1: UDP.
    protocols: u8,
    /// The most restricted field and the start in it; a sort key that puts similar cubes together.
    place: (u8, u32),
}

impl Prefilter {
    /// Builds the tables for the cubes of entries, in order; `None` if they could not exclude any packet. Takes about
    /// 100 us for 1,000 cubes.
    #[must_use]
    pub fn build(entries: &[impl AsRef<[Cube]>]) -> Option<Self> {
        let numbered = (0u32..).zip(entries);
        let cubes = numbered.flat_map(|(n, entry)| entry.as_ref().iter().map(move |cube| (cube, n)));
        let mut otherwise = NONE;
        let mut outlines = Vec::new();
        for (cube, entry) in cubes.filter(|(cube, _)| cube.family == Family::V4) {
            if cube.fields == Fields::ANY {
                otherwise = entry;
                break;
            }
            outlines.extend(Outline::of(&cube.fields).filter(|_| !is_empty(cube)));
        }
        outlines.sort_unstable_by_key(|outline| (outline.protocols, outline.place));
        let tables: Arc<[[u32; BUCKETS]]> = vec![[0; BUCKETS]; PARTS].into();
        let mut made = Self { tables: tables.try_into().ok()?, tcp: 0, udp: 0, otherwise };
        let unrestricted = made.fill(&outlines);
        let hopeless = unrestricted.iter().fold(u32::MAX, |both, groups| both & groups);
        (hopeless & made.tcp == 0 || hopeless & made.udp == 0).then_some(made)
    }

    /// The tables for a list that differs from `before`. For a small edit it only adds entries; removed entries stay,
    /// which costs needless lookups.
    #[must_use]
    pub fn changed<T: ?Sized + AsRef<[Cube]>>(&self, before: &[Arc<T>], entries: &[Arc<T>]) -> Option<Self> {
        let rebuild = || Self::build(&entries.iter().map(|entry| (**entry).as_ref()).collect::<Vec<_>>());
        let edit = Edit::between(before, entries, same);
        let otherwise = match self.otherwise {
            NONE => Some(NONE),
            entry => edit.now(entry as usize).map(|entry| entry as u32),
        };
        // Entries after one that contained everything are in no table.
        let (Some(otherwise), true) = (otherwise, edit.len() <= SMALL_EDIT) else { return rebuild() };
        let mut made = Self { otherwise, ..self.clone() };
        for place in edit.added().take_while(|place| *place < otherwise as usize) {
            let cubes = (*entries[place]).as_ref().iter().filter(|cube| cube.family == Family::V4);
            for cube in cubes {
                if cube.fields == Fields::ANY {
                    made.otherwise = place as u32;
                    return Some(made);
                }
                if let Some(outline) = Outline::of(&cube.fields).filter(|_| !is_empty(cube)) {
                    made.add(&outline);
                }
            }
        }
        Some(made)
    }

    /// Adds an outline to the tables.
    fn add(&mut self, outline: &Outline) {
        self.tcp |= if outline.protocols & 1 == 0 { 0 } else { ADDED_LATER };
        self.udp |= if outline.protocols & 2 == 0 { 0 } else { ADDED_LATER };
        let tables = Arc::make_mut(&mut self.tables);
        for (table, reach) in tables.iter_mut().zip(outline.bucket_ranges) {
            let buckets = &mut table[usize::from(reach.0)..=usize::from(reach.1)];
            buckets.iter_mut().for_each(|groups| *groups |= ADDED_LATER);
        }
    }

    /// Groups sorted outlines and fills the tables; returns for each table the groups present in every bucket.
    fn fill(&mut self, outlines: &[Outline]) -> [u32; PARTS] {
        let mut everywhere = [0; PARTS];
        let tables = Arc::make_mut(&mut self.tables);
        for (number, group) in groups(outlines).into_iter().enumerate() {
            let bit = 1u32 << number;
            let mut before = [(1, 0); PARTS];
            for outline in group {
                self.tcp |= if outline.protocols & 1 == 0 { 0 } else { bit };
                self.udp |= if outline.protocols & 2 == 0 { 0 } else { bit };
                for (part, reach) in outline.bucket_ranges.into_iter().enumerate() {
                    if reach == ALL_BUCKETS {
                        everywhere[part] |= bit;
                    } else if reach != before[part] {
                        let buckets = &mut tables[part][usize::from(reach.0)..=usize::from(reach.1)];
                        buckets.iter_mut().for_each(|groups| *groups |= bit);
                        before[part] = reach;
                    }
                }
            }
        }
        for (table, groups) in tables.iter_mut().zip(everywhere) {
            table.iter_mut().for_each(|bucket| *bucket |= groups);
        }
        everywhere
    }

    /// Whether no entry before [`Prefilter::otherwise`] contains the packet, provably.
    #[inline]
    #[must_use]
    pub fn excludes(&self, tuple: &Tuple) -> bool {
        const ALL: [Part; PARTS] = [
            Part::SourceHigh,
            Part::DestinationHigh,
            Part::SourceMiddle,
            Part::DestinationMiddle,
            Part::SourcePort,
            Part::DestinationPort,
        ];
        let groups = if tuple.is_tcp { self.tcp } else { self.udp };
        let word = |part: Part| self.table(part)[usize::from(tuple.bucket(part) & LAST)];
        ALL.into_iter().fold(groups, |left, part| left & word(part)) == 0
    }

    /// The groups by bucket.
    #[inline(always)]
    #[must_use]
    pub fn table(&self, part: Part) -> &[u32; BUCKETS] {
        &self.tables[part as usize]
    }

    /// The groups that may contain TCP.
    #[inline(always)]
    #[must_use]
    pub const fn tcp(&self) -> u32 {
        self.tcp
    }

    /// The groups that may contain UDP.
    #[inline(always)]
    #[must_use]
    pub const fn udp(&self) -> u32 {
        self.udp
    }

    /// The entry that contains all remaining IPv4 packets; [`NONE`] if none does.
    #[must_use]
    pub const fn otherwise(&self) -> u32 {
        self.otherwise
    }

    /// Memory in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<[[u32; BUCKETS]; PARTS]>()
    }
}

impl Outline {
    /// The outline of an IPv4 cube; `None` if it contains no covered packet.
    fn of(fields: &Fields) -> Option<Self> {
        let tcp = fields.protocol.contains(IpProto::TCP.0);
        let udp = fields.protocol.contains(IpProto::UDP.0) && fields.tcp_flags.contains(0);
        let fits = fields.ether_type.contains(EtherType::IPV4.0)
            && fields.vlan.contains(0)
            && fields.inner_vlan.contains(0)
            && fields.icmp_type.contains(0)
            && fields.icmp_code.contains(0)
            && fields.arp_operation.contains(0)
            && fields.fragment.contains(Fragment::Whole as u8)
            && fields.state.contains(ConnState::Untracked as u8);
        if !fits || !(tcp || udp) {
            return None;
        }
        let source = Prefix::of(fields.source.value, fields.source.mask);
        let destination = Prefix::of(fields.destination.value, fields.destination.mask);
        let ports = [fields.source_ports, fields.destination_ports];
        let [from, to] = ports.map(|ports| (ports.first >> 4, ports.last >> 4));
        let width = |reach: BucketRange| u32::from(reach.1 - reach.0 + 1) << 12;
        let widths = [source.width(), destination.width(), width(from), width(to)];
        let starts = [source.first, destination.first, from.0.into(), to.0.into()];
        let narrowest = (0..widths.len()).min_by_key(|field| widths[*field]).unwrap_or(0);
        Some(Self {
            bucket_ranges: [
                source.high(),
                destination.high(),
                source.middle(),
                destination.middle(),
                from,
                to,
            ],
            protocols: u8::from(tcp) | u8::from(udp) << 1,
            place: (narrowest as u8, starts[narrowest]),
        })
    }
}

/// A range of addresses.
struct Prefix {
    first: u32,
    last: u32,
}

impl Prefix {
    /// The addresses with these leading bits; for a mask that is not a prefix, the bits before its first zero.
    const fn of(value: u128, mask: u128) -> Self {
        let mask = mask as u32;
        let kept = match u32::MAX.checked_shr(mask.leading_ones()) {
            Some(rest) => !rest,
            None => u32::MAX,
        };
        let first = value as u32 & kept;
        Self { first, last: first | !kept }
    }

    const fn high(&self) -> BucketRange {
        ((self.first >> 20) as u16, (self.last >> 20) as u16)
    }

    const fn middle(&self) -> BucketRange {
        if self.first >> 20 != self.last >> 20 {
            return ALL_BUCKETS;
        }
        ((self.first >> 8) as u16 & LAST, (self.last >> 8) as u16 & LAST)
    }

    /// Width relative to the address space, in the unit of the ports' widths.
    const fn width(&self) -> u32 {
        (self.last >> 8) - (self.first >> 8) + 1
    }
}

/// Splits sorted outlines into groups: at least one for each set of protocols and narrowest field, the others where
/// most outlines are.
fn groups(outlines: &[Outline]) -> Vec<&[Outline]> {
    let same_group = |a: &Outline, b: &Outline| (a.protocols, a.place.0) == (b.protocols, b.place.0);
    let kinds: Vec<&[Outline]> = outlines.chunk_by(same_group).collect();
    let spare = GROUPS.saturating_sub(kinds.len());
    let mut groups = Vec::with_capacity(GROUPS);
    for kind in kinds {
        let count = (1 + spare * kind.len() / outlines.len().max(1)).min(kind.len());
        let at = |n: usize| n * kind.len() / count;
        groups.extend((0..count).map(|n| &kind[at(n)..at(n + 1)]));
    }
    groups
}
