// SPDX-License-Identifier: Apache-2.0
//! Learning: records the port that a source address sends from.
//!
//! [`Fdb::learn`] runs for every packet. A known address costs one cache line read, and one write in 1/16 to 1/32 of
//! the ageing time. New and moved addresses take the slow path.

use netvm_wire::MacAddr;

use super::entry::{Ageing, EXTERNAL, Entry, STATIC, key};
use super::limits::{PortLimits, reserve};
use super::mix::{BucketPair, FdbKey};
use super::{Fdb, MAX_PORTS, WAYS};
use crate::sync::{Ordering, fence};

/// The result of learning a source address. The packet may be forwarded in any case, unless its port admits known
/// sources only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Learned {
    /// The address was already known behind this port.
    Known,
    /// The address was unknown and is now learned.
    New,
    /// The address moved here from another port.
    Moved {
        /// The previous port.
        from: u16,
    },
    /// Another port keeps the address for now: it moved less than the hold time ago, or this port has used its moves of
    /// this second. [`Fdb::settle_claims`] moves it unless its port sends from it again.
    HeldDown,
    /// Another port has the address by a static entry and keeps it.
    Static {
        /// The port of the static entry.
        port: u16,
    },
    /// Not learned: the port has reached its address limit.
    LimitReached,
    /// Not learned: the port has used its quota of new addresses for this second.
    OverQuota,
    /// Not learned: the table has reached its capacity, or other ports' entries fill both buckets of the address.
    TableFull,
    /// Not learned: the source is a group address or zero, or the port number is invalid.
    Refused,
}

/// Bucket and way of an entry.
type Slot = (usize, usize);

/// A source address to learn, and the state of the attempt.
struct LearnRequest<'a> {
    pair: BucketPair,
    port: u16,
    limits: &'a PortLimits,
    now: u32,
    stamp: u8,
    /// Whether the quota has been charged; a retry is free.
    is_admitted: bool,
}

/// What a scan of both buckets of a key found.
pub(super) struct Scan {
    /// The entry of the key, the first if there are two.
    pub entry: Option<(Slot, Entry)>,
    /// Per bucket, the number of empty slots and the first of them.
    empty: [(usize, usize); 2],
    /// The entry to evict: the longest idle of the expired entries, otherwise of the port's own.
    victim: Option<(Slot, Entry)>,
}

impl Fdb {
    /// Learns that `mac` in `vlan` is behind `port`, from a frame received there at tick `now`.
    #[inline]
    pub fn learn(&self, vlan: u16, mac: MacAddr, port: u16, now: u32) -> Learned {
        self.learn_at(self.mixer.hash(vlan, mac), port, now)
    }

    /// Like [`Fdb::learn`], with a key from [`Fdb::key`].
    #[inline]
    pub fn learn_at(&self, key: FdbKey, port: u16, now: u32) -> Learned {
        let ages = Entry::EMPTY.with(port, self.ageing.stamp(now));
        let [said, stays] = [EXTERNAL, STATIC].map(|stamp| Entry::EMPTY.with(port, stamp));
        let is_known =
            |word| (word == ages || word == stays || word == said) && usize::from(port) < MAX_PORTS;
        let first = self.search_first(key);
        if is_known(first) {
            return Learned::Known;
        }
        let second = self.search_second(key);
        if is_known(second) {
            return Learned::Known;
        }
        self.learn_slowly(key, port, now, first.is_empty() && second.is_empty())
    }

    #[cold]
    #[inline(never)]
    fn learn_slowly(&self, key: FdbKey, port: u16, now: u32, is_unknown: bool) -> Learned {
        let Some(limits) = self.ports.get(usize::from(port)) else { return Learned::Refused };
        let pair = self.mixer.bucket_pair(key);
        let (_, mac) = self.mixer.key(pair.primary, pair.tag);
        if mac.is_multicast() || mac == MacAddr::ZERO {
            return Learned::Refused;
        }
        // Checked first, so that a flood of refused addresses stays cheap.
        if let Some(refusal) = limits.refusal(now).filter(|_| is_unknown) {
            return refusal;
        }
        let mut request =
            LearnRequest { pair, port, limits, now, stamp: self.ageing.stamp(now), is_admitted: false };
        // A retry means that another thread changed the entry meanwhile, so some thread makes progress.
        loop {
            let scan = self.scan_buckets(&request.pair, port, request.stamp);
            let learned = match scan.entry {
                None => self.insert(&mut request, &scan),
                Some((at, entry)) if entry.port() == port => {
                    self.refresh(at, entry, &request);
                    return Learned::Known;
                }
                Some((_, entry)) if entry.is_static() => return Learned::Static { port: entry.port() },
                Some((at, entry)) => self.take_over(&mut request, at, entry),
            };
            if let Some(learned) = learned {
                return learned;
            }
        }
    }

    /// Renews the stamp of the port's own entry.
    fn refresh(&self, at: Slot, entry: Entry, request: &LearnRequest<'_>) {
        if entry.is_learned() && self.ageing.is_older(entry, request.stamp) {
            self.hold.withdraw(self.mixer.join(&request.pair));
            // If this fails, another thread refreshed the entry first, or it is gone and the next frame learns it
            // again.
            let slot = &self.buckets[at.0].0[at.1];
            let new = entry.with(request.port, request.stamp);
            let _ = slot.compare_exchange(entry.0, new.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Moves an address here from another port; `None` if another thread changed the entry first.
    fn take_over(&self, request: &mut LearnRequest<'_>, at: Slot, entry: Entry) -> Option<Learned> {
        let LearnRequest { ref pair, port, limits, now, stamp, .. } = *request;
        let expired = self.ageing.is_expired(entry, stamp);
        if !request.is_admitted {
            if limits.count.load(Ordering::Relaxed) >= limits.limit.load(Ordering::Relaxed) {
                return Some(Learned::LimitReached);
            }
            // An expired entry counts as a new address, not as a move.
            let allowed = match expired {
                true => limits.arrivals.admit(now, limits.quota.load(Ordering::Relaxed)),
                false => {
                    limits.moves.has_room(now, self.options.moves_per_second)
                        && self.hold.may_move(pair, now)
                        && limits.moves.admit(now, self.options.moves_per_second)
                }
            };
            if !allowed {
                return Some(if expired { Learned::OverQuota } else { self.hold_down(request, at, entry) });
            }
            request.is_admitted = true;
        }
        if !reserve(&limits.count, limits.limit.load(Ordering::Relaxed)) {
            return Some(Learned::LimitReached);
        }
        // Without a check against the capacity, as `replace` releases the old entry.
        self.learned.fetch_add(1, Ordering::Relaxed);
        if self.replace(at, entry, entry.with(port, stamp)).is_err() {
            self.release(port);
            return None;
        }
        if expired {
            return Some(Learned::New);
        }
        let address = self.mixer.join(pair);
        self.hold.withdraw(address);
        limits.count_move(&limits.moved, address, entry.port());
        Some(Learned::Moved { from: entry.port() })
    }

    /// Records a claim to an address that another port keeps for now. The entry is stamped as older, so that the next
    /// frame from its own port takes the slow path, which withdraws the claim.
    fn hold_down(&self, request: &LearnRequest<'_>, at: Slot, entry: Entry) -> Learned {
        let address = self.mixer.join(&request.pair);
        request.limits.count_move(&request.limits.held, address, entry.port());
        self.hold.claim(address, request.port);
        let older = entry.with(entry.port(), Ageing::before(request.stamp));
        if !self.ageing.is_older(entry, request.stamp) {
            let slot = &self.buckets[at.0].0[at.1];
            // If this fails, another thread has changed the entry, so this claim may be out of date: a later one
            // follows.
            let _ = slot.compare_exchange(entry.0, older.0, Ordering::Relaxed, Ordering::Relaxed);
        }
        Learned::HeldDown
    }

    /// Writes a new entry; `None` if another thread changed the slot first.
    fn insert(&self, request: &mut LearnRequest<'_>, scan: &Scan) -> Option<Learned> {
        let LearnRequest { ref pair, port, limits, now, stamp, .. } = *request;
        let quota = limits.quota.load(Ordering::Relaxed);
        let limit = limits.limit.load(Ordering::Relaxed);
        if let Some(refusal) = limits.refusal(now).filter(|_| !request.is_admitted) {
            return Some(refusal);
        }
        let target = scan.empty(pair).or(scan.victim);
        let Some((at, old)) = target else { return Some(Learned::TableFull) };
        if !reserve(&limits.count, limit) {
            return Some(Learned::LimitReached);
        }
        // `replace` releases a learned entry that this one overwrites.
        let capacity = if old.is_learned() { u32::MAX } else { self.options.capacity };
        if !reserve(&self.learned, capacity) {
            limits.count.fetch_sub(1, Ordering::Relaxed);
            return Some(Learned::TableFull);
        }
        if !request.is_admitted && !limits.arrivals.admit(now, quota) {
            self.release(port);
            return Some(Learned::OverQuota);
        }
        request.is_admitted = true;
        let new = Entry::new_learned(pair, at.0 == pair.secondary, port, stamp);
        if self.replace(at, old, new).is_err() {
            self.release(port);
            return None;
        }
        self.hold.withdraw(self.mixer.join(pair));
        self.keep_first(pair, at).then_some(Learned::New)
    }

    /// Removes duplicates after writing an entry at `at`: the first entry in bucket order stays. Returns whether that
    /// is the entry just written.
    pub(super) fn keep_first(&self, pair: &BucketPair, at: Slot) -> bool {
        // Of two threads that each write and then look, at least one sees the other's entry.
        fence(Ordering::SeqCst);
        let mut before = true;
        for (bucket, is_secondary) in [(pair.primary, false), (pair.secondary, true)] {
            for way in 0..WAYS {
                if (bucket, way) == at {
                    before = false;
                    continue;
                }
                let entry = Entry(self.buckets[bucket].0[way].load(Ordering::Relaxed));
                if entry.is_empty() || !entry.has(key(pair.tag, is_secondary)) {
                    continue;
                }
                if before {
                    self.remove(at, key(pair.tag, at.0 == pair.secondary));
                    return false;
                }
                self.remove((bucket, way), key(pair.tag, is_secondary));
            }
        }
        true
    }

    /// Removes the entry of a key if the slot still has it.
    pub(super) fn remove(&self, at: Slot, key: u64) -> bool {
        let mut entry = Entry(self.buckets[at.0].0[at.1].load(Ordering::Relaxed));
        while !entry.is_empty() && entry.has(key) {
            match self.replace(at, entry, Entry::EMPTY) {
                Ok(()) => return true,
                Err(found) => entry = found,
            }
        }
        false
    }

    /// Scans both buckets of a key.
    pub(super) fn scan_buckets(&self, pair: &BucketPair, port: u16, stamp: u8) -> Scan {
        let mut scan = Scan { entry: None, empty: [(0, 0); 2], victim: None };
        let mut worst = (false, 0);
        for (index, bucket) in [pair.primary, pair.secondary].into_iter().enumerate() {
            let key = key(pair.tag, index == 1);
            for way in (0..WAYS).rev() {
                let at = (bucket, way);
                let entry = Entry(self.buckets[bucket].0[way].load(Ordering::Relaxed));
                if entry.is_empty() {
                    scan.empty[index] = (scan.empty[index].0 + 1, way);
                } else if entry.has(key) {
                    if scan.entry.is_none_or(|(found, _)| found.0 == bucket) {
                        scan.entry = Some((at, entry));
                    }
                } else if entry.is_learned() {
                    let expired = self.ageing.is_expired(entry, stamp);
                    let rank = (expired, Ageing::units_idle(entry, stamp));
                    if (expired || entry.port() == port) && (scan.victim.is_none() || rank > worst) {
                        worst = rank;
                        scan.victim = Some((at, entry));
                    }
                }
            }
        }
        scan
    }
}

impl Scan {
    /// Picks an empty slot: in the primary bucket while that has room to spare, then in the emptier of the two. So few
    /// lookups need the secondary bucket and neither bucket fills up.
    pub fn empty(&self, pair: &BucketPair) -> Option<(Slot, Entry)> {
        const SPARE: usize = 2;
        let [(in_primary, first_way), (in_secondary, second_way)] = self.empty;
        if in_primary > SPARE || (in_primary > 0 && in_primary >= in_secondary) {
            Some(((pair.primary, first_way), Entry::EMPTY))
        } else if in_secondary > 0 {
            Some(((pair.secondary, second_way), Entry::EMPTY))
        } else {
            None
        }
    }
}
