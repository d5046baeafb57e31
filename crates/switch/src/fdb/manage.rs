// SPDX-License-Identifier: Apache-2.0
//! Control plane of the forwarding database: ageing, flushing, static and external entries, and listing.

use netvm_wire::MacAddr;
use thiserror::Error;

use super::entry::Entry;
use super::learn::Learned;
use super::limits::reserve;
use super::mix::{BucketPair, FdbKey};
use super::{Fdb, MAX_PORTS, WAYS};
use crate::sync::Ordering;

/// An address and the port it is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding {
    /// The VLAN; 0 for VLAN-unaware ports.
    pub vlan: u16,
    /// The MAC address.
    pub mac: MacAddr,
    /// The port.
    pub port: u16,
    /// Ticks since the address was last seen, to 1/16 of the ageing time; `None` for one that was not learned.
    pub idle: Option<u32>,
    /// A control plane has said it: [`Fdb::add_external`].
    pub is_external: bool,
}

/// Addresses that came to a port from other ports, or tried to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Addresses that moved here.
    pub moved: u64,
    /// Frames whose source address another port kept, because it had moved there less than the hold time ago.
    pub held: u64,
}

/// The last address that came to a port from another, or tried to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastMove {
    /// Its VLAN; 0 for VLAN-unaware ports.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The port that had it, or kept it.
    pub other: u16,
}

/// Why a static entry cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StaticError {
    /// The address is a group address or zero.
    #[error("{0} cannot be bound to a port: it is a group address or zero")]
    NotUnicast(MacAddr),
    /// The port number is too large.
    #[error("port {0} does not exist: port numbers are below {MAX_PORTS}")]
    Port(u16),
    /// Static entries have reached half of the capacity.
    #[error(
        "the forwarding database already has {0} static addresses, or such of a control plane, half of its capacity: raise \
         the capacity"
    )]
    TooMany(u32),
    /// Static entries fill both buckets of the address.
    #[error("no room for {0}: static addresses fill both of its hash buckets; raise the capacity")]
    Full(MacAddr),
}

impl Fdb {
    /// Number of buckets to sweep.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Removes expired entries from the next `buckets` buckets and returns how many it removed.
    ///
    /// Sweep every bucket at least once in half of the ageing time: an entry's stamp wraps after nearly twice the
    /// ageing time.
    pub fn age(&self, now: u32, buckets: usize) -> usize {
        let stamp = self.ageing.stamp(now);
        let buckets = buckets.min(self.buckets.len());
        let start = self.sweep.fetch_add(buckets as u32, Ordering::Relaxed) as usize;
        (start..start + buckets)
            .map(|bucket| {
                let bucket = bucket & (self.buckets.len() - 1);
                self.sweep_bucket(bucket, |entry| self.ageing.is_expired(entry, stamp))
            })
            .sum()
    }

    /// Moves addresses that a port claimed while they were held down, unless their own port has sent from them since.
    /// Returns how many moved. Call it once in each hold time: a claim waits for one to two of these.
    pub fn settle_claims(&self, now: u32) -> usize {
        let moved = |(address, port)| {
            matches!(self.learn_at(self.mixer.split(address), port, now), Learned::Moved { .. })
        };
        self.hold.due().map(moved).filter(|moved| *moved).count()
    }

    /// Addresses that came to a port from others since the start.
    #[must_use]
    pub fn moves(&self, port: u16) -> Moves {
        self.ports.get(usize::from(port)).map_or_else(Moves::default, |port| Moves {
            moved: port.moved.load(Ordering::Relaxed),
            held: port.held.load(Ordering::Relaxed),
        })
    }

    /// The last of these addresses; `None` if there was none.
    #[must_use]
    pub fn last_move(&self, port: u16) -> Option<LastMove> {
        let Moves { moved, held } = self.moves(port);
        let (address, other) = self.ports.get(usize::from(port))?.last_move();
        let (vlan, mac) = self.mixer.unmix(address);
        (moved + held > 0).then_some(LastMove { vlan, mac, other })
    }

    /// Removes every learned address of a port, as when its link goes down, and returns how many it removed.
    ///
    /// A worker that still handles frames of the port learns their addresses again.
    pub fn flush_port(&self, port: u16) -> usize {
        self.sweep_all(|entry| entry.is_learned() && entry.port() == port)
    }

    /// Removes every learned address of a VLAN and returns how many it removed.
    pub fn flush_vlan(&self, vlan: u16) -> usize {
        let of_vlan = |bucket, entry: Entry| entry.is_learned() && self.key_at(bucket, entry).0 == vlan;
        let sweep = |bucket| self.sweep_bucket(bucket, |entry| of_vlan(bucket, entry));
        (0..self.buckets.len()).map(sweep).sum()
    }

    /// Removes every address, static ones too, of ports that are not to be kept, and returns how many it removed. For
    /// ports that are deleted.
    pub fn retain_ports(&self, keep: impl Fn(u16) -> bool) -> usize {
        self.sweep_all(|entry| !entry.is_empty() && !keep(entry.port()))
    }

    /// Binds an address of a VLAN to a port. The entry replaces what was learned or said of the address, does not move
    /// or age, and does not count against limits.
    ///
    /// # Errors
    /// [`StaticError`].
    pub fn add_static(&self, vlan: u16, mac: MacAddr, port: u16) -> Result<(), StaticError> {
        self.bind(self.mixer.hash(vlan, mac), port, Entry::new_static).map(drop)
    }

    /// Notes that a control plane has said behind which port an address of a VLAN is. The entry replaces what was
    /// learned of it and does not age, but another port that sends from the address takes it. Returns false, and
    /// changes nothing, if the address is bound by a static entry.
    ///
    /// # Errors
    /// [`StaticError`].
    pub fn add_external(&self, vlan: u16, mac: MacAddr, port: u16) -> Result<bool, StaticError> {
        self.bind(self.mixer.hash(vlan, mac), port, Entry::new_external)
    }

    /// Binds an address by an entry that `make` makes. An external one does not replace a static one: false then.
    fn bind(
        &self,
        key: FdbKey,
        port: u16,
        make: impl Fn(&BucketPair, bool, u16) -> Entry,
    ) -> Result<bool, StaticError> {
        let pair = self.mixer.bucket_pair(key);
        let (_, mac) = self.mixer.key(pair.primary, pair.tag);
        if mac.is_multicast() || mac == MacAddr::ZERO {
            return Err(StaticError::NotUnicast(mac));
        }
        if usize::from(port) >= MAX_PORTS {
            return Err(StaticError::Port(port));
        }
        let most = (self.options.capacity / 2).max(1);
        loop {
            let scan = self.scan_buckets(&pair, port, 0);
            let target = scan.entry.or_else(|| scan.empty(&pair)).or_else(|| self.learned_victim(&pair));
            let (at, old) = target.ok_or(StaticError::Full(mac))?;
            let new = make(&pair, at.0 == pair.secondary, port);
            if new.is_external() && old.is_static() {
                return Ok(false);
            }
            // `replace` releases a static entry that this one overwrites.
            let has_place = old.is_static() || old.is_external();
            if !reserve(&self.statics, if has_place { u32::MAX } else { most }) {
                return Err(StaticError::TooMany(most));
            }
            if self.replace(at, old, new).is_err() {
                self.statics.fetch_sub(1, Ordering::Relaxed);
            } else if self.keep_first(&pair, at) {
                return Ok(true);
            }
        }
    }

    /// Removes a static entry and returns whether there was one.
    pub fn remove_static(&self, vlan: u16, mac: MacAddr) -> bool {
        self.unbind(self.mixer.hash(vlan, mac), Entry::is_static)
    }

    /// Removes what a control plane has said of an address, unless another port has taken it; returns whether it did.
    pub fn remove_external(&self, vlan: u16, mac: MacAddr, port: u16) -> bool {
        self.unbind(self.mixer.hash(vlan, mac), |entry| entry.is_external() && entry.port() == port)
    }

    fn unbind(&self, key: FdbKey, is_it: impl Fn(Entry) -> bool) -> bool {
        let pair = self.mixer.bucket_pair(key);
        match self.scan_buckets(&pair, 0, 0).entry {
            Some((at, entry)) => is_it(entry) && self.replace(at, entry, Entry::EMPTY).is_ok(),
            None => false,
        }
    }

    /// The entries at tick `now`, in no order. Entries that change meanwhile may be missing.
    pub fn entries(&self, now: u32) -> impl Iterator<Item = Binding> {
        let stamp = self.ageing.stamp(now);
        self.buckets.iter().enumerate().flat_map(move |(bucket, slots)| {
            slots.0.iter().filter_map(move |slot| {
                let entry = Entry(slot.load(Ordering::Relaxed));
                if entry.is_empty() || self.ageing.is_expired(entry, stamp) {
                    return None;
                }
                let (vlan, mac) = self.key_at(bucket, entry);
                let idle = entry.is_learned().then(|| self.ageing.ticks_idle(entry, stamp));
                Some(Binding { vlan, mac, port: entry.port(), idle, is_external: entry.is_external() })
            })
        })
    }

    /// A learned entry of another address that a static entry may evict.
    fn learned_victim(&self, pair: &BucketPair) -> Option<((usize, usize), Entry)> {
        let ways = |bucket| (0..WAYS).map(move |way| (bucket, way));
        let load = |(bucket, way): (usize, usize)| Entry(self.buckets[bucket].0[way].load(Ordering::Relaxed));
        let mut entries = ways(pair.primary).chain(ways(pair.secondary)).map(|at| (at, load(at)));
        entries.find(|(_, entry)| entry.is_learned())
    }

    fn key_at(&self, bucket: usize, entry: Entry) -> (u16, MacAddr) {
        let first = if entry.is_secondary() { self.mixer.other_bucket(bucket, entry.tag()) } else { bucket };
        self.mixer.key(first, entry.tag())
    }

    fn sweep_all(&self, gone: impl Fn(Entry) -> bool) -> usize {
        (0..self.buckets.len()).map(|bucket| self.sweep_bucket(bucket, &gone)).sum()
    }

    fn sweep_bucket(&self, bucket: usize, gone: impl Fn(Entry) -> bool) -> usize {
        let mut count = 0;
        for (way, slot) in self.buckets[bucket].0.iter().enumerate() {
            let mut entry = Entry(slot.load(Ordering::Relaxed));
            // Checks again if another thread refreshed or moved the entry meanwhile.
            while gone(entry) {
                match self.replace((bucket, way), entry, Entry::EMPTY) {
                    Ok(()) => {
                        count += 1;
                        break;
                    }
                    Err(found) => entry = found,
                }
            }
        }
        count
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::fdb::FdbOptions;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    const LOCAL: u16 = 1;
    const TUNNEL: u16 = 9;

    fn fdb() -> Fdb {
        let fdb = Fdb::new(FdbOptions::with_capacity(64)).unwrap();
        // A port behind which only a control plane knows addresses.
        fdb.set_limit(TUNNEL, 0);
        fdb
    }

    fn kind(fdb: &Fdb, now: u32) -> Option<(u16, bool, bool)> {
        let found: Vec<_> = fdb.entries(now).collect();
        assert!(found.len() <= 1 && found.iter().all(|one| (one.vlan, one.mac) == (5, MAC)), "{found:?}");
        found.first().map(|one| (one.port, one.is_external, one.idle.is_some()))
    }

    #[test]
    fn what_a_control_plane_says_moves_from_and_to_ports_and_does_not_age() {
        let (fdb, old) = (fdb(), 10 * 300 * 10);
        assert_eq!(fdb.learn(5, MAC, LOCAL, 0), Learned::New);
        let before = (fdb.port_generation(LOCAL), fdb.changes());
        assert_eq!(fdb.add_external(5, MAC, TUNNEL), Ok(true));
        assert_eq!((fdb.lookup(5, MAC, 0), fdb.len(), fdb.count(LOCAL)), (Some(TUNNEL), 0, 0));
        assert_ne!(fdb.port_generation(LOCAL), before.0, "cached lookups of the port are out of date");
        assert_ne!(fdb.changes(), before.1);
        // Its own packets change nothing, nor does time.
        assert_eq!(fdb.learn(5, MAC, TUNNEL, 1), Learned::Known);
        assert_eq!(fdb.age(old, fdb.buckets()), 0);
        assert_eq!(kind(&fdb, old), Some((TUNNEL, true, false)));
        assert_eq!(fdb.flush_port(TUNNEL), 0);
        // It comes to a port that sends from it, and the control plane says so later.
        assert_eq!(fdb.learn(5, MAC, LOCAL, old), Learned::Moved { from: TUNNEL });
        assert_eq!(kind(&fdb, old), Some((LOCAL, false, true)));
        assert!(!fdb.remove_external(5, MAC, TUNNEL), "the port has taken it");
        assert_eq!(fdb.lookup(5, MAC, old), Some(LOCAL));
        // The tunnel does not take it back by packets.
        assert_eq!(fdb.learn(5, MAC, TUNNEL, old), Learned::LimitReached);
        assert_eq!(fdb.add_external(5, MAC, TUNNEL), Ok(true));
        assert!(fdb.remove_external(5, MAC, TUNNEL) && kind(&fdb, old).is_none());
        assert_eq!((fdb.statics.load(Ordering::Relaxed), fdb.len()), (0, 0));
    }

    #[test]
    fn a_static_address_stays_where_it_is_and_room_is_bounded() {
        let fdb = fdb();
        fdb.add_static(5, MAC, LOCAL).unwrap();
        let before = fdb.changes();
        assert_eq!(fdb.add_external(5, MAC, TUNNEL), Ok(false));
        assert!(!fdb.remove_external(5, MAC, LOCAL) && fdb.changes() == before);
        assert_eq!(kind(&fdb, 0), Some((LOCAL, false, false)));
        // A static entry takes the place of what was said.
        assert!(fdb.remove_static(5, MAC));
        fdb.add_external(5, MAC, TUNNEL).unwrap();
        fdb.add_static(5, MAC, LOCAL).unwrap();
        assert_eq!((kind(&fdb, 0), fdb.statics.load(Ordering::Relaxed)), (Some((LOCAL, false, false)), 1));
        let other = |n: u8| fdb.add_external(5, MacAddr([2, 0, 0, 0, 1, n]), TUNNEL);
        assert!((0..31).all(|n| other(n) == Ok(true)));
        assert_eq!(other(31), Err(StaticError::TooMany(32)));
        assert_eq!(other(3), Ok(true), "it is there already");
        assert_eq!(
            fdb.add_external(5, MacAddr([1; 6]), TUNNEL),
            Err(StaticError::NotUnicast(MacAddr([1; 6])))
        );
    }
}
