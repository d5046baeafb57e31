//! The forwarding database: which port a MAC address of a VLAN is behind (IEEE 802.1Q clauses 8.7 and 8.8).
//!
//! All workers share one table, without locks. It is set-associative: an address belongs into either of two buckets, each
//! of which is a cache line of eight words, and each word is a whole entry (see `entry`). So what a look-up finds is
//! one entry that somebody wrote, never parts of two: it never says a port that the address was not behind. Words are only
//! changed by compare-and-swap, from what was judged to what is to be.
//!
//! An address that several workers bring at once may be written twice. Each looks again after writing, behind
//! a fence, so that at least one sees the other; the earlier place stays.
//!
//! What one port can do to others is bounded: it has a limit of addresses, a quota of new ones a second, a quota of moves
//! a second; an address that moved is held down for a second; and where buckets are full, only what is expired or the port's
//! own makes room.

mod entry;
mod hold;
mod learn;
mod manage;
mod mix;
#[cfg(all(test, loom))]
mod model;
mod ports;
#[cfg(test)]
#[cfg(not(loom))]
mod stress;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::fmt;
use std::hint::black_box;

use netvm_wire::MacAddr;
use thiserror::Error;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use entry::{Ageing, TAG_BITS, Word};
use hold::HoldDown;
use mix::{KEY_BITS, Mixer, random_key};
use ports::Port;

pub use learn::Learned;
pub use manage::{Binding, StaticError};
pub use mix::FdbKey;

/// Ticks of the clock that callers give: tenths of a second since any moment. It must not wrap, which it does after 13
/// years.
pub const TICKS_PER_SECOND: u32 = 10;

/// Ports that there can be.
pub const MAX_PORTS: usize = if cfg!(loom) { 4 } else { 256 };

/// Entries of a bucket: one cache line.
const WAYS: usize = if cfg!(loom) { 2 } else { 8 };
/// Buckets are at least so many, as tags have no bits for the rest of a key.
const MIN_BUCKET_BITS: u32 = KEY_BITS - TAG_BITS;

/// How large a forwarding database is, and how fast it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbOptions {
    /// Addresses that can be learnt: 1 to 4,194,304. Memory is 16 to 32 bytes each, and at least 512 KiB.
    pub capacity: u32,
    /// Ticks after which an address that was not seen is forgotten. IEEE 802.1Q clause 8.8.3 recommends 300 s.
    pub max_age: u32,
    /// Addresses that a port may have at a time, unless [`Fdb::set_limit`] says otherwise.
    pub limit: u32,
    /// New addresses that each port may bring in a second, unless [`Fdb::set_quota`] says otherwise.
    pub new_per_second: u32,
    /// Addresses of other ports that each port may take over in a second.
    pub moves_per_second: u32,
}

impl FdbOptions {
    /// Largest capacity.
    pub const MAX_CAPACITY: u32 = 1 << 22;

    /// The defaults for a capacity: 300 s; seven eighths of the capacity for a port, so that one that floods leaves
    /// something to others; 10,000 new addresses and 1,000 moves a second, which take a worker about 0.1 % of its time.
    #[must_use]
    pub const fn with_capacity(capacity: u32) -> Self {
        Self {
            capacity,
            max_age: 300 * TICKS_PER_SECOND,
            limit: capacity - capacity / 8,
            new_per_second: 10_000,
            moves_per_second: 1_000,
        }
    }
}

impl Default for FdbOptions {
    /// With a capacity of 32,768: what a top-of-rack switch has, in 512 KiB.
    fn default() -> Self {
        Self::with_capacity(32_768)
    }
}

/// Why there is no such forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FdbError {
    /// The capacity is out of bounds.
    #[error("a forwarding database for {0} addresses cannot be: it must be for 1 to {max}", max = FdbOptions::MAX_CAPACITY)]
    Capacity(u32),
    /// Nothing would stay.
    #[error("an ageing time of 0 forgets addresses at once: IEEE 802.1Q recommends 300 s")]
    NoAge,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// The forwarding database. See the module's head for how it works.
pub struct Fdb {
    mixer: Mixer,
    buckets: Box<[Bucket]>,
    ageing: Ageing,
    options: FdbOptions,
    ports: Box<[Port]>,
    /// Per port, how often an address went away from it.
    departures: Box<[AtomicU32]>,
    moves: AtomicU32,
    learnt: AtomicU32,
    fixed: AtomicU32,
    sweep: AtomicU32,
    hold: HoldDown,
}

impl Fdb {
    /// An empty one.
    ///
    /// # Errors
    /// [`FdbError`] for a capacity or an age out of bounds.
    pub fn new(options: FdbOptions) -> Result<Self, FdbError> {
        if !(1..=FdbOptions::MAX_CAPACITY).contains(&options.capacity) {
            return Err(FdbError::Capacity(options.capacity));
        }
        if options.max_age == 0 {
            return Err(FdbError::NoAge);
        }
        // Half full at most, so that two buckets of eight are never full in practice.
        let bits = (options.capacity.div_ceil(WAYS as u32 / 2)).next_power_of_two().ilog2();
        let mixer = Mixer::new(random_key(), bits.max(MIN_BUCKET_BITS), KEY_BITS);
        Ok(Self::with_mixer(options, mixer))
    }

    fn with_mixer(options: FdbOptions, mixer: Mixer) -> Self {
        let bucket = |_| Bucket(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            buckets: (0..mixer.buckets()).map(bucket).collect(),
            mixer,
            ageing: Ageing::new(options.max_age),
            options,
            ports: (0..MAX_PORTS).map(|_| Port::new(options.limit, options.new_per_second)).collect(),
            departures: (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect(),
            moves: AtomicU32::new(0),
            learnt: AtomicU32::new(0),
            fixed: AtomicU32::new(0),
            sweep: AtomicU32::new(0),
            hold: HoldDown::new(),
        }
    }

    /// Hashes a VLAN and a MAC address. In a burst, make the keys of all packets, [`Fdb::touch`] them, then use
    /// [`Fdb::learn_at`] and [`Fdb::lookup_at`]: their cache misses overlap.
    #[inline]
    #[must_use]
    pub fn key(&self, vlan: u16, mac: MacAddr) -> FdbKey {
        self.mixer.hash(vlan, mac)
    }

    /// Loads where the keys belong into the cache, all at once.
    #[inline]
    pub fn touch(&self, keys: &[FdbKey]) {
        // Loads that only this depends on, few instructions apart: prefetching without unsafe code.
        let word = |key: &FdbKey| self.bucket(key.bucket as usize).0[0].load(Ordering::Relaxed);
        black_box(keys.iter().fold(0, |all, key| all | word(key)));
    }

    /// The port behind which an address of a VLAN is, at the tick `now`; `None` when that is not known.
    #[inline]
    #[must_use]
    pub fn lookup(&self, vlan: u16, mac: MacAddr, now: u32) -> Option<u16> {
        self.lookup_at(self.mixer.hash(vlan, mac), now)
    }

    /// As [`Fdb::lookup`].
    #[inline]
    #[must_use]
    pub fn lookup_at(&self, key: FdbKey, now: u32) -> Option<u16> {
        let mut word = self.search_first(key);
        if word.is_empty() {
            word = self.search_second(key);
        }
        let known = !word.is_empty() && !self.ageing.is_expired(word, self.ageing.stamp(now));
        known.then_some(word.port())
    }

    #[inline]
    fn search_first(&self, key: FdbKey) -> Word {
        self.search(key.bucket as usize, entry::key(key.tag, false))
    }

    #[inline]
    fn search_second(&self, key: FdbKey) -> Word {
        self.search(self.mixer.other(key.bucket as usize, key.tag), entry::key(key.tag, true))
    }

    #[inline]
    fn bucket(&self, number: usize) -> &Bucket {
        // Bounded, as a key may be another database's.
        &self.buckets[number & (self.buckets.len() - 1)]
    }

    /// Port and stamp of what a bucket has for a key; empty when it has nothing.
    #[inline]
    fn search(&self, bucket: usize, key: u64) -> Word {
        // All eight, without a branch that the place of the entry would make unpredictable.
        let distance = |slot: &AtomicU64| Word(slot.load(Ordering::Relaxed)).distance(key);
        Word::at_distance(
            self.bucket(bucket).0.iter().fold(u64::MAX, |least, slot| least.min(distance(slot))),
        )
    }

    /// Changes whenever an address that was behind a port is no longer: it moved, expired, was flushed or pushed out. What
    /// was resolved since the number was read is right while it stays the same.
    #[inline]
    #[must_use]
    pub fn moves(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }

    /// As [`Fdb::moves`], for addresses that were behind this port: what a port does to its own addresses then leaves alone
    /// what was resolved to others. 0 for a number that is no port's.
    #[inline]
    #[must_use]
    pub fn moves_from(&self, port: u16) -> u32 {
        self.departures.get(usize::from(port)).map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// How many learnt addresses are behind a port; expired ones count until they are swept.
    #[must_use]
    pub fn count(&self, port: u16) -> u32 {
        self.ports.get(usize::from(port)).map_or(0, |port| port.count.load(Ordering::Relaxed))
    }

    /// How many addresses are learnt; expired ones count until they are swept.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.learnt.load(Ordering::Relaxed)
    }

    /// Whether nothing is learnt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it was made with.
    #[must_use]
    pub const fn options(&self) -> &FdbOptions {
        &self.options
    }

    /// Bounds how many learnt addresses a port may have; 0: it learns none. Those that are beyond it stay until they expire.
    pub fn set_limit(&self, port: u16, addresses: u32) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.limit.store(addresses, Ordering::Relaxed);
        }
    }

    /// Bounds how many new addresses a port may bring in a second.
    pub fn set_quota(&self, port: u16, new_per_second: u32) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.quota.store(new_per_second, Ordering::Relaxed);
        }
    }

    /// Says that an address went away from a port, after it did.
    fn depart(&self, port: u16) {
        if let Some(count) = self.departures.get(usize::from(port)) {
            count.fetch_add(1, Ordering::Release);
        }
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// Puts an entry in place of a learnt one, an empty or a static one, and counts what changed. A caller that puts a learnt entry
    /// has reserved it with its port and the table.
    fn replace(&self, at: (usize, usize), old: Word, new: Word) -> Result<(), Word> {
        let (bucket, way) = at;
        let slot = &self.buckets[bucket].0[way];
        // Relaxed here and elsewhere: an entry is one word and points to nothing.
        slot.compare_exchange(old.0, new.0, Ordering::Relaxed, Ordering::Relaxed).map_err(Word)?;
        if old.is_learnt() {
            self.release(old.port());
        } else if old.is_static() {
            self.fixed.fetch_sub(1, Ordering::Relaxed);
        }
        let stays = new.has(old.0 >> 16) && new.port() == old.port() && !new.is_empty();
        if !old.is_empty() && !stays {
            self.depart(old.port());
        }
        Ok(())
    }

    /// Gives back what [`Fdb::reserve`] took.
    fn release(&self, port: u16) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.count.fetch_sub(1, Ordering::Relaxed);
        }
        self.learnt.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fdb")
            .field("options", &self.options)
            .field("learnt", &self.len())
            .finish_non_exhaustive()
    }
}
