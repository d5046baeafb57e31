// SPDX-License-Identifier: Apache-2.0
//! Counts packets by flow, and makes records of flows when their time-outs are over. In: frames, a burst at a time.
//! Out: records, into a bounded ring that another thread empties.
//!
//! Nothing waits. If the ring is full, flows stay in the table past their time-outs; if the table is full too, the
//! records of flows that give way are lost, and what they had counted is added to [`Counts::lost`].

use netvm_wire::{FlowHasher, FlowKey, Headers};
use rtrb::{Producer, PushError};

use crate::entry::{Amount, Decided, EndReason, Entry, Name, Record, Sample};
use crate::key::Key;
use crate::names::{Names, name_in};
use crate::sampler::Sampler;
use crate::table::{FlowTable, SlotLookup};

/// Packets that are looked up together.
const BURST: usize = 32;

/// Packets of a burst of which the caller may say what rules decide.
const MAX_DECIDED: usize = 64;

/// Such a packet was not counted, or goes in the other direction than its flow's first.
const NO_SLOT: u32 = u32::MAX;

/// When flows end, and what is counted.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Inactive time-out in cycles: a flow ends after so long without a packet.
    pub idle: u64,
    /// Active time-out in cycles: a flow that goes on is reported so often.
    pub active: u64,
    /// Counts one packet of so many; 0 and 1 count all.
    pub sampling: u32,
    /// Places for names; 0 reads none.
    pub names: u32,
}

/// The front of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Front<'a> {
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// The length of the whole packet.
    pub length: u32,
}

/// What a meter has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets seen, sampled or not.
    pub seen: Amount,
    /// Records made.
    pub records: u64,
    /// Flows that gave way because the table was full.
    pub evicted: u64,
    /// What evicted flows had counted.
    pub evicted_amount: Amount,
    /// Records that found no room in the ring.
    pub lost_records: u64,
    /// What lost records had counted.
    pub lost: Amount,
    /// Names that found no place.
    pub unplaced_names: u64,
}

/// The name of a flow is in one of its first packets.
const NAMED_WITHIN: u64 = 16;

/// A flow table, its time-outs, and the ring for its records.
#[derive(Debug)]
pub struct Meter<T> {
    table: T,
    settings: Settings,
    sampler: Sampler,
    names: Names,
    /// Where records go; without, flows have no time-outs.
    out: Option<Producer<Record>>,
    pending: Box<[Sample; BURST]>,
    /// The places of these packets in the burst of the caller.
    places: [usize; BURST],
    /// The flows of the packets of the caller's burst.
    flows: Vec<u32>,
    pending_names: Vec<(usize, Name)>,
    waiting: usize,
    /// Next slot to check for time-outs.
    next: usize,
    counts: Counts,
}

impl<T: FlowTable> Meter<T> {
    /// Counts into `table`; records go to `out`.
    #[must_use]
    pub fn new(table: T, settings: Settings, out: Option<Producer<Record>>) -> Self {
        let nothing = Sample {
            key: Key::default(),
            hash: 0,
            from_higher: false,
            tcp_flags: 0,
            ingress: 0,
            bytes: 0,
            octets: 0,
            now: 0,
        };
        Self {
            table,
            sampler: Sampler::new(settings.sampling),
            names: Names::new(settings.names),
            out,
            pending: Box::new([nothing; BURST]),
            places: [MAX_DECIDED; BURST],
            flows: Vec::with_capacity(MAX_DECIDED),
            pending_names: Vec::with_capacity(BURST),
            waiting: 0,
            next: 0,
            counts: Counts::default(),
            settings,
        }
    }

    /// Begins a burst of packets of which the caller will say by their places, from 0, what rules decide
    /// ([`Meter::decide`]). The first 64 packets have places.
    #[inline]
    pub fn begin_burst(&mut self) {
        self.flows.clear();
    }

    /// Notes what rules have decided of a packet of the burst, after [`Meter::commit`].
    pub fn decide(&mut self, place: usize, decided: Decided) {
        let slot = self.flows.get(place).copied().unwrap_or(NO_SLOT);
        if let Some(entry) = self.table.entries_mut().get_mut(slot as usize) {
            entry.decide(decided);
        }
    }

    /// Takes a packet that came in by `ingress` at time `now`; `None` for the headers if they are truncated or
    /// inconsistent. It counts with [`Meter::commit`] at the latest.
    #[inline]
    pub fn packet(&mut self, frame: &[u8], headers: Option<&Headers>, at: (u16, u64)) {
        self.front(Front { bytes: frame, length: frame.len() as u32 }, headers, at);
    }

    /// As [`Meter::packet`], with only the front of a packet at hand.
    #[inline]
    pub fn front(&mut self, front: Front<'_>, headers: Option<&Headers>, at: (u16, u64)) {
        let (Front { bytes: frame, length: bytes }, (ingress, now)) = (front, at);
        let octets = headers
            .filter(|headers| headers.key().is_ip())
            .map_or(0, |headers| (headers.payload_end() - headers.l3_offset()) as u32);
        self.counts.seen.add(Amount { packets: 1, bytes: bytes.into(), octets: octets.into() });
        let place = self.flows.len();
        if place < MAX_DECIDED {
            self.flows.push(NO_SLOT);
        }
        if !self.sampler.takes() {
            return;
        }
        let (key, from_higher) = headers.map_or_else(|| Key::of_malformed(frame), Key::of);
        let tcp_flags = headers.map_or(0, |headers| tcp_flags(headers.key()));
        if self.settings.names > 0
            && let Some(headers) = headers
            && let Some(name) = name_in(frame, headers)
        {
            self.pending_names.push((self.waiting, name));
        }
        let hash = FlowHasher::shared().words(key.words());
        if let (Some(sample), Some(of)) =
            (self.pending.get_mut(self.waiting), self.places.get_mut(self.waiting))
        {
            *of = place;
            *sample = Sample { key, hash, from_higher, tcp_flags, ingress, bytes, octets, now };
        }
        self.waiting += 1;
        if self.waiting == BURST {
            self.commit();
        }
    }

    /// Counts the packets taken so far.
    #[inline]
    pub fn commit(&mut self) {
        let samples = self.pending.get(..self.waiting).unwrap_or_default();
        for sample in samples {
            self.table.prefetch(sample.hash);
        }
        for sample in samples {
            self.table.prefetch_entry(sample.hash);
        }
        for n in 0..self.waiting {
            let sample = self.pending[n];
            let slot = self.count(&sample);
            if let (Some(slot), Some(flow)) = (slot, self.flows.get_mut(self.places[n])) {
                *flow = slot as u32;
            }
        }
        if !self.pending_names.is_empty() {
            self.attach_names();
        }
        self.waiting = 0;
    }

    /// Returns the slot of the flow, if the packet has the direction of its first one.
    #[inline]
    fn count(&mut self, sample: &Sample) -> Option<usize> {
        let slot = match self.table.look_up(sample) {
            SlotLookup::Found(slot) => slot,
            SlotLookup::Free(slot) => {
                self.table.begin(slot, sample);
                slot
            }
            SlotLookup::Occupied(slot) => {
                self.evict(slot);
                self.table.begin(slot, sample);
                slot
            }
            SlotLookup::NoTable => return None,
        };
        let entry = self.table.entries_mut().get_mut(slot)?;
        entry.count(sample);
        entry.begins(sample).then_some(slot)
    }

    /// Counts packets of a running flow that were not taken one by one. Returns whether others may pass unseen, too:
    /// the table has the flow, and its name, if names are read and its first packets had one. They never may if only
    /// some packets are taken.
    pub fn count_unseen(&mut self, of: &FlowKey, now: u64, unseen: Amount) -> bool {
        let (key, from_higher) = Key::of_fields(of);
        let hash = FlowHasher::shared().words(key.words());
        let sample = Sample { key, hash, from_higher, tcp_flags: 0, ingress: 0, bytes: 0, octets: 0, now };
        let SlotLookup::Found(slot) = self.table.look_up(&sample) else { return false };
        let Some(entry) = self.table.entries_mut().get_mut(slot) else { return false };
        if unseen.packets > 0 {
            self.counts.seen.add(unseen);
            entry.count_unseen(from_higher, now, unseen);
        }
        let may_get_name = self.settings.names > 0 && entry.name == 0 && entry.packets() < NAMED_WITHIN;
        !may_get_name && self.settings.sampling <= 1
    }

    /// Gives the flows of this burst the names that its packets had; a flow keeps its first.
    fn attach_names(&mut self) {
        for (n, name) in self.pending_names.drain(..) {
            let Some(sample) = self.pending.get(n) else { continue };
            if let SlotLookup::Found(slot) = self.table.look_up(sample)
                && let Some(entry) = self.table.entries_mut().get_mut(slot)
                && entry.name == 0
            {
                entry.name = self.names.put(name);
            }
        }
    }

    #[cold]
    fn evict(&mut self, slot: usize) {
        if let Some(entry) = self.table.entries().get(slot) {
            self.counts.evicted += 1;
            for reverse in [false, true] {
                self.counts.evicted_amount.add(entry.amount(reverse));
            }
        }
        self.end(slot, EndReason::NoRoom, &mut |_| {});
    }

    /// Removes a flow and sends its record.
    fn end(&mut self, slot: usize, reason: EndReason, complete: &mut impl FnMut(&mut Record)) {
        self.send(slot, reason, complete);
        if let Some(entry) = self.table.entries().get(slot) {
            self.names.free(entry.name);
        }
        self.table.remove(slot);
    }

    fn send(&mut self, slot: usize, reason: EndReason, complete: &mut impl FnMut(&mut Record)) {
        let (Some(entry), Some(out)) = (self.table.entries().get(slot), &mut self.out) else { return };
        if entry.packets() == 0 {
            return;
        }
        let mut record = entry.record(reason, self.names.get(entry.name));
        complete(&mut record);
        match out.push(record) {
            Ok(()) => self.counts.records += 1,
            Err(PushError::Full(record)) => {
                self.counts.lost_records += 1;
                self.counts.lost.add(record.total());
            }
        }
    }

    /// Whether the other end of the ring exists. Without it, the meter makes no more records.
    pub fn is_read(&mut self) -> bool {
        if self.out.as_ref().is_some_and(Producer::is_abandoned) {
            self.out = None;
        }
        self.out.is_some()
    }

    /// Checks the next `slots` of the table for time-outs; stops early while the ring is full.
    #[inline]
    pub fn expire(&mut self, slots: usize, now: u64) {
        self.expire_with(slots, now, |_| {});
    }

    /// The same; `complete` adds to each record what the caller knows of its flow.
    #[inline]
    pub fn expire_with(&mut self, slots: usize, now: u64, mut complete: impl FnMut(&mut Record)) {
        if self.out.is_none() || self.table.is_empty() {
            return;
        }
        for _ in 0..slots.min(self.table.entries().len()) {
            if self.next >= self.table.entries().len() {
                self.next = 0;
            }
            let slot = self.next;
            let Some(entry) = self.table.entries().get(slot) else { return };
            if entry.used
                && let Some(reason) = self.due(entry, now)
            {
                if self.out.as_ref().is_none_or(|out| out.slots() == 0) {
                    return;
                }
                match reason {
                    EndReason::Active => {
                        self.send(slot, reason, &mut complete);
                        if let Some(entry) = self.table.entries_mut().get_mut(slot) {
                            entry.restart();
                        }
                    }
                    reason => self.end(slot, reason, &mut complete),
                }
            }
            self.next += 1;
        }
    }

    #[inline]
    fn due(&self, entry: &Entry, now: u64) -> Option<EndReason> {
        if now.saturating_sub(entry.last) >= self.settings.idle {
            Some(EndReason::Idle)
        } else if now.saturating_sub(entry.first) >= self.settings.active && entry.packets() > 0 {
            Some(EndReason::Active)
        } else {
            None
        }
    }

    /// Ends all flows. Calls `wait` while the ring is full, until that returns false: the rest is lost.
    pub fn finish(&mut self, mut wait: impl FnMut() -> bool) {
        self.commit();
        for slot in 0..self.table.entries().len() {
            if !self.table.entries().get(slot).is_some_and(|entry| entry.used) {
                continue;
            }
            while self.out.as_ref().is_some_and(|out| out.slots() == 0) && wait() {}
            self.end(slot, EndReason::Forced, &mut |_| {});
        }
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &T {
        &self.table
    }

    /// Calls `with` with what the flows in `count` slots from `first` have counted since their last record. Nothing
    /// changes.
    pub fn running(&self, first: usize, count: usize, mut with: impl FnMut(&Record)) {
        let entries = self.table.entries().iter().skip(first).take(count);
        for entry in entries.filter(|entry| entry.is_used() && entry.packets() > 0) {
            with(&entry.record(EndReason::Active, self.names.get(entry.name)));
        }
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        Counts { unplaced_names: self.names.unplaced, ..self.counts }
    }
}

/// The TCP flags; those of other packets are 0.
#[inline(always)]
const fn tcp_flags(key: &FlowKey) -> u8 {
    key.tcp_flags.bits()
}
