//! The ports of fragmented packets: the first fragment has them, later ones follow. A later fragment that comes before
//! the first one has none, and is invalid: hosts send fragments in order, and holding them would let a sender fill
//! memory.

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{FlowHasher, FlowKey};

use crate::TICKS_PER_SECOND;
use crate::tuple::Zone;

/// Seconds for which later fragments may follow (Linux: `ipfrag_time`).
const LIFETIME: u32 = 30;

/// What fragments of one packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentOf {
    pub(crate) words: [u64; 4],
    pub(crate) rest: u64,
}

impl FragmentOf {
    pub(crate) fn new(key: &FlowKey, zone: Zone, identifier: u32) -> Self {
        let ([a, b], [c, d]) = (key.source.words(), key.destination.words());
        let rest = u64::from(identifier) | u64::from(key.protocol.0) << 32 | u64::from(zone.0) << 48;
        Self { words: [a, b, c, d], rest }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    of: FragmentOf,
    ports: [u16; 2],
    deadline: u32,
    in_use: bool,
}

const FREE: Entry =
    Entry { of: FragmentOf { words: [0; 4], rest: 0 }, ports: [0; 2], deadline: 0, in_use: false };

/// Packets of which later fragments are expected, in sets of four; a set that is full forgets the entry that ends next.
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
    pub(crate) fn note(&mut self, hasher: &FlowHasher, of: FragmentOf, ports: [u16; 2], now: u32) {
        let set = self.0.at_mut(Self::place(&of, hasher));
        let is_free = |entry: &Entry| !entry.in_use || entry.of == of;
        let left = |entry: &Entry| entry.deadline.wrapping_sub(now).cast_signed();
        let entry = match set.iter().position(is_free) {
            Some(free) => set.get_mut(free),
            None => set.iter_mut().min_by_key(|entry| left(entry)),
        };
        if let Some(entry) = entry {
            let deadline = now.wrapping_add(LIFETIME * TICKS_PER_SECOND);
            *entry = Entry { of, ports, deadline, in_use: true };
        }
    }

    /// The ports of a later fragment.
    pub(crate) fn ports(&self, hasher: &FlowHasher, of: &FragmentOf, now: u32) -> Option<[u16; 2]> {
        let set = self.0.at(Self::place(of, hasher));
        let lives = |entry: &&Entry| {
            entry.in_use && entry.of == *of && entry.deadline.wrapping_sub(now).cast_signed() > 0
        };
        set.iter().find(lives).map(|entry| entry.ports)
    }
}
