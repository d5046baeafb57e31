//! Which end of a pool stands for which end inside.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{Address, FlowHasher, IpProto};

use crate::index::Index;
use crate::numbers::Numbers;
use crate::packet::tuple::Zone;

/// An address and a port, or the identifier of ICMP queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: Address,
    pub(crate) port: u16,
}

/// An end inside, by what tells ends apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) end: End,
    pub(crate) protocol: IpProto,
    pub(crate) zone: Zone,
}

#[derive(Clone, Copy)]
struct Mapping {
    inside: Inside,
    outside: End,
    /// Connections that have it.
    count: u32,
}

const NO_END: End = End { address: Address::UNSPECIFIED, port: 0 };
const FREE: Mapping = Mapping {
    inside: Inside { end: NO_END, protocol: IpProto(0), zone: Zone(0) },
    outside: NO_END,
    count: 0,
};

/// The mappings, by both of their ends.
pub(crate) struct Mappings {
    mappings: Table<Mapping>,
    by_inside: Index,
    by_outside: Index,
    numbers: Numbers,
}

impl Mappings {
    /// For at most so many mappings.
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        let order = most.max(1).next_power_of_two().trailing_zeros();
        let (by_inside, by_outside) = (Index::new(most)?, Index::new(most)?);
        let numbers = Numbers::new(most)?;
        Ok(Self { mappings: Table::try_new(FREE, order)?, by_inside, by_outside, numbers })
    }

    /// The port that stands for an end inside at an address of a pool.
    pub(crate) fn port_of(&self, hasher: &FlowHasher, inside: &Inside, address: Address) -> Option<u16> {
        let is_it = |it: u32| {
            let mapping = self.mappings.at(it as usize);
            mapping.inside == *inside && mapping.outside.address == address
        };
        let it = self.by_inside.find(hash_of(hasher, inside, inside.end), is_it)?;
        Some(self.mappings.at(it as usize).outside.port)
    }

    /// The end inside that an end of a pool stands for.
    pub(crate) fn inside_of(&self, hasher: &FlowHasher, outside: &Inside) -> Option<End> {
        Some(self.mappings.at(self.find_outside(hasher, outside)? as usize).inside.end)
    }

    fn find_outside(&self, hasher: &FlowHasher, outside: &Inside) -> Option<u32> {
        let is_it = |it: u32| {
            let Mapping { inside, outside: end, .. } = *self.mappings.at(it as usize);
            end == outside.end && (inside.protocol, inside.zone) == (outside.protocol, outside.zone)
        };
        self.by_outside.find(hash_of(hasher, outside, outside.end), is_it)
    }

    /// Whether an end of a pool stands for no end, or for this one.
    pub(crate) fn is_free_for(&self, hasher: &FlowHasher, inside: &Inside, outside: End) -> bool {
        let taken = self.inside_of(hasher, &Inside { end: outside, ..*inside });
        taken.is_none_or(|end| end == inside.end)
    }

    /// Counts another connection of a mapping, which begins with the first. Returns false, and changes nothing, if
    /// there is no room for it, or the end outside stands for another one.
    pub(crate) fn add(&mut self, hasher: &FlowHasher, inside: &Inside, outside: End) -> bool {
        let known = self.find_outside(hasher, &Inside { end: outside, ..*inside });
        if let Some(it) = known {
            let mapping = self.mappings.at_mut(it as usize);
            let is_same = mapping.inside == *inside;
            mapping.count += u32::from(is_same);
            return is_same;
        }
        let Some(it) = self.numbers.take() else { return false };
        *self.mappings.at_mut(it as usize) = Mapping { inside: *inside, outside, count: 1 };
        self.by_inside.insert(hash_of(hasher, inside, inside.end), it);
        self.by_outside.insert(hash_of(hasher, inside, outside), it);
        true
    }

    /// Undoes [`Mappings::add`].
    pub(crate) fn remove(&mut self, hasher: &FlowHasher, inside: &Inside, outside: End) {
        let Some(it) = self.find_outside(hasher, &Inside { end: outside, ..*inside }) else { return };
        let mapping = self.mappings.at_mut(it as usize);
        mapping.count -= 1;
        if mapping.count == 0 {
            self.numbers.give(it);
            self.by_inside.remove(hash_of(hasher, inside, inside.end), it);
            self.by_outside.remove(hash_of(hasher, inside, outside), it);
        }
    }
}

/// The hash of an end, of the same protocol and zone as another one.
fn hash_of(hasher: &FlowHasher, like: &Inside, end: End) -> u32 {
    let [a, b] = end.address.words();
    let rest = u64::from(end.port) | u64::from(like.protocol.0) << 16 | u64::from(like.zone.0) << 24;
    hasher.words([a, b, rest, 1, 0]) as u32
}
