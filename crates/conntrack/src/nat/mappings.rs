// SPDX-License-Identifier: Apache-2.0
//! Which end of a pool stands for which end inside.

mod contacts;

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{Address, FlowHasher, IpProto};

use super::blocks::{Blocks, NO_BLOCK, Place};
use super::ends::{End, Ends, Inside};
use crate::index::Index;
use crate::mapped::{Filtering, Mapped};
use crate::numbers::Numbers;
use crate::packet::tuple::Zone;

pub(crate) use contacts::Contact;
pub use contacts::ContactTable;

#[derive(Clone, Copy)]
struct Mapping {
    inside: Inside,
    outside: End,
    kind: Mapped,
    /// Connections that have it.
    count: u32,
    /// The number of its block.
    block: u32,
}

const NO_END: End = End { address: Address::UNSPECIFIED, port: 0 };
const FREE: Mapping = Mapping {
    inside: Inside { end: NO_END, protocol: IpProto(0), zone: Zone(0) },
    outside: NO_END,
    kind: Mapped::NONE,
    count: 0,
    block: NO_BLOCK,
};

/// The mappings, by both of their ends.
pub(crate) struct Mappings {
    mappings: Table<Mapping>,
    by_inside: Index,
    by_outside: Index,
    numbers: Numbers,
    pub(crate) blocks: Blocks,
    /// `None`: nobody filters by address.
    contacts: Option<ContactTable>,
}

impl Mappings {
    /// For at most so many mappings, with these blocks.
    pub(crate) fn new(most: u32, blocks: Blocks) -> Result<Self, NoMemory> {
        let order = most.max(1).next_power_of_two().trailing_zeros();
        let (by_inside, by_outside) = (Index::new(most)?, Index::new(most)?);
        let numbers = Numbers::new(most)?;
        let mappings = Table::try_new(FREE, order)?;
        Ok(Self { mappings, by_inside, by_outside, numbers, blocks, contacts: None })
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

    /// Notes from now on whom ends inside have sent to.
    pub(crate) fn filter_by_address(&mut self, contacts: ContactTable) {
        self.contacts = Some(contacts);
    }

    /// Counts a connection of a mapping that filters by address.
    pub(crate) fn add_contact(&mut self, hasher: &FlowHasher, contact: &Contact) {
        if let Some(contacts) = &mut self.contacts {
            contacts.add(hasher, contact);
        }
    }

    /// Undoes [`Mappings::add_contact`].
    pub(crate) fn remove_contact(&mut self, hasher: &FlowHasher, contact: &Contact) {
        if let Some(contacts) = &mut self.contacts {
            contacts.remove(hasher, contact);
        }
    }

    /// Whether a packet from an address to an end outside, which is of a mapping of this kind, reaches the end inside.
    pub(crate) fn lets_in(&self, hasher: &FlowHasher, kind: Mapped, contact: &Contact) -> bool {
        match kind.filtering() {
            Filtering::AddressAndPort => false,
            Filtering::EndpointIndependent => true,
            Filtering::AddressDependent => {
                self.contacts.as_ref().is_some_and(|contacts| contacts.has(hasher, contact))
            }
        }
    }

    /// The end of a pool that stands for an end inside, of those that `is_it` accepts.
    pub(crate) fn outside_of(
        &self,
        hasher: &FlowHasher,
        inside: &Inside,
        is_it: impl Fn(End) -> bool,
    ) -> Option<End> {
        let fits = |it: u32| {
            let mapping = self.mappings.at(it as usize);
            mapping.inside == *inside && is_it(mapping.outside)
        };
        let it = self.by_inside.find(hash_of(hasher, inside, inside.end), fits)?;
        Some(self.mappings.at(it as usize).outside)
    }

    /// The end inside that an end of a pool stands for, and the kind of the mapping.
    pub(crate) fn inside_of(&self, hasher: &FlowHasher, outside: &Inside) -> Option<(End, Mapped)> {
        let mapping = self.mappings.at(self.find_outside(hasher, outside)? as usize);
        Some((mapping.inside.end, mapping.kind))
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
        taken.is_none_or(|(end, _)| end == inside.end)
    }

    /// Counts another connection of a mapping, which begins with the first. Returns false, and changes nothing, if
    /// there is no room for it, or the end outside, or its block, is another one's.
    pub(crate) fn add(&mut self, hasher: &FlowHasher, ends: &Ends, of: Mapped) -> bool {
        let Ends { inside, outside } = *ends;
        let known = self.find_outside(hasher, &Inside { end: outside, ..inside });
        if let Some(it) = known {
            let mapping = self.mappings.at_mut(it as usize);
            let is_same = mapping.inside == inside;
            mapping.count += u32::from(is_same);
            return is_same;
        }
        let Some(it) = self.numbers.take() else { return false };
        let mut block = NO_BLOCK;
        if let Some(size) = of.block_size() {
            let place = Place::of(outside.address, inside.zone, outside.port, size);
            let Some(assigned) = self.blocks.add(hasher, &inside, place) else {
                self.numbers.give(it);
                return false;
            };
            block = assigned;
        }
        *self.mappings.at_mut(it as usize) = Mapping { inside, outside, kind: of.kind(), count: 1, block };
        self.by_inside.insert(hash_of(hasher, &inside, inside.end), it);
        self.by_outside.insert(hash_of(hasher, &inside, outside), it);
        true
    }

    /// Undoes [`Mappings::add`].
    pub(crate) fn remove(&mut self, hasher: &FlowHasher, ends: &Ends) {
        let Ends { inside, outside } = *ends;
        let Some(it) = self.find_outside(hasher, &Inside { end: outside, ..inside }) else { return };
        let mapping = self.mappings.at_mut(it as usize);
        mapping.count -= 1;
        if mapping.count > 0 {
            return;
        }
        let block = mapping.block;
        self.numbers.give(it);
        self.by_inside.remove(hash_of(hasher, &inside, inside.end), it);
        self.by_outside.remove(hash_of(hasher, &inside, outside), it);
        if block != NO_BLOCK {
            self.blocks.remove(hasher, inside.protocol, block);
        }
    }
}

/// The hash of an end, of the same protocol and zone as another one.
fn hash_of(hasher: &FlowHasher, like: &Inside, end: End) -> u32 {
    let [a, b] = end.address.words();
    let rest = u64::from(end.port) | u64::from(like.protocol.0) << 16 | u64::from(like.zone.0) << 24;
    hasher.words([a, b, rest, 1, 0]) as u32
}
