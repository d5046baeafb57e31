//! Learning.

use netvm_wire::MacAddr;

use super::entry::{Ageing, STATIC, Word, key};
use super::mix::{FdbKey, Place};
use super::ports::{Port, reserve};
use super::{Fdb, MAX_PORTS, WAYS};
use crate::sync::{Ordering, fence};

/// What came of a source address. A packet may be forwarded whatever it is, unless its port wants only sources it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Learned {
    /// It is behind this port, as was known.
    Known,
    /// It was not known, and is now.
    New,
    /// It was behind another port.
    Moved {
        /// That port.
        from: u16,
    },
    /// It moved less than a second ago, or its new port has had its moves of this second: it stays behind the other port.
    HeldDown,
    /// It is behind another port by a static entry, and stays there.
    Static {
        /// That port.
        port: u16,
    },
    /// Not learnt: the port has as many addresses as it may have.
    LimitReached,
    /// Not learnt: the port has brought as many new addresses in this second as it may.
    OverQuota,
    /// Not learnt: the table has as many as it was made for, or the buckets of this address are full of what others own.
    TableFull,
    /// Not learnt: a group address or zero, which no frame may come from, or a port that cannot be.
    Refused,
}

/// Where a word was seen.
type At = (usize, usize);

/// What the buckets of an address hold.
pub(super) struct Seen {
    /// Its entry, the first where there are two.
    pub entry: Option<(At, Word)>,
    /// Places for a new entry, per bucket: how many are empty, and the first of them.
    empty: [(usize, usize); 2],
    /// The entry that can best be done without: the longest idle of the expired ones, else of the port's own.
    victim: Option<(At, Word)>,
}

impl Fdb {
    /// Learns that an address of a VLAN is behind a port, from a frame that came from there at the tick `now`.
    ///
    /// An address that is known costs one cache line that is read, and written once in 1/64 to 1/128 of the ageing time.
    #[inline]
    pub fn learn(&self, vlan: u16, mac: MacAddr, port: u16, now: u32) -> Learned {
        self.learn_at(self.mixer.hash(vlan, mac), port, now)
    }

    /// As [`Fdb::learn`].
    #[inline]
    pub fn learn_at(&self, key: FdbKey, port: u16, now: u32) -> Learned {
        let ages = Word::EMPTY.with(port, self.ageing.stamp(now));
        let stays = Word::EMPTY.with(port, STATIC);
        let is_known = |word| (word == ages || word == stays) && usize::from(port) < MAX_PORTS;
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
        let Some(owner) = self.ports.get(usize::from(port)) else { return Learned::Refused };
        let place = &self.mixer.place(key);
        let (_, mac) = self.mixer.key(place.bucket, place.tag);
        if mac.is_multicast() || mac == MacAddr::ZERO {
            return Learned::Refused;
        }
        // First of all, so that a flood of addresses that are refused costs little.
        if let Some(refusal) = owner.refusal(now).filter(|_| is_unknown) {
            return refusal;
        }
        let stamp = self.ageing.stamp(now);
        let mut admitted = false;
        // Another round means that another thread changed the entry in between: some thread gets on.
        loop {
            let seen = self.look(place, port, stamp);
            let Some((at, word)) = seen.entry else {
                match self.insert(place, &seen, (port, owner), now, &mut admitted) {
                    Some(learned) => return learned,
                    None => continue,
                }
            };
            if word.port() == port {
                if word.is_learnt() && self.ageing.is_older(word, stamp) {
                    // If this fails, somebody else saw it too, or it is gone and will be learnt from the next frame.
                    let slot = &self.buckets[at.0].0[at.1];
                    let new = word.with(port, stamp);
                    let _ = slot.compare_exchange(word.0, new.0, Ordering::Relaxed, Ordering::Relaxed);
                }
                return Learned::Known;
            }
            if word.is_static() {
                return Learned::Static { port: word.port() };
            }
            match self.shift(place, (at, word), (port, owner), now, &mut admitted) {
                Some(learned) => return learned,
                None => continue,
            }
        }
    }

    /// Takes an address over from another port; `None` when another thread was faster with something.
    fn shift(
        &self,
        place: &Place,
        (at, word): (At, Word),
        (port, owner): (u16, &Port),
        now: u32,
        admitted: &mut bool,
    ) -> Option<Learned> {
        let stamp = self.ageing.stamp(now);
        let expired = self.ageing.is_expired(word, stamp);
        if !*admitted {
            if owner.count.load(Ordering::Relaxed) >= owner.limit.load(Ordering::Relaxed) {
                return Some(Learned::LimitReached);
            }
            // What has expired is as good as new.
            let allowed = match expired {
                true => owner.arrivals.admit(now, owner.quota.load(Ordering::Relaxed)),
                false => {
                    owner.moves.has_room(now, self.options.moves_per_second)
                        && self.hold.may_move(place, now)
                        && owner.moves.admit(now, self.options.moves_per_second)
                }
            };
            if !allowed {
                return Some(if expired { Learned::OverQuota } else { Learned::HeldDown });
            }
            *admitted = true;
        }
        if !reserve(&owner.count, owner.limit.load(Ordering::Relaxed)) {
            return Some(Learned::LimitReached);
        }
        // The one that it takes the place of gives its own back.
        self.learnt.fetch_add(1, Ordering::Relaxed);
        if self.replace(at, word, word.with(port, stamp)).is_err() {
            self.release(port);
            return None;
        }
        Some(if expired { Learned::New } else { Learned::Moved { from: word.port() } })
    }

    /// Writes a new entry; `None` when another thread was faster with something.
    fn insert(
        &self,
        place: &Place,
        seen: &Seen,
        (port, owner): (u16, &Port),
        now: u32,
        admitted: &mut bool,
    ) -> Option<Learned> {
        let quota = owner.quota.load(Ordering::Relaxed);
        let limit = owner.limit.load(Ordering::Relaxed);
        if let Some(refusal) = owner.refusal(now).filter(|_| !*admitted) {
            return Some(refusal);
        }
        let target = seen.empty(place).or(seen.victim);
        // In place of a learnt entry, which gives its own back.
        let swaps = target.is_some_and(|(_, old)| old.is_learnt());
        let Some((at, old)) = target else { return Some(Learned::TableFull) };
        if !reserve(&owner.count, limit) {
            return Some(Learned::LimitReached);
        }
        let capacity = if swaps { u32::MAX } else { self.options.capacity };
        if !reserve(&self.learnt, capacity) {
            owner.count.fetch_sub(1, Ordering::Relaxed);
            return Some(Learned::TableFull);
        }
        if !*admitted && !owner.arrivals.admit(now, quota) {
            self.release(port);
            return Some(Learned::OverQuota);
        }
        *admitted = true;
        let second = at.0 == place.alternate;
        let new = Word::learnt(place, second, port, self.ageing.stamp(now));
        if self.replace(at, old, new).is_err() {
            self.release(port);
            return None;
        }
        self.keep_first(place, at).then_some(Learned::New)
    }

    /// After an entry was written at `at`: leaves only the first of those that there are for the address. Whether the one
    /// that was written stayed.
    pub(super) fn keep_first(&self, place: &Place, at: At) -> bool {
        // Of two threads that wrote and then look, one at least sees what the other wrote.
        fence(Ordering::SeqCst);
        let mut before = true;
        for (bucket, second) in [(place.bucket, false), (place.alternate, true)] {
            for way in 0..WAYS {
                if (bucket, way) == at {
                    before = false;
                    continue;
                }
                let word = Word(self.buckets[bucket].0[way].load(Ordering::Relaxed));
                if word.is_empty() || !word.has(key(place.tag, second)) {
                    continue;
                }
                if before {
                    self.remove(at, key(place.tag, at.0 == place.alternate));
                    return false;
                }
                self.remove((bucket, way), key(place.tag, second));
            }
        }
        true
    }

    /// Takes away the entry of a key, if that is still there.
    pub(super) fn remove(&self, at: At, key: u64) -> bool {
        let mut word = Word(self.buckets[at.0].0[at.1].load(Ordering::Relaxed));
        while !word.is_empty() && word.has(key) {
            match self.replace(at, word, Word::EMPTY) {
                Ok(()) => return true,
                Err(found) => word = found,
            }
        }
        false
    }

    /// Reads both buckets of an address.
    pub(super) fn look(&self, place: &Place, port: u16, stamp: u8) -> Seen {
        let mut seen = Seen { entry: None, empty: [(0, 0); 2], victim: None };
        let mut worst = (false, 0);
        for (second, bucket) in [place.bucket, place.alternate].into_iter().enumerate() {
            let key = key(place.tag, second == 1);
            for way in (0..WAYS).rev() {
                let at = (bucket, way);
                let word = Word(self.buckets[bucket].0[way].load(Ordering::Relaxed));
                if word.is_empty() {
                    seen.empty[second] = (seen.empty[second].0 + 1, way);
                } else if word.has(key) {
                    if seen.entry.is_none_or(|(found, _)| found.0 == bucket) {
                        seen.entry = Some((at, word));
                    }
                } else if word.is_learnt() {
                    let expired = self.ageing.is_expired(word, stamp);
                    let rank = (expired, Ageing::units_idle(word, stamp));
                    if (expired || word.port() == port) && (seen.victim.is_none() || rank > worst) {
                        worst = rank;
                        seen.victim = Some((at, word));
                    }
                }
            }
        }
        seen
    }
}

impl Seen {
    /// An empty place: in the first bucket while that has room to spare, then in the emptier of the two, so that few look-ups
    /// need the second and neither runs full.
    pub fn empty(&self, place: &Place) -> Option<(At, Word)> {
        const SPARE: usize = 2;
        let [(first, first_way), (second, second_way)] = self.empty;
        if first > SPARE || (first > 0 && first >= second) {
            Some(((place.bucket, first_way), Word::EMPTY))
        } else if second > 0 {
            Some(((place.alternate, second_way), Word::EMPTY))
        } else {
            None
        }
    }
}
