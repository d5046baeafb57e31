//! The cache itself.

use netvm_wire::FlowKey;

use crate::entry::{Entry, Slot};
use crate::memory::Table;
use crate::options::{CacheError, Eviction, Options};
use crate::prefetch::prefetch;
use crate::set::{Set, WAYS};

/// Most keys of one [`FlowCache::find`].
pub const MAX_BURST: usize = 64;

/// When something happens: what entries are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Generation of the policy. An entry of any other is not a hit.
    pub generation: u32,
    /// Ticks of the caller's clock, which wrap around.
    pub now: u32,
}

/// A decision to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New {
    /// What to do with the flow's packets.
    pub decision: u32,
    /// A further number of the caller's.
    pub extra: u32,
    /// Ticks after which it ends however busy the flow is; [`Options::NEVER`] for no such limit.
    pub lifetime: u32,
}

/// What was decided for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do with the flow's packets.
    pub decision: u32,
    /// A further number of the caller's.
    pub extra: u32,
}

/// What happened so far. `hits + misses` is the number of keys that were looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Keys that were found.
    pub hits: u64,
    /// Keys that were not found, or whose entry counts no more.
    pub misses: u64,
    /// Of the misses: the entry was of another generation.
    pub stale: u64,
    /// Of the misses: the entry was idle for too long, or its lifetime was over.
    pub expired: u64,
    /// Entries put in, those that took the place of one with the same key included.
    pub inserted: u64,
    /// Of those: in the place of another flow's entry that still counted.
    pub evictions: u64,
}

/// Decisions by flow, for one worker.
///
/// A table of tags, eight to a set, and a table of entries, both allocated and touched when it is made.
#[derive(Debug)]
pub struct FlowCache {
    sets: Table<Set>,
    entries: Table<Entry>,
    /// CLOCK's hand of each set.
    hands: Table<u8>,
    /// LRU: the number of each entry's last use; empty with CLOCK.
    uses: Table<u64>,
    used: u64,
    idle: u32,
    counters: Counters,
}

impl FlowCache {
    /// An empty cache.
    ///
    /// # Errors
    /// A number of entries that is out of bounds, or too little memory.
    pub fn new(options: &Options) -> Result<Self, CacheError> {
        let entries = options.rounded_entries()? as usize;
        let lru = options.eviction == Eviction::Lru;
        Ok(Self {
            sets: Table::new(Set::EMPTY, entries / WAYS)?,
            entries: Table::new(Entry::EMPTY, entries)?,
            hands: Table::new(0, if lru { 0 } else { entries / WAYS })?,
            uses: Table::new(0, if lru { entries } else { 0 })?,
            used: 0,
            idle: options.idle,
            counters: Counters::default(),
        })
    }

    /// Entries that it has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of its tables.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of_val(&*self.sets)
            + size_of_val(&*self.entries)
            + size_of_val(&*self.hands)
            + size_of_val(&*self.uses)
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Looks for the flows of packets that came in through `port`: bit `n` of what it gives says that `keys[n]` was
    /// found, and `slots[n]` where. `hashes` are those of the keys by one [`FlowHasher`](netvm_wire::FlowHasher).
    ///
    /// At most [`MAX_BURST`] keys are looked for, and no more than there are hashes and slots.
    pub fn find(
        &mut self,
        port: u16,
        keys: &[FlowKey],
        hashes: &[u64],
        moment: Moment,
        slots: &mut [Slot],
    ) -> u64 {
        let count = keys.len().min(hashes.len()).min(slots.len()).min(MAX_BURST);
        let (keys, hashes, slots) = (&keys[..count], &hashes[..count], &mut slots[..count]);
        for hash in hashes {
            prefetch(&raw const self.sets[self.set_of(mixed(*hash, port))]);
        }
        let mut tagged = 0u64;
        for (n, (hash, slot)) in hashes.iter().zip(slots.iter_mut()).enumerate() {
            let hash = mixed(*hash, port);
            let set = self.set_of(hash);
            let ways = self.sets[set].matching(Set::tag(hash));
            let way = if ways == 0 { self.next_victim(set) } else { ways.trailing_zeros() as usize };
            tagged |= u64::from(ways != 0) << n;
            let entry: *const Entry = &raw const self.entries[set * WAYS + way];
            prefetch(entry);
            prefetch(entry.wrapping_byte_add(64));
            *slot = Slot((set * WAYS + way) as u32);
        }
        let mut found = 0u64;
        for (n, ((key, hash), slot)) in keys.iter().zip(hashes).zip(slots.iter_mut()).enumerate() {
            let entry = &self.entries[slot.index()];
            if tagged >> n & 1 == 0 {
                continue;
            }
            let hit = if entry.key == *key && entry.port == port {
                Some(*slot)
            } else {
                self.search(port, key, mixed(*hash, port))
            };
            if let Some(place) = hit
                && self.counts(place, moment)
            {
                *slot = place;
                self.touch(place);
                found |= 1 << n;
            }
        }
        let hits = u64::from(found.count_ones());
        self.counters.hits += hits;
        self.counters.misses += count as u64 - hits;
        found
    }

    /// Counts packets of a flow that was found, and says what was decided.
    #[inline(always)]
    pub fn hit(&mut self, slot: Slot, packets: u32, bytes: u64, now: u32) -> Verdict {
        let entry = &mut self.entries[slot.index()];
        entry.packets = entry.packets.wrapping_add(packets.into());
        entry.bytes = entry.bytes.wrapping_add(bytes);
        entry.last_used = now;
        Verdict { decision: entry.decision, extra: entry.extra }
    }

    /// The entry of a slot.
    #[inline]
    #[must_use]
    pub fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[slot.index()]
    }

    /// Remembers a decision: in the place of an entry with the same key, in a free place of the set, or in the place of
    /// the entry that eviction chooses. Counters of the flow begin at 0.
    pub fn insert(&mut self, port: u16, key: &FlowKey, hash: u64, new: New, moment: Moment) -> Slot {
        let hash = mixed(hash, port);
        let set = self.set_of(hash);
        let slot = match self.search(port, key, hash) {
            Some(slot) => slot,
            None => {
                let way = self.make_room(set, moment);
                self.sets[set].put(way, Set::tag(hash));
                Slot((set * WAYS + way) as u32)
            }
        };
        self.entries[slot.index()] = Entry {
            key: *key,
            decision: new.decision,
            extra: new.extra,
            packets: 0,
            bytes: 0,
            last_used: moment.now,
            created: moment.now,
            lifetime: new.lifetime,
            generation: moment.generation,
            port,
        };
        if let Some(last) = self.uses.get_mut(slot.index()) {
            self.used += 1;
            *last = self.used;
        }
        self.counters.inserted += 1;
        slot
    }

    /// Forgets a flow; whether there was one.
    pub fn remove(&mut self, port: u16, key: &FlowKey, hash: u64) -> bool {
        let slot = self.search(port, key, mixed(hash, port));
        if let Some(slot) = slot {
            self.invalidate(slot);
        }
        slot.is_some()
    }

    /// Forgets what is in a slot.
    pub fn invalidate(&mut self, slot: Slot) {
        self.sets[slot.index() / WAYS].put(slot.index() % WAYS, 0);
    }

    /// The entries that count, of `budget` places from place `cursor` on: to list [`FlowCache::capacity`] places in slices,
    /// between which packets flow.
    pub fn entries_from(
        &self,
        cursor: usize,
        budget: usize,
        moment: Moment,
    ) -> impl Iterator<Item = (Slot, &Entry)> {
        let end = cursor.saturating_add(budget).min(self.capacity());
        (cursor.min(end)..end).filter_map(move |place| {
            let entry = &self.entries[place];
            let counts = self.sets[place / WAYS].is_used(place % WAYS)
                && entry.generation == moment.generation
                && !entry.is_over(moment.now, self.idle);
            counts.then_some((Slot(place as u32), entry))
        })
    }

    #[inline(always)]
    fn set_of(&self, hash: u64) -> usize {
        // The number of sets is a power of two.
        hash as usize & (self.sets.len() - 1)
    }

    /// The entry of a key, whether it counts or not.
    #[inline]
    fn search(&self, port: u16, key: &FlowKey, hash: u64) -> Option<Slot> {
        let set = self.set_of(hash);
        let mut ways = self.sets[set].matching(Set::tag(hash));
        while ways != 0 {
            let place = set * WAYS + ways.trailing_zeros() as usize;
            let entry = &self.entries[place];
            if entry.key == *key && entry.port == port {
                return Some(Slot(place as u32));
            }
            ways &= ways - 1;
        }
        None
    }

    /// Whether an entry is of this generation and its time is not over; counts why not.
    #[inline(always)]
    fn counts(&mut self, slot: Slot, moment: Moment) -> bool {
        let entry = &self.entries[slot.index()];
        if entry.generation != moment.generation {
            self.counters.stale += 1;
            return false;
        }
        if entry.is_over(moment.now, self.idle) {
            self.counters.expired += 1;
            return false;
        }
        true
    }

    /// Notes that an entry was used.
    #[inline(always)]
    fn touch(&mut self, slot: Slot) {
        if let Some(last) = self.uses.get_mut(slot.index()) {
            self.used += 1;
            *last = self.used;
        } else {
            self.sets[slot.index() / WAYS].reference(slot.index() % WAYS);
        }
    }

    /// The way of a set that the next new flow takes.
    #[inline(always)]
    fn next_victim(&self, set: usize) -> usize {
        if let Some(way) = self.sets[set].free() {
            return way;
        }
        match self.hands.get(set) {
            Some(hand) => self.sets[set].coldest(*hand),
            None => self.least_used(set),
        }
    }

    fn least_used(&self, set: usize) -> usize {
        let uses = &self.uses[set * WAYS..][..WAYS];
        (0..WAYS).min_by_key(|way| uses[*way]).unwrap_or(0)
    }

    /// Empties the way of a set that [`FlowCache::next_victim`] chooses.
    #[inline]
    fn make_room(&mut self, set: usize, moment: Moment) -> usize {
        let way = self.next_victim(set);
        if self.sets[set].is_used(way) {
            let victim = &self.entries[set * WAYS + way];
            let counted = victim.generation == moment.generation && !victim.is_over(moment.now, self.idle);
            self.counters.evictions += u64::from(counted);
            if let Some(hand) = self.hands.get_mut(set) {
                self.sets[set].sweep(hand, way);
            }
        }
        way
    }
}

/// The hash of a flow on a port.
#[inline(always)]
const fn mixed(hash: u64, port: u16) -> u64 {
    hash.wrapping_add((port as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
