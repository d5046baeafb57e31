// SPDX-License-Identifier: Apache-2.0
//! [`Connections`]: the connections of one worker, and how one is found, added and removed.

use std::sync::Arc;

use netvm_flow_table::NoMemory;
use netvm_wire::FlowHasher;

use super::bounds::quotas::{Counts, Exceeded, Origins};
use super::bounds::slots::Slots;
use crate::Packet;
use crate::config::Config;
use crate::connection::{Connection, ConnectionId};
use crate::decided::Decided;
use crate::events::{Cause, Event, Happened};
use crate::index::Index;
use crate::nat::Reserved;
use crate::packet::fragments::Fragments;
use crate::packet::kind::Kind;
use crate::packet::tuple::Tuple;
use crate::protocol::Stage;
use crate::queue::Queue;
use crate::syn_proxy::ProxyTable;
use crate::workers::{FlowOwners, Shared};

/// Why a connection does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table is full of connections that have had an answer.
    Full,
    /// Its source has as many connections as it may have.
    SourceQuota,
    /// The port that received its packet has.
    PortQuota,
    /// Its zone has.
    ZoneQuota,
    /// Its source, or the port, has as many half-open connections as it may have.
    HalfOpenQuota,
    /// The packet begins no connection.
    NotNew,
    /// No port of the pool is free for its source, or its ends are those of another connection.
    NoPort,
    /// Its protocol, or the family of its addresses, cannot be translated so.
    NotTranslatable,
}

impl From<Exceeded> for Refusal {
    fn from(exceeded: Exceeded) -> Self {
        match exceeded {
            Exceeded::Source => Self::SourceQuota,
            Exceeded::Port => Self::PortQuota,
            Exceeded::Zone => Self::ZoneQuota,
            Exceeded::HalfOpen => Self::HalfOpenQuota,
        }
    }
}

/// How many connections have ended, and why, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// By a time-out.
    pub expired: u64,
    /// Evicted before they were complete, for a new one.
    pub evicted: u64,
    /// Because a packet began another one between the same ends.
    pub replaced: u64,
    /// By [`Connections::end`].
    pub flushed: u64,
    /// By [`Connections::refuse`].
    pub refused: u64,
}

impl Ended {
    /// Those of a cause.
    pub(super) const fn of(&mut self, cause: Cause) -> Option<&mut u64> {
        match cause {
            Cause::Expired => Some(&mut self.expired),
            Cause::Evicted => Some(&mut self.evicted),
            Cause::Replaced => Some(&mut self.replaced),
            Cause::Flushed => Some(&mut self.flushed),
            Cause::Refused => Some(&mut self.refused),
            Cause::TableEnded => None,
        }
    }
}

/// The connections of one worker.
pub struct Connections {
    pub(super) config: Config,
    pub(super) hasher: FlowHasher,
    /// Hashes what is to be the same after a restart.
    pub(super) stable: FlowHasher,
    pub(super) shared: Arc<Shared>,
    pub(super) owners: Arc<FlowOwners>,
    /// Its worker.
    pub(super) worker: u8,
    /// Ends that no pool gives away.
    pub(super) reserved: Arc<Reserved>,
    pub(super) slots: Slots,
    /// Slot and direction (the lowest bit) by tuple.
    pub(super) index: Index,
    pub(super) counts: Counts,
    pub(super) fragments: Fragments,
    /// `None`: no connection is proxied.
    pub(super) proxied: Option<ProxyTable>,
    /// The slot that [`Connections::expire`] looks at next.
    hand: u32,
    pub(super) decided: Decided,
    pub(super) ended: Ended,
    pub(super) begun: u64,
    pub(super) events: Option<Queue<Event>>,
    /// IPv4 packets that were made of IPv6 ones.
    pub(super) made: u16,
    /// Somebody takes them.
    pub(super) wants_events: bool,
    /// The latest tick that a caller has given.
    pub(super) now: u32,
}

/// Where a connection is, and which of its directions a packet has.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: u32,
    pub(super) direction: usize,
}

impl Connections {
    /// An empty table of the only worker. Sets its memory aside, and touches it, so that packets never wait for it.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(config: &Config) -> Result<Self, NoMemory> {
        Self::of_worker(config, &Shared::new(config)?, 0)
    }

    /// An empty table of one of several workers, which share this. Worker 0 owns all connections, until
    /// [`Connections::set_owners`].
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn of_worker(config: &Config, shared: &Arc<Shared>, worker: u8) -> Result<Self, NoMemory> {
        let sessions = config.sessions.clamp(1, 1 << 28);
        Ok(Self {
            config: config.clone(),
            hasher: shared.hasher.clone(),
            stable: shared.stable.clone(),
            shared: Arc::clone(shared),
            owners: Arc::default(),
            worker,
            reserved: Arc::default(),
            slots: Slots::new(sessions)?,
            index: Index::new(2 * sessions)?,
            counts: Counts::new(config.quotas, sessions)?,
            fragments: Fragments::new(config.fragments)?,
            proxied: None,
            hand: 0,
            decided: Decided::default(),
            ended: Ended::default(),
            begun: 0,
            events: Queue::new(config.events, Event::NONE)?,
            made: 0,
            wants_events: true,
            now: 0,
        })
    }

    pub(super) fn kind(&mut self, packet: &Packet<'_>, now: u32) -> Kind {
        Kind::of(packet, &mut self.fragments, &self.hasher, now)
    }

    /// The connection with this tuple; ends it if its time is over.
    pub(super) fn find(&mut self, kind: &Kind, now: u32) -> Option<Found> {
        let is_it = |it: u32| *self.slots.get(it >> 1).tuple((it & 1) as usize) == kind.tuple;
        let it = self.index.find(kind.hash, is_it)?;
        let found = Found { slot: it >> 1, direction: (it & 1) as usize };
        if self.slots.get(found.slot).has_expired(now) {
            self.close(found.slot, Cause::Expired);
            return None;
        }
        Some(found)
    }

    /// Whether there is a connection with this tuple, also one whose time is over.
    pub(super) fn has(&self, tuple: &Tuple) -> bool {
        let is_it = |it: u32| self.slots.get(it >> 1).tuple((it & 1) as usize) == tuple;
        self.index.find(tuple.hash(&self.hasher), is_it).is_some()
    }

    pub(super) fn id(&self, slot: u32) -> ConnectionId {
        ConnectionId { slot, serial: self.slots.get(slot).serial }
    }

    pub(super) fn add(&mut self, new: &Connection) -> u32 {
        self.counts.add(&self.hasher, &Origins::of(new));
        let slot = self.slots.add(new);
        for (direction, tuple) in new.tuples().iter().enumerate() {
            self.index.insert(tuple.hash(&self.hasher), slot << 1 | direction as u32);
        }
        slot
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let connection = *self.slots.get(slot);
        self.remove_mappings(&connection);
        self.disclaim(&connection);
        for (direction, tuple) in connection.tuples().iter().enumerate() {
            self.index.remove(tuple.hash(&self.hasher), slot << 1 | direction as u32);
        }
        self.counts.remove(&self.hasher, &Origins::of(&connection), connection.status.stage());
        self.slots.remove(slot);
    }

    /// Notes how far a connection is.
    pub(super) fn follow_stage(&mut self, slot: u32) {
        let stages = self.slots.follow_stage(slot);
        let [was, is] = stages.map(|stage| stage == Stage::HalfOpen);
        if was != is {
            self.counts.follow_half_open(&self.hasher, &Origins::of(self.slots.get(slot)), is);
        }
    }

    /// Ends a connection.
    pub(super) fn close(&mut self, slot: u32, cause: Cause) {
        if let Some(count) = self.ended.of(cause) {
            *count += 1;
        }
        self.note(slot, Happened::Closed(cause));
        self.remove(slot);
    }

    /// Notes what happened to a connection.
    pub(super) fn note(&mut self, slot: u32, happened: Happened) {
        if self.wants_events
            && let Some(events) = &mut self.events
        {
            events.push(Event::new(happened, self.slots.get(slot), self.now));
        }
    }

    /// Stores a number, below 2^31 - 1, for one direction of a connection, if it still lives. It is there until
    /// the connection gets other ends ([`Connections::settle_source`]), goes to another table, or all are forgotten.
    pub fn set_decided(&mut self, id: ConnectionId, is_reply: bool, number: u32) {
        let stored = self.decided.stored(number).filter(|_| self.get(id).is_some());
        if let Some(stored) = stored {
            self.slots.get_mut(id.slot).decided[usize::from(is_reply)] = stored;
        }
    }

    /// Forgets all numbers at once, so that they can have another meaning. Returns false, and forgets none, if
    /// [`Connections::expire`] has not passed all slots since the last time.
    #[must_use]
    pub const fn forget_decided(&mut self) -> bool {
        self.decided.forget(self.slots.most)
    }

    /// Ends the connections whose time is over, among the next `budget` slots. Returns how many it ended.
    pub fn expire(&mut self, now: u32, budget: u32) -> u32 {
        self.now = now;
        let mut count = 0;
        for _ in 0..budget.min(self.slots.most) {
            let slot = self.hand;
            self.hand = if slot + 1 < self.slots.most { slot + 1 } else { 0 };
            let connection = self.slots.get_mut(slot);
            self.decided.pass(&mut connection.decided);
            if connection.is_in_use() && connection.has_expired(now) {
                self.close(slot, Cause::Expired);
                count += 1;
            }
        }
        count
    }
}
