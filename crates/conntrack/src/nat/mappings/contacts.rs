// SPDX-License-Identifier: Apache-2.0
//! [`ContactTable`]: the addresses that ends inside have sent to, for pools that filter by address (RFC 4787 section 5,
//! "address-dependent filtering"). In: the connections of such pools that begin and end. Out: whether an address may
//! send to an end outside, from whatever port.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{Address, FlowHasher, IpProto};

use super::super::ends::Inside;
use super::NO_END;
use crate::index::Index;
use crate::numbers::Numbers;
use crate::packet::tuple::Zone;

/// An end outside, and an address that the end inside for which it stands has sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) outside: Inside,
    pub(crate) remote: Address,
}

const NONE: Contact = Contact {
    outside: Inside { end: NO_END, protocol: IpProto(0), zone: Zone(0) },
    remote: Address::UNSPECIFIED,
};

/// How many connections each contact has.
pub struct ContactTable {
    contacts: Table<(Contact, u32)>,
    index: Index,
    numbers: Numbers,
}

impl ContactTable {
    /// For the contacts of so many connections. Sets their memory aside.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(most: u32) -> Result<Self, NoMemory> {
        let most = most.clamp(1, 1 << 28);
        let order = most.next_power_of_two().trailing_zeros();
        let contacts = Table::try_new((NONE, 0), order)?;
        Ok(Self { contacts, index: Index::new(most)?, numbers: Numbers::new(most)? })
    }

    fn find(&self, hasher: &FlowHasher, contact: &Contact) -> Option<u32> {
        self.index.find(hash_of(hasher, contact), |it| self.contacts.at(it as usize).0 == *contact)
    }

    pub(crate) fn has(&self, hasher: &FlowHasher, contact: &Contact) -> bool {
        self.find(hasher, contact).is_some()
    }

    /// Counts a connection. Without room for its contact, answers come back, and nothing else does.
    pub(crate) fn add(&mut self, hasher: &FlowHasher, contact: &Contact) {
        if let Some(known) = self.find(hasher, contact) {
            self.contacts.at_mut(known as usize).1 += 1;
        } else if let Some(new) = self.numbers.take() {
            *self.contacts.at_mut(new as usize) = (*contact, 1);
            self.index.insert(hash_of(hasher, contact), new);
        }
    }

    /// Undoes [`ContactTable::add`]; a connection that is older than the table has no contact.
    pub(crate) fn remove(&mut self, hasher: &FlowHasher, contact: &Contact) {
        let Some(known) = self.find(hasher, contact) else { return };
        let count = &mut self.contacts.at_mut(known as usize).1;
        *count -= 1;
        if *count == 0 {
            self.index.remove(hash_of(hasher, contact), known);
            self.numbers.give(known);
        }
    }
}

fn hash_of(hasher: &FlowHasher, Contact { outside, remote }: &Contact) -> u32 {
    let ([a, b], [c, d]) = (outside.end.address.words(), remote.words());
    let rest =
        u64::from(outside.end.port) | u64::from(outside.protocol.0) << 16 | u64::from(outside.zone.0) << 24;
    hasher.words([a, b, c ^ rest.rotate_left(7), d, rest]) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nat::End;

    #[test]
    fn a_contact_lasts_as_long_as_its_connections() {
        let hasher = FlowHasher::new();
        let mut table = ContactTable::new(2).unwrap();
        let contact = |port: u16, last: u128| Contact {
            outside: Inside {
                end: End { address: Address::from_v6_bits(1), port },
                protocol: IpProto::UDP,
                zone: Zone(0),
            },
            remote: Address::from_v6_bits(last),
        };
        let (one, other, third) = (contact(1000, 7), contact(1000, 8), contact(1001, 7));
        for _ in 0..2 {
            table.add(&hasher, &one);
        }
        table.add(&hasher, &other);
        assert_eq!([&one, &other, &third].map(|it| table.has(&hasher, it)), [true, true, false]);
        // Without room.
        table.add(&hasher, &third);
        assert!(!table.has(&hasher, &third));
        table.remove(&hasher, &third);
        table.remove(&hasher, &one);
        assert!(table.has(&hasher, &one));
        table.remove(&hasher, &one);
        assert!(!table.has(&hasher, &one) && table.has(&hasher, &other));
        table.add(&hasher, &third);
        assert!(table.has(&hasher, &third));
    }
}
