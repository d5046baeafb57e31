// SPDX-License-Identifier: Apache-2.0
//! What happened to connections, for logs: copies, for a bounded queue.

use crate::connection::Connection;
use crate::packet::tuple::Tuple;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// By a time-out.
    Expired,
    /// Evicted before it was complete, for a new one.
    Evicted,
    /// A packet began another one between the same ends.
    Replaced,
    /// By [`Connections::end`](crate::Connections::end).
    Flushed,
    /// NAT could not translate its first packet: by [`Connections::refuse`](crate::Connections::refuse).
    Refused,
    /// With its table: by [`Connections::end_slots`](crate::Connections::end_slots).
    TableEnded,
}

impl Cause {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Replaced => "replaced",
            Self::Flushed => "flushed",
            Self::Refused => "refused",
            Self::TableEnded => "table-ended",
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A connection began.
    Opened,
    /// Another end stands for its source since its first packet left. The event of its opening had no translation of
    /// the source.
    SourceTranslated,
    /// It ended.
    Closed(Cause),
}

/// What happened to a connection, and what it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub happened: Happened,
    /// The tick at which it happened. A connection whose time is over ends when the table notices, somewhat later.
    pub at: u32,
    /// The tick at which the connection began.
    pub begun: u32,
    /// The direction of its first packet; the zone is in it.
    pub original: Tuple,
    /// The direction of answers.
    pub reply: Tuple,
    /// The port that received its first packet.
    pub from: u16,
    /// The rule that accepted it: [`Origin::rule`](crate::Origin::rule).
    pub rule: u32,
    /// Packets by direction so far.
    pub packets: [u64; 2],
    /// Bytes by direction so far.
    pub bytes: [u64; 2],
    /// What stands for its source is a port of a block, which has events of its own
    /// ([`BlockEvent`](crate::BlockEvent)), and its destination is not translated.
    pub is_of_block: bool,
}

impl Event {
    /// What happened to a connection at this tick.
    pub(crate) fn new(happened: Happened, connection: &Connection, at: u32) -> Self {
        let Connection { from, rule, bytes, created: begun, .. } = *connection;
        let ([original, reply], packets) = (connection.tuples(), connection.packets());
        let is_of_block = connection.has_block() && !connection.has_other_destination();
        Self { happened, at, begun, original, reply, from, rule, packets, bytes, is_of_block }
    }

    pub(crate) const NONE: Self = Self {
        happened: Happened::Opened,
        at: 0,
        begun: 0,
        original: Tuple::NONE,
        reply: Tuple::NONE,
        from: 0,
        rule: 0,
        packets: [0; 2],
        bytes: [0; 2],
        is_of_block: false,
    };
}
