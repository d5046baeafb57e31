// SPDX-License-Identifier: Apache-2.0
//! The cache: keys in, slots and decisions out.

use netvm_flow_table::{Table, WAYS};
use netvm_wire::{FlowHasher, FlowKey};

use crate::entry::{Entry, Hit, Line, New, Slot, Validity};
use crate::options::{CacheError, Eviction, Options};
use crate::set::{Hand, Set};

/// Most keys of one [`FlowCache::find`].
pub const MAX_BURST: usize = 64;

/// Counters. `hits + misses` is the number of lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups without a valid entry.
    pub misses: u64,
    /// Misses due to another generation.
    pub stale: u64,
    /// Misses due to an idle or expired entry.
    pub expired: u64,
    /// Insertions, including those that replaced the same key.
    pub inserted: u64,
    /// Insertions that evicted another flow's valid entry.
    pub evictions: u64,
}

/// Decisions by flow, for one worker.
///
/// A table of tags, eight to a set, and a table of entries, both allocated and touched at creation.
#[derive(Debug)]
pub struct FlowCache {
    hasher: FlowHasher,
    sets: Table<Set>,
    entries: Table<Entry>,
    /// CLOCK's hand of each set; one with LRU.
    hands: Table<Hand>,
    /// LRU: the number of each entry's last use; one with CLOCK.
    uses: Table<u64>,
    used: u64,
    eviction: Eviction,
    idle: u32,
    counters: Counters,
}

impl FlowCache {
    /// Creates an empty cache.
    ///
    /// # Errors
    /// The number of entries is out of range, or memory is insufficient.
    pub fn new(options: &Options) -> Result<Self, CacheError> {
        let order = options.order()?;
        let of_sets = order - WAYS.trailing_zeros();
        let (hands, uses) = match options.eviction {
            Eviction::Clock => (of_sets, 0),
            Eviction::Lru => (0, order),
        };
        Ok(Self {
            hasher: FlowHasher::new(),
            sets: Table::try_new(Set::EMPTY, of_sets)?,
            entries: Table::try_new(Entry::EMPTY, order)?,
            hands: Table::try_new(0, hands)?,
            uses: Table::try_new(0, uses)?,
            used: 0,
            eviction: options.eviction,
            idle: options.idle,
            counters: Counters::default(),
        })
    }

    /// Capacity in entries.
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

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Looks up the flows of packets received on `port`: bit `n` of the result is set if `keys[n]` hits, at `slots[n]`.
    /// Looks up at most [`MAX_BURST`] keys, and at most as many as there are slots.
    ///
    /// Slots are valid until the next insertion, which may evict: count a burst's hits before it.
    pub fn find(&mut self, port: u16, keys: &[FlowKey], validity: Validity, slots: &mut [Slot]) -> u64 {
        let count = keys.len().min(slots.len()).min(MAX_BURST);
        let (keys, slots) = (&keys[..count], &mut slots[..count]);
        let repeated = repeats(keys);
        let found = if repeated == 0 {
            self.find_each(port, keys, validity, slots)
        } else {
            let mut heads = [&FlowKey::EMPTY; MAX_BURST];
            let mut count = 0;
            for (n, key) in keys.iter().enumerate() {
                heads[count % MAX_BURST] = key;
                count += usize::from(repeated >> n & 1 == 0);
            }
            let found = self.find_each(port, heads[..count].iter().copied(), validity, slots);
            spread(repeated, found, count, slots)
        };
        let hits = u64::from(found.count_ones());
        self.counters.hits += hits;
        self.counters.misses += count as u64 - hits;
        found
    }

    /// As [`FlowCache::find`], for at most a burst of keys.
    #[inline(always)]
    fn find_each<'a>(
        &mut self,
        port: u16,
        keys: impl IntoIterator<Item = &'a FlowKey, IntoIter: Clone>,
        validity: Validity,
        slots: &mut [Slot],
    ) -> u64 {
        let keys = keys.into_iter();
        let salt = salt(port);
        let mut hashes = [0; MAX_BURST];
        for (key, hash) in keys.clone().zip(&mut hashes) {
            *hash = self.hasher.key(key).wrapping_add(salt);
            self.sets.prefetch(*hash as usize, 0);
        }
        let mut tagged = 0u64;
        for (n, ((_, hash), slot)) in keys.clone().zip(&hashes).zip(slots.iter_mut()).enumerate() {
            let ways = self.sets.at(*hash as usize).matching(Set::tag(*hash));
            let way = if ways != 0 {
                tagged |= 1 << n;
                ways.trailing_zeros() as usize
            } else {
                self.next_victim(*hash)
            };
            *slot = self.slot(*hash, way);
            self.entries.prefetch(slot.index(), 0);
            self.entries.prefetch(slot.index(), 1);
        }
        let mut found = 0u64;
        for (n, (key, slot)) in keys.clone().zip(slots.iter()).enumerate() {
            let entry = self.entries.at(slot.index());
            if entry.line.is(&Line::new(key, port)) & self.counts(entry, validity) & (tagged >> n & 1 != 0) {
                found |= 1 << n;
                self.touch(*slot);
            }
        }
        let unconfirmed = tagged & !found;
        if unconfirmed != 0 {
            for (n, ((key, hash), slot)) in keys.zip(&hashes).zip(slots.iter_mut()).enumerate() {
                if unconfirmed >> n & 1 != 0
                    && let Some(place) = self.find_other(&Line::new(key, port), *hash, validity)
                {
                    *slot = place;
                    found |= 1 << n;
                }
            }
        }
        found
    }

    /// The slot of a valid entry after the first with its tag did not match; counts the reason of a miss.
    #[cold]
    fn find_other(&mut self, line: &Line, hash: u64, validity: Validity) -> Option<Slot> {
        let slot = self.search(line, hash)?;
        let entry = self.entries.at(slot.index());
        if entry.generation != validity.generation {
            self.counters.stale += 1;
            return None;
        }
        if entry.is_over(validity.now, self.idle) {
            self.counters.expired += 1;
            return None;
        }
        self.touch(slot);
        Some(slot)
    }

    /// Counts packets of a hit flow and returns its decision.
    #[inline(always)]
    pub fn hit(&mut self, slot: Slot, packets: u32, bytes: u64, now: u32) -> Hit {
        let entry = self.entries.at_mut(slot.index());
        entry.packets = entry.packets.wrapping_add(packets.into());
        entry.bytes = entry.bytes.wrapping_add(bytes);
        entry.last_used = now;
        Hit { decision: entry.decision, extra: entry.extra }
    }

    /// Changes the caller's other number of a flow.
    #[inline]
    pub fn set_extra(&mut self, slot: Slot, extra: u32) {
        self.entries.at_mut(slot.index()).extra = extra;
    }

    /// The entry that insertion `serial` put into a slot, if it is still there.
    #[must_use]
    pub fn entry_of(&self, place: u32, serial: u32) -> Option<&Entry> {
        let index = place as usize;
        let entry = (index < self.capacity()).then(|| self.entries.at(index))?;
        let is_used = self.sets.at(index / WAYS).is_used(index % WAYS);
        (is_used && entry.serial == serial).then_some(entry)
    }

    /// The slot of a flow, valid or not.
    #[must_use]
    pub fn slot_of(&self, port: u16, key: &FlowKey) -> Option<Slot> {
        self.search(&Line::new(key, port), self.hash(port, key))
    }

    /// The entry of a slot.
    #[inline]
    #[must_use]
    pub fn entry(&self, slot: Slot) -> &Entry {
        self.entries.at(slot.index())
    }

    /// Inserts a decision: replaces an entry with the same key, else uses a free way of the set, else evicts an entry.
    /// The flow's counters start at 0.
    pub fn insert(&mut self, port: u16, key: &FlowKey, new: New, validity: Validity) -> Slot {
        let (line, hash) = (Line::new(key, port), self.hash(port, key));
        let slot = match self.search(&line, hash) {
            Some(slot) => slot,
            None => {
                let way = self.make_room(hash, validity);
                self.sets.at_mut(hash as usize).put(way, Set::tag(hash));
                self.slot(hash, way)
            }
        };
        *self.entries.at_mut(slot.index()) = Entry {
            line,
            decision: new.decision,
            extra: new.extra,
            packets: 0,
            bytes: 0,
            last_used: validity.now,
            created: validity.now,
            lifetime: new.lifetime,
            generation: validity.generation,
            serial: self.counters.inserted as u32,
        };
        if self.eviction == Eviction::Lru {
            self.touch(slot);
        }
        self.counters.inserted += 1;
        slot
    }

    /// Removes a flow; true if it existed.
    pub fn remove(&mut self, port: u16, key: &FlowKey) -> bool {
        let slot = self.search(&Line::new(key, port), self.hash(port, key));
        if let Some(slot) = slot {
            self.invalidate(slot);
        }
        slot.is_some()
    }

    /// Clears a slot.
    pub fn invalidate(&mut self, slot: Slot) {
        self.sets.at_mut(slot.index() / WAYS).put(slot.index() % WAYS, 0);
    }

    /// The valid entries among `budget` slots from `cursor` on, to list all [`FlowCache::capacity`] slots in parts
    /// between which packets flow.
    pub fn entries_from(
        &self,
        cursor: usize,
        budget: usize,
        validity: Validity,
    ) -> impl Iterator<Item = (Slot, &Entry)> {
        let end = cursor.saturating_add(budget).min(self.capacity());
        (cursor.min(end)..end).filter_map(move |place| {
            let entry = self.entries.at(place);
            let counts = self.sets.at(place / WAYS).is_used(place % WAYS) && self.counts(entry, validity);
            counts.then_some((Slot(place as u32), entry))
        })
    }

    #[inline(always)]
    fn hash(&self, port: u16, key: &FlowKey) -> u64 {
        self.hasher.key(key).wrapping_add(salt(port))
    }

    /// The slot of a way in a hash's set.
    #[inline(always)]
    fn slot(&self, hash: u64, way: usize) -> Slot {
        Slot(((hash as usize & (self.sets.len() - 1)) * WAYS + way) as u32)
    }

    /// The entry of a key, valid or not.
    #[inline]
    fn search(&self, line: &Line, hash: u64) -> Option<Slot> {
        let mut ways = self.sets.at(hash as usize).matching(Set::tag(hash));
        while ways != 0 {
            let slot = self.slot(hash, ways.trailing_zeros() as usize);
            if self.entries.at(slot.index()).line.is(line) {
                return Some(slot);
            }
            ways &= ways - 1;
        }
        None
    }

    /// Whether an entry has this generation and has not expired.
    #[inline(always)]
    fn counts(&self, entry: &Entry, validity: Validity) -> bool {
        (entry.generation == validity.generation) & !entry.is_over(validity.now, self.idle)
    }

    /// Marks an entry as used.
    #[inline(always)]
    fn touch(&mut self, slot: Slot) {
        match self.eviction {
            Eviction::Clock => self.sets.at_mut(slot.index() / WAYS).mark_used(slot.index() % WAYS),
            Eviction::Lru => {
                self.used += 1;
                *self.uses.at_mut(slot.index()) = self.used;
            }
        }
    }

    /// The way that the next new flow in a set is likely to take. Not inlined, as the hit path needs the registers.
    #[inline(never)]
    fn next_victim(&self, hash: u64) -> usize {
        let tags = self.sets.at(hash as usize);
        match (tags.free(), self.eviction) {
            (Some(way), _) => way,
            (None, Eviction::Clock) => tags.evictable(*self.hands.at(hash as usize)),
            (None, Eviction::Lru) => {
                let last_use = |way: &usize| self.uses.at(self.slot(hash, *way).index());
                (0..WAYS).min_by_key(last_use).unwrap_or(0)
            }
        }
    }

    /// A way for a new flow: a free or an evicted one.
    #[inline]
    fn make_room(&mut self, hash: u64, validity: Validity) -> usize {
        let set = self.sets.at_mut(hash as usize);
        if let Some(way) = set.free() {
            return way;
        }
        let way = match self.eviction {
            Eviction::Clock => set.evict(self.hands.at_mut(hash as usize)),
            Eviction::Lru => self.next_victim(hash),
        };
        let counted = self.counts(self.entries.at(self.slot(hash, way).index()), validity);
        self.counters.evictions += u64::from(counted);
        way
    }
}

/// The seed that separates equal keys of different ports.
#[inline(always)]
const fn salt(port: u16) -> u64 {
    (port as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Bit mask of keys equal to their predecessor.
#[inline(always)]
fn repeats(keys: &[FlowKey]) -> u64 {
    let mut repeated = 0;
    for (n, pair) in keys.windows(2).enumerate() {
        // Most keys differ here.
        let [a, b] = [&pair[0], &pair[1]];
        let same_ports = a.source == b.source && a.source_port == b.source_port;
        repeated |= u64::from(same_ports && a == b) << (n + 1);
    }
    repeated
}

/// Copies the results of `count` distinct keys to their repetitions.
#[inline]
fn spread(repeated: u64, found: u64, mut count: usize, slots: &mut [Slot]) -> u64 {
    let mut all = 0;
    for n in (0..slots.len()).rev() {
        let head = count.wrapping_sub(1) % MAX_BURST;
        slots[n] = slots[head.min(n)];
        all |= (found >> head & 1) << n;
        count -= usize::from(repeated >> n & 1 == 0);
    }
    all
}
