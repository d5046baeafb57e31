//! What the control plane does: ageing, flushing, static entries, listing.

use netvm_wire::MacAddr;
use thiserror::Error;

use super::entry::Word;
use super::mix::Place;
use super::ports::reserve;
use super::{Fdb, MAX_PORTS, WAYS};
use crate::sync::Ordering;

/// An address and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding {
    /// The VLAN; 0 where ports know none.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The port.
    pub port: u16,
    /// Ticks since it was last seen, to 1/64 of the ageing time; `None` for a static one.
    pub idle: Option<u32>,
}

/// Why an address cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StaticError {
    /// It is not the address of one station.
    #[error("{0} cannot be bound to a port: it is a group address or zero")]
    NotAStation(MacAddr),
    /// There is no such port.
    #[error("port {0} cannot have addresses: ports are below {MAX_PORTS}")]
    Port(u16),
    /// There are too many.
    #[error(
        "there are {0} static addresses, half as many as can be learnt: make the forwarding database larger"
    )]
    TooMany(u32),
    /// Chance put too many into the same place.
    #[error("there is no room for {0}: the places that it may have are full of static addresses")]
    Full(MacAddr),
}

impl Fdb {
    /// How many buckets there are to sweep.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Forgets what has expired in the next `buckets` buckets; how many addresses those were.
    ///
    /// All buckets must be swept once in half of the ageing time, as the time of an entry wraps after nearly twice that.
    pub fn age(&self, now: u32, buckets: usize) -> usize {
        let stamp = self.ageing.stamp(now);
        let buckets = buckets.min(self.buckets.len());
        let start = self.sweep.fetch_add(buckets as u32, Ordering::Relaxed) as usize;
        (start..start + buckets)
            .map(|bucket| {
                let bucket = bucket & (self.buckets.len() - 1);
                self.sweep_bucket(bucket, |word| self.ageing.is_expired(word, stamp))
            })
            .sum()
    }

    /// Forgets every learnt address of a port, as when its link goes down; how many those were.
    ///
    /// A worker that still handles frames of the port learns from them again.
    pub fn flush_port(&self, port: u16) -> usize {
        self.sweep_all(|word| word.is_learnt() && word.port() == port)
    }

    /// Forgets every learnt address of a VLAN; how many those were.
    pub fn flush_vlan(&self, vlan: u16) -> usize {
        let of_vlan = |bucket, word: Word| word.is_learnt() && self.key_at(bucket, word).0 == vlan;
        let sweep = |bucket| self.sweep_bucket(bucket, |word| of_vlan(bucket, word));
        (0..self.buckets.len()).map(sweep).sum()
    }

    /// Forgets every address of a port, static ones too, as when the port is removed; how many those were.
    pub fn remove_port(&self, port: u16) -> usize {
        self.sweep_all(|word| !word.is_empty() && word.port() == port)
    }

    /// Binds an address of a VLAN to a port: it is not learnt elsewhere, does not age, and does not count against limits. It
    /// takes the place of what was known of the address.
    ///
    /// # Errors
    /// [`StaticError`].
    pub fn add_static(&self, vlan: u16, mac: MacAddr, port: u16) -> Result<(), StaticError> {
        if mac.is_multicast() || mac == MacAddr::ZERO {
            return Err(StaticError::NotAStation(mac));
        }
        if usize::from(port) >= MAX_PORTS {
            return Err(StaticError::Port(port));
        }
        let most = (self.options.capacity / 2).max(1);
        let place = self.mixer.place(self.mixer.hash(vlan, mac));
        loop {
            let seen = self.look(&place, port, 0);
            let target = seen.entry.or_else(|| seen.empty(&place)).or_else(|| self.any_learnt(&place));
            let (at, old) = target.ok_or(StaticError::Full(mac))?;
            // In place of a static one, which gives its own back.
            if !reserve(&self.fixed, if old.is_static() { u32::MAX } else { most }) {
                return Err(StaticError::TooMany(most));
            }
            let new = Word::fixed(&place, at.0 == place.alternate, port);
            if self.replace(at, old, new).is_err() {
                self.fixed.fetch_sub(1, Ordering::Relaxed);
            } else if self.keep_first(&place, at) {
                return Ok(());
            }
        }
    }

    /// Takes away a static entry; whether there was one.
    pub fn remove_static(&self, vlan: u16, mac: MacAddr) -> bool {
        let place = self.mixer.place(self.mixer.hash(vlan, mac));
        match self.look(&place, 0, 0).entry {
            Some((at, word)) => word.is_static() && self.replace(at, word, Word::EMPTY).is_ok(),
            None => false,
        }
    }

    /// What is known at the tick `now`, in no order. What changes meanwhile may be in it or not.
    pub fn entries(&self, now: u32) -> impl Iterator<Item = Binding> {
        let stamp = self.ageing.stamp(now);
        self.buckets.iter().enumerate().flat_map(move |(bucket, slots)| {
            slots.0.iter().filter_map(move |slot| {
                let word = Word(slot.load(Ordering::Relaxed));
                if word.is_empty() || self.ageing.is_expired(word, stamp) {
                    return None;
                }
                let (vlan, mac) = self.key_at(bucket, word);
                let idle = word.is_learnt().then(|| self.ageing.ticks_idle(word, stamp));
                Some(Binding { vlan, mac, port: word.port(), idle })
            })
        })
    }

    /// An entry of another address that an operator's may push out.
    fn any_learnt(&self, place: &Place) -> Option<((usize, usize), Word)> {
        let ways = |bucket| (0..WAYS).map(move |way| (bucket, way));
        let load = |(bucket, way): (usize, usize)| Word(self.buckets[bucket].0[way].load(Ordering::Relaxed));
        let mut places = ways(place.bucket).chain(ways(place.alternate)).map(|at| (at, load(at)));
        places.find(|(_, word)| word.is_learnt())
    }

    fn key_at(&self, bucket: usize, word: Word) -> (u16, MacAddr) {
        let first = if word.is_second() { self.mixer.other(bucket, word.tag()) } else { bucket };
        self.mixer.key(first, word.tag())
    }

    fn sweep_all(&self, gone: impl Fn(Word) -> bool) -> usize {
        (0..self.buckets.len()).map(|bucket| self.sweep_bucket(bucket, &gone)).sum()
    }

    fn sweep_bucket(&self, bucket: usize, gone: impl Fn(Word) -> bool) -> usize {
        let mut count = 0;
        for (way, slot) in self.buckets[bucket].0.iter().enumerate() {
            let mut word = Word(slot.load(Ordering::Relaxed));
            // Judged anew when it was seen, or moved, in between.
            while gone(word) {
                match self.replace((bucket, way), word, Word::EMPTY) {
                    Ok(()) => {
                        count += 1;
                        break;
                    }
                    Err(found) => word = found,
                }
            }
        }
        count
    }
}
