// SPDX-License-Identifier: Apache-2.0
//! [`Connections::confirm`]: begins connections, within quotas.

use std::sync::Arc;

use netvm_wire::ConnState;

use super::bounds::quotas::Origins;
use super::connections::{Connections, Found, Refusal};
use crate::connection::{Connection, ConnectionId, Origin};
use crate::events::{Cause, Happened};
use crate::nat::Mappings;
use crate::packet::fragments::FragmentOf;
use crate::packet::kind::Relation;
use crate::{Packet, Tracked};

/// A packet that begins a connection.
#[derive(Clone, Copy)]
pub(super) struct Begins<'a> {
    pub(super) packet: &'a Packet<'a>,
    pub(super) origin: Origin,
    pub(super) now: u32,
}

/// No translation.
type NotTranslated = fn(&Connections, &mut Connection, Option<&Mappings>) -> Result<(), Refusal>;

/// Slots in which a full table looks for connections whose time is over.
const SLOTS_IF_FULL: u32 = 8;

impl Connections {
    /// Begins the connection of a packet that [`Connections::track`] found new and that rules have accepted.
    /// Returns its connection, which an earlier packet may have begun.
    ///
    /// # Errors
    /// [`Refusal`]; no connection has begun then.
    pub fn confirm(
        &mut self,
        packet: &Packet<'_>,
        origin: Origin,
        now: u32,
    ) -> Result<ConnectionId, Refusal> {
        self.confirm_with(Begins { packet, origin, now }, None::<NotTranslated>)
    }

    /// Like [`Connections::confirm`], for a connection to which `translate` gives a reply tuple.
    pub(super) fn confirm_with<T>(
        &mut self,
        begins: Begins<'_>,
        translate: Option<T>,
    ) -> Result<ConnectionId, Refusal>
    where
        T: FnOnce(&Self, &mut Connection, Option<&Mappings>) -> Result<(), Refusal>,
    {
        let Begins { packet, origin, now } = begins;
        self.now = now;
        let kind = self.kind(packet, now);
        let found = if kind.relation == Relation::None { None } else { self.find(&kind, now) };
        let replaced = match (kind.relation, found) {
            (Relation::Of, None) => None,
            (Relation::Of | Relation::LaterOf, Some(found)) => match self.track_one(packet, &kind, now) {
                Tracked { connection: Some(id), .. } => return Ok(id),
                Tracked { state: ConnState::New, .. } => Some(found.slot),
                _ => return Err(Refusal::NotNew),
            },
            _ => return Err(Refusal::NotNew),
        };
        let begun = self.begin(packet, &kind.tuple).ok_or(Refusal::NotNew)?;
        let mut new = Connection { created: now, from: origin.port, rule: origin.rule, ..begun };
        if let Some(slot) = replaced {
            self.close(slot, Cause::Replaced);
        }
        self.make_room(&new, now)?;
        let slot = match translate {
            None => self.insert(&new)?,
            Some(translate) => {
                // No other worker chooses between the choice and its record.
                let shared = Arc::clone(&self.shared);
                let mut mappings = shared.mappings();
                translate(self, &mut new, mappings.as_deref())?;
                self.insert_with(&new, mappings.as_deref_mut())?
            }
        };
        let found = Found { slot, direction: 0 };
        if let Some(of) = FragmentOf::of_first(packet) {
            self.fragments.confirm(&self.hasher, &of);
        }
        self.begun += 1;
        self.passes(packet, found);
        self.follow(found.slot, now);
        self.note(found.slot, Happened::Opened);
        Ok(self.id(found.slot))
    }

    /// Checks the quotas. If the table is full, looks for connections whose time is over, or evicts one.
    pub(super) fn make_room(&mut self, new: &Connection, now: u32) -> Result<(), Refusal> {
        self.counts.admit(&self.hasher, &Origins::of(new), new.reached())?;
        if self.slots.is_full() && self.expire(now, SLOTS_IF_FULL) == 0 {
            let oldest = self.slots.oldest().ok_or(Refusal::Full)?;
            self.close(oldest, Cause::Evicted);
        }
        Ok(())
    }
}
