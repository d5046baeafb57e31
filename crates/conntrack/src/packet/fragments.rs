// SPDX-License-Identifier: Apache-2.0
//! The ports of fragmented packets: the first fragment has them, later ones follow. A later fragment that comes before
//! the first one has none, and is invalid: hosts send fragments in order, and holding them would let a sender fill
//! memory.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{FlowHasher, FlowKey, Fragment};

use crate::packet::headers::fragment_identifier;
use crate::packet::tuple::{Ports, Zone};
use crate::{Packet, TICKS_PER_SECOND};

/// Seconds for which later fragments may follow (Linux: `ipfrag_time`).
const LIFETIME: u32 = 30;

/// What fragments of one packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentOf {
    words: [u64; 4],
    rest: u64,
}

impl FragmentOf {
    /// That of a fragment.
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        fragment_identifier(packet).map(|identifier| Self::new(packet.key, packet.zone, identifier))
    }

    /// That of a first fragment; `None` for other packets.
    pub(crate) fn of_first(packet: &Packet<'_>) -> Option<Self> {
        if packet.key.fragment == Fragment::First { Self::of(packet) } else { None }
    }

    fn new(key: &FlowKey, zone: Zone, identifier: u32) -> Self {
        let ([a, b], [c, d]) = (key.source.words(), key.destination.words());
        let rest = u64::from(identifier) | u64::from(key.protocol.0) << 32 | u64::from(zone.0) << 48;
        Self { words: [a, b, c, d], rest }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    of: FragmentOf,
    ports: Ports,
    deadline: u32,
    in_use: bool,
    /// Its packet belongs to a connection.
    is_confirmed: bool,
}

const FREE: Entry = Entry {
    of: FragmentOf { words: [0; 4], rest: 0 },
    ports: Ports { numbers: [0; 2], query: 0 },
    deadline: 0,
    in_use: false,
    is_confirmed: false,
};

/// Packets of which later fragments are expected, in sets of four. A set that is full forgets the oldest packet, one
/// without a connection if there is one.
pub(crate) struct Fragments(Table<[Entry; 4]>);

impl Fragments {
    /// For about so many packets.
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        let order = most.div_ceil(4).max(1).next_power_of_two().trailing_zeros();
        Ok(Self(Table::try_new([FREE; 4], order)?))
    }

    fn place(of: &FragmentOf, hasher: &FlowHasher) -> usize {
        let [a, b, c, d] = of.words;
        hasher.words([a, b, c, d, of.rest]) as usize
    }

    /// Notes the ports of a first fragment.
    pub(crate) fn note(&mut self, hasher: &FlowHasher, of: FragmentOf, ports: Ports, now: u32) {
        let set = self.0.at_mut(Self::place(&of, hasher));
        let left = |entry: &Entry| entry.deadline.wrapping_sub(now).cast_signed();
        // The same packet's, a free one, or the least worth keeping.
        let worth = |entry: &&mut Entry| {
            let is_other = entry.in_use && entry.of != of;
            (is_other, !entry.in_use, left(entry) > 0, entry.is_confirmed, left(entry))
        };
        if let Some(entry) = set.iter_mut().min_by_key(worth) {
            let deadline = now.wrapping_add(LIFETIME * TICKS_PER_SECOND);
            *entry = Entry { of, ports, deadline, in_use: true, is_confirmed: false };
        }
    }

    /// The packet of these fragments belongs to a connection.
    pub(crate) fn confirm(&mut self, hasher: &FlowHasher, of: &FragmentOf) {
        let set = self.0.at_mut(Self::place(of, hasher));
        if let Some(entry) = set.iter_mut().find(|entry| entry.in_use && entry.of == *of) {
            entry.is_confirmed = true;
        }
    }

    /// The ports of a later fragment.
    pub(crate) fn ports(&self, hasher: &FlowHasher, of: &FragmentOf, now: u32) -> Option<Ports> {
        let set = self.0.at(Self::place(of, hasher));
        let lives = |entry: &&Entry| {
            entry.in_use && entry.of == *of && entry.deadline.wrapping_sub(now).cast_signed() > 0
        };
        set.iter().find(lives).map(|entry| entry.ports)
    }
}
