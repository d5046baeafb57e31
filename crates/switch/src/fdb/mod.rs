// SPDX-License-Identifier: Apache-2.0
//! The forwarding database: the port that a MAC address of a VLAN is behind (IEEE 802.1Q clauses 8.7 and 8.8).
//!
//! All workers share one table without locks. It is set-associative: an address has two candidate buckets, each a cache
//! line of eight words, and each word is a whole entry (see `entry`). So a lookup reads one entry that one thread
//! wrote, never a mix of two, and never returns a port that the address was not behind. Threads change entries only by
//! compare-and-swap, from the value they examined to the new one.
//!
//! Workers that learn an address at the same time may write it twice. Each looks again after writing, behind a fence,
//! so at least one sees both entries; the first one stays.
//!
//! Static entries neither age nor move. What a control plane says of addresses behind other switches does not age, and
//! moves to a port that sends from the address.
//!
//! Limits bound what one port can do to others: a number of addresses, a quota of new addresses a second and a quota of
//! moves a second. An address that moved is held down for a second: a claim of another port waits until
//! [`Fdb::settle_claims`], unless the address's port sends from it before. In full buckets, only expired entries and
//! the port's own are evicted.

mod entry;
mod learn;
mod limits;
mod manage;
mod mix;
#[cfg(all(test, loom))]
mod model;
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
use entry::{Ageing, Entry, TAG_BITS};
use limits::{HoldDown, PortLimits};
use mix::{KEY_BITS, Mixer, random_key};

pub use learn::Learned;
pub use manage::{Binding, LastMove, Moves, StaticError};
pub use mix::FdbKey;

/// Ticks per second of the callers' clock, counted from any moment. The 32-bit tick must not wrap, which takes 13
/// years.
pub const TICKS_PER_SECOND: u32 = 10;

/// Number of ports.
pub const MAX_PORTS: usize = if cfg!(loom) { 4 } else { 1024 };

/// Entries per bucket: one cache line.
const WAYS: usize = if cfg!(loom) { 2 } else { 8 };
/// Minimum number of bucket bits, as a tag has no room for more of the key.
const MIN_BUCKET_BITS: u32 = KEY_BITS - TAG_BITS;

/// Size of a forwarding database, and limits on how fast it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbOptions {
    /// Addresses that can be learned: 1 to 4,194,304. Each takes 16 to 32 bytes, and the table at least 512 KiB.
    pub capacity: u32,
    /// Ticks after which an unseen address expires. IEEE 802.1Q clause 8.8.3 recommends 300 s.
    pub max_age: u32,
    /// Addresses that a port may have at a time, unless [`Fdb::set_limit`] overrides it.
    pub limit: u32,
    /// New addresses per second and port, unless [`Fdb::set_quota`] overrides it.
    pub new_per_second: u32,
    /// Moves per second to each port from other ports.
    pub moves_per_second: u32,
    /// Ticks for which an address that moved stays at its new port; 0: it may move with each frame.
    pub hold: u32,
}

impl FdbOptions {
    /// Largest capacity.
    pub const MAX_CAPACITY: u32 = 1 << 22;

    /// Defaults for a capacity: an age of 300 s; seven eighths of the capacity per port, so that a port that floods
    /// leaves room for others; 10,000 new addresses and 1,000 moves a second, which cost a worker about 0.1 % of its
    /// time; a hold-down of a second.
    #[must_use]
    pub const fn with_capacity(capacity: u32) -> Self {
        Self {
            capacity,
            max_age: 300 * TICKS_PER_SECOND,
            limit: capacity - capacity / 8,
            new_per_second: 10_000,
            moves_per_second: 1_000,
            hold: TICKS_PER_SECOND,
        }
    }
}

impl Default for FdbOptions {
    /// A capacity of 32,768 in 512 KiB, as a top-of-rack switch has.
    fn default() -> Self {
        Self::with_capacity(32_768)
    }
}

/// Why a forwarding database cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FdbError {
    /// The capacity is out of range.
    #[error("a forwarding database cannot hold {0} addresses: set a capacity of 1 to {max}", max = FdbOptions::MAX_CAPACITY)]
    Capacity(u32),
    /// The ageing time is 0.
    #[error("an ageing time of 0 expires addresses at once: IEEE 802.1Q recommends 300 s")]
    ZeroAge,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; WAYS]);

/// The forwarding database. The head of the module describes how it works.
pub struct Fdb {
    mixer: Mixer,
    buckets: Box<[Bucket]>,
    ageing: Ageing,
    options: FdbOptions,
    ports: Box<[PortLimits]>,
    /// Per port, how many addresses left it.
    port_generations: Box<[AtomicU32]>,
    generation: AtomicU32,
    learned: AtomicU32,
    /// Static and external entries.
    statics: AtomicU32,
    /// Counts entries that came, went or moved.
    changes: AtomicU32,
    sweep: AtomicU32,
    hold: HoldDown,
}

impl Fdb {
    /// Creates an empty database.
    ///
    /// # Errors
    /// [`FdbError`] if the capacity or the age is out of range.
    pub fn new(options: FdbOptions) -> Result<Self, FdbError> {
        if !(1..=FdbOptions::MAX_CAPACITY).contains(&options.capacity) {
            return Err(FdbError::Capacity(options.capacity));
        }
        if options.max_age == 0 {
            return Err(FdbError::ZeroAge);
        }
        // At most half full, so that both buckets of a key are hardly ever full.
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
            ports: (0..MAX_PORTS).map(|_| PortLimits::new(options.limit, options.new_per_second)).collect(),
            port_generations: (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect(),
            generation: AtomicU32::new(0),
            learned: AtomicU32::new(0),
            statics: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            sweep: AtomicU32::new(0),
            hold: HoldDown::new(options.hold),
        }
    }

    /// Hashes a VLAN and a MAC address. For a burst, hash all packets, [`Fdb::prefetch`] the keys, then call
    /// [`Fdb::learn_at`] and [`Fdb::lookup_at`]: the cache misses overlap.
    #[inline]
    #[must_use]
    pub fn key(&self, vlan: u16, mac: MacAddr) -> FdbKey {
        self.mixer.hash(vlan, mac)
    }

    /// Loads the primary buckets of the keys into the cache, all at once.
    #[inline]
    pub fn prefetch(&self, keys: &[FdbKey]) {
        // Independent loads, a few instructions apart: a prefetch without unsafe code.
        let word = |key: &FdbKey| self.bucket(key.bucket as usize).0[0].load(Ordering::Relaxed);
        black_box(keys.iter().fold(0, |all, key| all | word(key)));
    }

    /// The port that an address of a VLAN is behind at tick `now`; `None` if unknown.
    #[inline]
    #[must_use]
    pub fn lookup(&self, vlan: u16, mac: MacAddr, now: u32) -> Option<u16> {
        self.lookup_at(self.mixer.hash(vlan, mac), now)
    }

    /// Like [`Fdb::lookup`], with a key from [`Fdb::key`].
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
    fn search_first(&self, key: FdbKey) -> Entry {
        self.search(key.bucket as usize, entry::key(key.tag, false))
    }

    #[inline]
    fn search_second(&self, key: FdbKey) -> Entry {
        self.search(self.mixer.other_bucket(key.bucket as usize, key.tag), entry::key(key.tag, true))
    }

    #[inline]
    fn bucket(&self, number: usize) -> &Bucket {
        // Masked, as the key may come from another database.
        &self.buckets[number & (self.buckets.len() - 1)]
    }

    /// Port and stamp of a key's entry in a bucket; empty if the bucket does not have the key.
    #[inline]
    fn search(&self, bucket: usize, key: u64) -> Entry {
        // Reads all eight words. A branch on the way of the entry would be unpredictable.
        let distance = |slot: &AtomicU64| Entry(slot.load(Ordering::Relaxed)).distance(key);
        Entry::at_distance(
            self.bucket(bucket).0.iter().fold(u64::MAX, |least, slot| least.min(distance(slot))),
        )
    }

    /// Changes whenever an address leaves a port: it moved, expired, was flushed or evicted. A lookup result stays
    /// valid while this number stays the same.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Like [`Fdb::generation`], for addresses that leave this port, so that changes at one port leave cached lookups
    /// of other ports valid. 0 for an invalid port.
    #[inline]
    #[must_use]
    pub fn port_generation(&self, port: u16) -> u32 {
        self.port_generations.get(usize::from(port)).map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Changes whenever an address is added, moves or is removed.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Number of learned addresses behind a port. Expired ones count until they are swept.
    #[must_use]
    pub fn count(&self, port: u16) -> u32 {
        self.ports.get(usize::from(port)).map_or(0, |port| port.count.load(Ordering::Relaxed))
    }

    /// Number of learned addresses. Expired ones count until they are swept.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.learned.load(Ordering::Relaxed)
    }

    /// Whether no address is learned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The options given to [`Fdb::new`].
    #[must_use]
    pub const fn options(&self) -> &FdbOptions {
        &self.options
    }

    /// Limits the learned addresses of a port; 0 turns learning off. Addresses beyond the limit stay until they expire.
    pub fn set_limit(&self, port: u16, addresses: u32) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.limit.store(addresses, Ordering::Relaxed);
        }
    }

    /// Limits the new addresses per second of a port.
    pub fn set_quota(&self, port: u16, new_per_second: u32) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.quota.store(new_per_second, Ordering::Relaxed);
        }
    }

    /// Marks that an address left a port. Call it after the change.
    fn bump_generation(&self, port: u16) {
        if let Some(count) = self.port_generations.get(usize::from(port)) {
            count.fetch_add(1, Ordering::Release);
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Replaces the entry at `at` by compare-and-swap and updates the counters. A caller that writes a learned entry
    /// has first reserved it with its port and the table.
    fn replace(&self, at: (usize, usize), old: Entry, new: Entry) -> Result<(), Entry> {
        let (bucket, way) = at;
        let slot = &self.buckets[bucket].0[way];
        // Relaxed here and elsewhere: an entry is one word and points to nothing.
        slot.compare_exchange(old.0, new.0, Ordering::Relaxed, Ordering::Relaxed).map_err(Entry)?;
        if old.is_learned() {
            self.release(old.port());
        } else if !old.is_empty() {
            self.statics.fetch_sub(1, Ordering::Relaxed);
        }
        self.changes.fetch_add(1, Ordering::Release);
        let stays = new.has(old.0 >> 16) && new.port() == old.port() && !new.is_empty();
        if !old.is_empty() && !stays {
            self.bump_generation(old.port());
        }
        Ok(())
    }

    /// Returns a reservation of a learned entry to its port and the table.
    fn release(&self, port: u16) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.count.fetch_sub(1, Ordering::Relaxed);
        }
        self.learned.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fdb")
            .field("options", &self.options)
            .field("learned", &self.len())
            .finish_non_exhaustive()
    }
}
