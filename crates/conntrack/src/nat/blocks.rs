// SPDX-License-Identifier: Apache-2.0
//! Blocks of ports: each address inside gets whole blocks of an address of a pool, so that a log needs a line for each
//! block only (RFC 6888 REQ-14).
//!
//! A block begins at a multiple of its size, so a port and the size say which block it is. The first mapping with a
//! port of a block assigns it, the last one that ends releases it.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{Address, FlowHasher, IpProto, PortRange};

use super::ends::Inside;
use crate::index::Index;
use crate::numbers::Numbers;
use crate::packet::tuple::Zone;
use crate::queue::Queue;

/// No block.
pub(crate) const NO_BLOCK: u32 = u32::MAX;
/// Sizes of blocks at a time: those of rules, and of rules that a reload has replaced.
const SIZES: usize = 4;
/// Free blocks that are looked for among so many at most.
const MAX_ATTEMPTS: u32 = 128;

/// A block of ports that an address inside got, or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEvent {
    /// It is assigned, and otherwise released.
    pub is_assigned: bool,
    /// The address inside.
    pub inside: Address,
    /// Its zone.
    pub zone: Zone,
    /// The address that stands for it.
    pub outside: Address,
    /// The ports.
    pub ports: PortRange,
}

const NO_EVENT: BlockEvent = BlockEvent {
    is_assigned: false,
    inside: Address::UNSPECIFIED,
    zone: Zone(0),
    outside: Address::UNSPECIFIED,
    ports: PortRange::single(0),
};

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) outside: Address,
    pub(crate) zone: Zone,
    pub(crate) first: u16,
    /// Ports.
    pub(crate) size: u16,
}

impl Place {
    /// The block of this size that has a port.
    pub(crate) const fn of(outside: Address, zone: Zone, port: u16, size: u16) -> Self {
        Self { outside, zone, first: port - port % size, size }
    }

    const fn last(&self) -> u16 {
        self.first.saturating_add(self.size - 1)
    }

    fn ports(&self) -> PortRange {
        PortRange::new(self.first, self.last()).unwrap_or(PortRange::single(self.first))
    }
}

/// Among which blocks a free one is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Among {
    /// All of their ports are of these.
    pub(crate) ports: PortRange,
    /// A number that chooses the first.
    pub(crate) start: u32,
}

#[derive(Clone, Copy)]
struct Block {
    place: Place,
    /// The address inside that has it.
    holder: Address,
    /// The next one that its holder has at the same address.
    next: u32,
    /// Mappings by protocol.
    counts: [u16; PROTOCOLS],
}

const FREE: Block = Block {
    place: Place { outside: Address::UNSPECIFIED, zone: Zone(0), first: 0, size: 1 },
    holder: Address::UNSPECIFIED,
    next: NO_BLOCK,
    counts: [0; PROTOCOLS],
};

/// Protocols that have the ports of a block for themselves: TCP, UDP, ICMP, and others.
const PROTOCOLS: usize = 4;

const fn protocol(of: IpProto) -> usize {
    match of {
        IpProto::TCP => 0,
        IpProto::UDP => 1,
        IpProto::ICMP | IpProto::ICMPV6 => 2,
        _ => 3,
    }
}

/// The blocks that addresses inside have.
pub(crate) struct Blocks {
    blocks: Table<Block>,
    /// The first one by holder and address outside.
    by_holder: Index,
    by_place: Index,
    numbers: Numbers,
    /// Blocks that are not assigned.
    left: u32,
    /// How many there are of each size.
    sizes: [(u16, u32); SIZES],
    pub(crate) events: Option<Queue<BlockEvent>>,
    /// Somebody takes them.
    pub(crate) wants_events: bool,
}

impl Blocks {
    /// For at most so many blocks, and events that wait.
    pub(crate) fn new(most: u32, events: u32) -> Result<Self, NoMemory> {
        let order = most.max(1).next_power_of_two().trailing_zeros();
        Ok(Self {
            blocks: Table::try_new(FREE, order)?,
            by_holder: Index::new(most)?,
            by_place: Index::new(most)?,
            numbers: Numbers::new(most)?,
            left: most,
            sizes: [(0, 0); SIZES],
            events: Queue::new(if most == 0 { 0 } else { events }, NO_EVENT)?,
            wants_events: true,
        })
    }

    /// The blocks of this size that an address inside has at an address outside: their ports, and whether one is free
    /// for the protocol.
    pub(crate) fn held(
        &self,
        hasher: &FlowHasher,
        inside: &Inside,
        place: &Place,
    ) -> impl Iterator<Item = (PortRange, bool)> + '_ {
        let protocol = protocol(inside.protocol);
        let mut next = self.first_of(hasher, inside.end.address, place);
        let all = std::iter::from_fn(move || {
            let block = next.map(|it| self.blocks.at(it as usize))?;
            next = (block.next != NO_BLOCK).then_some(block.next);
            Some(block)
        });
        let size = place.size;
        let of_size = all.filter(move |block| block.place.size == size);
        of_size.map(move |block| (block.place.ports(), block.counts[protocol] < size))
    }

    /// The ports of blocks at an address outside that nobody has.
    pub(crate) fn vacant(
        &self,
        hasher: &FlowHasher,
        place: Place,
        among: Among,
    ) -> impl Iterator<Item = PortRange> {
        let Among { ports, start } = among;
        let size = u32::from(place.size);
        let first = u32::from(ports.first()).div_ceil(size);
        let count = ((u32::from(ports.last()) + 1) / size).saturating_sub(first);
        let has_room = self.left > 0 && self.sizes.iter().any(|(it, count)| *it == place.size || *count == 0);
        let attempts = if has_room { count.min(MAX_ATTEMPTS) } else { 0 };
        let places = (0..attempts).map(move |n| {
            let number = first + (start % count + n) % count;
            Place { first: (number * size) as u16, ..place }
        });
        places.filter(move |place| self.is_vacant(hasher, place)).map(|place| place.ports())
    }

    /// Whether nobody has a port of a block.
    fn is_vacant(&self, hasher: &FlowHasher, place: &Place) -> bool {
        let mut sizes = self.sizes.iter().filter(|(_, count)| *count > 0);
        sizes.all(|(size, _)| {
            let mut numbers = place.first / size..=place.last() / size;
            numbers.all(|n| {
                let other = Place { first: n * size, size: *size, ..*place };
                self.find(hasher, &other).is_none()
            })
        })
    }

    /// Counts a mapping of an address inside in its block, which is assigned with the first. Returns its number; `None`
    /// if another address has a port of it, or there is no room.
    pub(crate) fn add(&mut self, hasher: &FlowHasher, inside: &Inside, place: Place) -> Option<u32> {
        let holder = inside.end.address;
        let number = match self.find(hasher, &place) {
            Some(number) if self.blocks.at(number as usize).holder == holder => number,
            Some(_) => return None,
            None if self.is_vacant(hasher, &place) => self.assign(hasher, holder, place)?,
            None => return None,
        };
        self.blocks.at_mut(number as usize).counts[protocol(inside.protocol)] += 1;
        Some(number)
    }

    /// Undoes [`Blocks::add`].
    pub(crate) fn remove(&mut self, hasher: &FlowHasher, of: IpProto, number: u32) {
        let block = self.blocks.at_mut(number as usize);
        block.counts[protocol(of)] -= 1;
        if block.counts == [0; PROTOCOLS] {
            self.release(hasher, number);
        }
    }

    fn assign(&mut self, hasher: &FlowHasher, holder: Address, place: Place) -> Option<u32> {
        let at = self.sizes.iter().position(|(size, count)| *size == place.size && *count > 0);
        let at = at.or_else(|| self.sizes.iter().position(|(_, count)| *count == 0))?;
        let number = self.numbers.take()?;
        self.sizes[at] = (place.size, self.sizes[at].1 + 1);
        self.left -= 1;
        let first = self.first_of(hasher, holder, &place);
        let next = first.map_or(NO_BLOCK, |first| {
            std::mem::replace(&mut self.blocks.at_mut(first as usize).next, number)
        });
        *self.blocks.at_mut(number as usize) = Block { place, holder, next, ..FREE };
        if first.is_none() {
            self.by_holder.insert(hash_of_holder(hasher, holder, &place), number);
        }
        self.by_place.insert(hash_of_place(hasher, &place), number);
        self.note(number, true);
        Some(number)
    }

    fn release(&mut self, hasher: &FlowHasher, number: u32) {
        self.note(number, false);
        let Block { place, holder, next, .. } = *self.blocks.at(number as usize);
        self.by_place.remove(hash_of_place(hasher, &place), number);
        let hash = hash_of_holder(hasher, holder, &place);
        match self.first_of(hasher, holder, &place) {
            Some(first) if first == number => {
                self.by_holder.remove(hash, number);
                if next != NO_BLOCK {
                    self.by_holder.insert(hash, next);
                }
            }
            Some(first) => self.unlink(first, number),
            None => {}
        }
        if let Some((_, count)) =
            self.sizes.iter_mut().find(|(size, count)| *size == place.size && *count > 0)
        {
            *count -= 1;
        }
        self.numbers.give(number);
        self.left += 1;
    }

    /// Takes a block out of the list that begins with another one.
    fn unlink(&mut self, first: u32, number: u32) {
        let next = self.blocks.at(number as usize).next;
        let mut at = first;
        while at != NO_BLOCK {
            let block = self.blocks.at_mut(at as usize);
            if block.next == number {
                block.next = next;
                return;
            }
            at = block.next;
        }
    }

    fn note(&mut self, number: u32, is_assigned: bool) {
        let Block { place, holder, .. } = *self.blocks.at(number as usize);
        let Place { outside, zone, .. } = place;
        if self.wants_events
            && let Some(events) = &mut self.events
        {
            events.push(BlockEvent { is_assigned, inside: holder, zone, outside, ports: place.ports() });
        }
    }

    fn find(&self, hasher: &FlowHasher, place: &Place) -> Option<u32> {
        let is_it = |it: u32| self.blocks.at(it as usize).place == *place;
        self.by_place.find(hash_of_place(hasher, place), is_it)
    }

    /// The first block that an address inside has at an address outside.
    fn first_of(&self, hasher: &FlowHasher, holder: Address, place: &Place) -> Option<u32> {
        self.by_holder.find(hash_of_holder(hasher, holder, place), |it| {
            let block = self.blocks.at(it as usize);
            let Place { outside, zone, .. } = block.place;
            (block.holder, outside, zone) == (holder, place.outside, place.zone)
        })
    }
}

fn hash_of_place(hasher: &FlowHasher, place: &Place) -> u32 {
    let [a, b] = place.outside.words();
    let rest = u64::from(place.first) | u64::from(place.size) << 16 | u64::from(place.zone.0) << 32;
    hasher.words([a, b, rest, 4, 0]) as u32
}

fn hash_of_holder(hasher: &FlowHasher, holder: Address, place: &Place) -> u32 {
    let ([a, b], [c, d]) = (holder.words(), place.outside.words());
    hasher.words([a, b, c, d, u64::from(place.zone.0) << 8 | 5]) as u32
}
