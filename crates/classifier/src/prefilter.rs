//! What proves of most packets, by a few bits of their headers, that no entry contains them: the bit vectors of Lakshman
//! and Stiliadis (SIGCOMM 1998), with a bit for each of 31 groups of cubes and not for each rule.
//!
//! For each field there is a table from a bucket of its values to the groups that may contain a packet with such a value.
//! A packet is in a group only if every field's table says so: when nothing is left of the tables' words and-ed together, no
//! cube contains it. The tables must never leave out a group that contains a packet; that a word has a group too many only
//! costs the packet the lookup that it would have had anyway.
//!
//! Only packets are asked about that are TCP or UDP over IPv4, whole, and have no VLAN tag. Fields that have no table (MAC
//! addresses, TCP flags, DSCP) count as if every value were in the cube.
//!
//! Tables for a list that has a few entries more are made from those for the list before: what is added later shares a group
//! of its own.
//!
//! Which cubes share a group decides on how good the tables are. A cube is put with those that restrict the same protocols,
//! and the same field most; where there is room for more groups of these, they are cut by the values of that field.

use std::sync::Arc;

use netvm_policy::{Cube, Edit, Family, Fields};
use netvm_wire::{EtherType, Fragment, IpProto};

use crate::NONE;
use crate::overlay::same;
use crate::tables::is_empty;

/// Buckets of a field's values: 12 bits of it.
pub const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 12;
const LAST: u16 = (BUCKETS - 1) as u16;
/// Groups of cubes, a bit each.
const GROUPS: usize = u32::BITS as usize - 1;
/// The group of cubes that are added later.
const LATER: u32 = 1 << GROUPS;
/// Entries that an edit may have for which tables are not made anew.
const FEW: usize = 8;
/// Tables, in the order of [`Part`].
const PARTS: usize = 6;

/// What a table is about.
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

/// A packet that can be asked about.
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
    /// TCP; otherwise it is UDP.
    pub is_tcp: bool,
}

impl Tuple {
    /// Its bucket in the table of a part.
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

/// The buckets of a table that a cube reaches, both ends included.
type Reach = (u16, u16);
const EVERYWHERE: Reach = (0, LAST);

/// A cube as the tables see it.
struct Outline {
    reaches: [Reach; PARTS],
    /// Bit 0: TCP; bit 1: UDP.
    protocols: u8,
    /// The field that restricts it most, then where in that field it begins: alike ones come next to each other.
    place: (u8, u32),
}

impl Prefilter {
    /// The tables for entries, the cubes of each in order; `None` where they could prove nothing of any packet. Takes
    /// 100 us or so for 1,000 cubes.
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

    /// Those for a list that differs from the one that these are for, `before`. Where that is by few entries, the tables
    /// stay as they are but for what is added, and may let packets through for what is gone.
    #[must_use]
    pub fn changed<T: ?Sized + AsRef<[Cube]>>(&self, before: &[Arc<T>], entries: &[Arc<T>]) -> Option<Self> {
        let anew = || Self::build(&entries.iter().map(|entry| (**entry).as_ref()).collect::<Vec<_>>());
        let edit = Edit::between(before, entries, same);
        let otherwise = match self.otherwise {
            NONE => Some(NONE),
            entry => edit.now(entry as usize).map(|entry| entry as u32),
        };
        // What is behind an entry that took everything is in no table.
        let (Some(otherwise), true) = (otherwise, edit.len() <= FEW) else { return anew() };
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

    /// Puts one more outline into the tables.
    fn add(&mut self, outline: &Outline) {
        self.tcp |= if outline.protocols & 1 == 0 { 0 } else { LATER };
        self.udp |= if outline.protocols & 2 == 0 { 0 } else { LATER };
        let tables = Arc::make_mut(&mut self.tables);
        for (table, reach) in tables.iter_mut().zip(outline.reaches) {
            let buckets = &mut table[usize::from(reach.0)..=usize::from(reach.1)];
            buckets.iter_mut().for_each(|groups| *groups |= LATER);
        }
    }

    /// Puts sorted outlines into groups and these into the tables; gives, for each table, the groups that are in every
    /// bucket.
    fn fill(&mut self, outlines: &[Outline]) -> [u32; PARTS] {
        let mut everywhere = [0; PARTS];
        let tables = Arc::make_mut(&mut self.tables);
        for (number, group) in groups(outlines).into_iter().enumerate() {
            let bit = 1u32 << number;
            let mut before = [(1, 0); PARTS];
            for outline in group {
                self.tcp |= if outline.protocols & 1 == 0 { 0 } else { bit };
                self.udp |= if outline.protocols & 2 == 0 { 0 } else { bit };
                for (part, reach) in outline.reaches.into_iter().enumerate() {
                    if reach == EVERYWHERE {
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

    /// Whether it is proven that no entry before [`Prefilter::otherwise`] contains the packet.
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

    /// The number of the entry that contains all IPv4 packets which no entry before contains; [`NONE`] where there is none.
    #[must_use]
    pub const fn otherwise(&self) -> u32 {
        self.otherwise
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<[[u32; BUCKETS]; PARTS]>()
    }
}

impl Outline {
    /// That of a cube of IPv4; `None` where no packet that can be asked about is in it.
    fn of(fields: &Fields) -> Option<Self> {
        let tcp = fields.protocol.contains(IpProto::TCP.0);
        let udp = fields.protocol.contains(IpProto::UDP.0) && fields.tcp_flags.contains(0);
        let fits = fields.ether_type.contains(EtherType::IPV4.0)
            && fields.vlan.contains(0)
            && fields.inner_vlan.contains(0)
            && fields.icmp_type.contains(0)
            && fields.icmp_code.contains(0)
            && fields.arp_operation.contains(0)
            && fields.fragment.contains(Fragment::Whole as u8);
        if !fits || !(tcp || udp) {
            return None;
        }
        let source = Prefix::of(fields.source.value, fields.source.mask);
        let destination = Prefix::of(fields.destination.value, fields.destination.mask);
        let ports = [fields.source_ports, fields.destination_ports];
        let [from, to] = ports.map(|ports| (ports.first >> 4, ports.last >> 4));
        let width = |reach: Reach| u32::from(reach.1 - reach.0 + 1) << 12;
        let widths = [source.width(), destination.width(), width(from), width(to)];
        let starts = [source.first, destination.first, from.0.into(), to.0.into()];
        let narrowest = (0..widths.len()).min_by_key(|field| widths[*field]).unwrap_or(0);
        Some(Self {
            reaches: [source.high(), destination.high(), source.middle(), destination.middle(), from, to],
            protocols: u8::from(tcp) | u8::from(udp) << 1,
            place: (narrowest as u8, starts[narrowest]),
        })
    }
}

/// Addresses from the first to the last.
struct Prefix {
    first: u32,
    last: u32,
}

impl Prefix {
    /// All that have the leading bits; of a mask that is no prefix, those before its first zero.
    const fn of(value: u128, mask: u128) -> Self {
        let mask = mask as u32;
        let kept = match u32::MAX.checked_shr(mask.leading_ones()) {
            Some(rest) => !rest,
            None => u32::MAX,
        };
        let first = value as u32 & kept;
        Self { first, last: first | !kept }
    }

    const fn high(&self) -> Reach {
        ((self.first >> 20) as u16, (self.last >> 20) as u16)
    }

    const fn middle(&self) -> Reach {
        if self.first >> 20 != self.last >> 20 {
            return EVERYWHERE;
        }
        ((self.first >> 8) as u16 & LAST, (self.last >> 8) as u16 & LAST)
    }

    /// In units of 256 addresses, which are as much of all addresses as a unit is of those of [`Outline`]'s ports.
    const fn width(&self) -> u32 {
        (self.last >> 8) - (self.first >> 8) + 1
    }
}

/// Sorted outlines cut into groups: at least one for each set of protocols and narrowest field, and the others where most
/// outlines are.
fn groups(outlines: &[Outline]) -> Vec<&[Outline]> {
    let alike = |a: &Outline, b: &Outline| (a.protocols, a.place.0) == (b.protocols, b.place.0);
    let kinds: Vec<&[Outline]> = outlines.chunk_by(alike).collect();
    let spare = GROUPS.saturating_sub(kinds.len());
    let mut groups = Vec::with_capacity(GROUPS);
    for kind in kinds {
        let count = (1 + spare * kind.len() / outlines.len().max(1)).min(kind.len());
        let at = |n: usize| n * kind.len() / count;
        groups.extend((0..count).map(|n| &kind[at(n)..at(n + 1)]));
    }
    groups
}
