// SPDX-License-Identifier: Apache-2.0
//! A meter whose table is chosen at run time: one branch a burst.

use netvm_wire::{FlowKey, Headers};
use rtrb::Producer;

use crate::entry::{Amount, Decided, Entry, Record};
use crate::meter::{Counts, Front, Meter, Settings};
use crate::table::{DLeft, FlowTable, Null, Tagged};

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TableKind {
    /// Counts lengths only, the paper's null monitor.
    Null,
    /// The paper's d-left hash table.
    DLeft,
    /// Two choices with tags, the fastest with many flows.
    #[default]
    Tagged,
}

/// A meter with one of the tables.
#[derive(Debug)]
pub enum AnyMeter {
    /// Without a table.
    Null(Meter<Null>),
    /// With a d-left table.
    DLeft(Meter<DLeft>),
    /// With a tagged table.
    Tagged(Meter<Tagged>),
}

macro_rules! each {
    ($meter:expr, $name:ident => $body:expr) => {
        match $meter {
            AnyMeter::Null($name) => $body,
            AnyMeter::DLeft($name) => $body,
            AnyMeter::Tagged($name) => $body,
        }
    };
}

impl AnyMeter {
    /// A meter with a table of this kind for `flows` flows; see [`Meter::new`].
    #[must_use]
    pub fn new(kind: TableKind, flows: usize, settings: Settings, out: Option<Producer<Record>>) -> Self {
        match kind {
            TableKind::Null => Self::Null(Meter::new(Null, settings, out)),
            TableKind::DLeft => Self::DLeft(Meter::new(DLeft::new(flows), settings, out)),
            TableKind::Tagged => Self::Tagged(Meter::new(Tagged::new(flows), settings, out)),
        }
    }

    /// As [`Meter::packet`].
    #[inline]
    pub fn packet(&mut self, frame: &[u8], headers: Option<&Headers>, at: (u16, u64)) {
        each!(self, meter => meter.packet(frame, headers, at));
    }

    /// As [`Meter::front`].
    #[inline]
    pub fn front(&mut self, front: Front<'_>, headers: Option<&Headers>, at: (u16, u64)) {
        each!(self, meter => meter.front(front, headers, at));
    }

    /// As [`Meter::begin_burst`].
    #[inline]
    pub fn begin_burst(&mut self) {
        each!(self, meter => meter.begin_burst());
    }

    /// As [`Meter::decide`].
    #[inline]
    pub fn decide(&mut self, place: usize, decided: Decided) {
        each!(self, meter => meter.decide(place, decided));
    }

    /// As [`Meter::commit`].
    #[inline]
    pub fn commit(&mut self) {
        each!(self, meter => meter.commit());
    }

    /// As [`Meter::count_unseen`].
    pub fn count_unseen(&mut self, of: &FlowKey, now: u64, unseen: Amount) -> bool {
        each!(self, meter => meter.count_unseen(of, now, unseen))
    }

    /// As [`Meter::is_read`].
    pub fn is_read(&mut self) -> bool {
        each!(self, meter => meter.is_read())
    }

    /// As [`Meter::expire`].
    #[inline]
    pub fn expire(&mut self, slots: usize, now: u64) {
        each!(self, meter => meter.expire(slots, now));
    }

    /// As [`Meter::expire_with`].
    #[inline]
    pub fn expire_with(&mut self, slots: usize, now: u64, complete: impl FnMut(&mut Record)) {
        each!(self, meter => meter.expire_with(slots, now, complete));
    }

    /// As [`Meter::finish`].
    pub fn finish(&mut self, wait: impl FnMut() -> bool) {
        each!(self, meter => meter.finish(wait));
    }

    /// As [`Meter::counts`].
    #[must_use]
    pub const fn counts(&self) -> Counts {
        each!(self, meter => meter.counts())
    }

    /// As [`Meter::running`].
    pub fn running(&self, first: usize, count: usize, with: impl FnMut(&Record)) {
        each!(self, meter => meter.running(first, count, with));
    }

    /// The entries of the table; those of free slots are unused.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        each!(self, meter => meter.table().entries())
    }

    /// Number of flows in the table.
    #[must_use]
    pub fn flows(&self) -> usize {
        each!(self, meter => meter.table().len())
    }
}
