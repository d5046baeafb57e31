//! [`Connections`]: finds, begins and ends the connections of one worker.

use netvm_flow_table::NoMemory;
use netvm_wire::{ConnState, FlowHasher, IpProto};

use crate::config::Config;
use crate::connection::{Connection, ConnectionId};
use crate::fragments::{FragmentOf, Fragments};
use crate::headers::{embedded, segment};
use crate::index::Index;
use crate::kind::{Kind, Relation};
use crate::quotas::{Counts, prefix_of};
use crate::slots::Slots;
use crate::tcp::{Handled, Tcp};
use crate::tuple::Tuple;
use crate::{Packet, TICKS_PER_SECOND, Tracked};

/// Packets whose look-ups overlap.
const BURST: usize = 64;

/// Slots in which a full table looks for connections whose time is over.
const SLOTS_IF_FULL: u32 = 8;

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
    /// The packet begins no connection.
    NotNew,
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
}

/// The connections of one worker.
pub struct Connections {
    config: Config,
    hasher: FlowHasher,
    pub(crate) slots: Slots,
    /// Slot and direction (the lowest bit) by tuple.
    index: Index,
    counts: Counts,
    fragments: Fragments,
    /// The slot that [`Connections::expire`] looks at next.
    hand: u32,
    pub(crate) ended: Ended,
    pub(crate) begun: u64,
}

/// Where a connection is, and which of its directions a packet has.
#[derive(Clone, Copy)]
struct Found {
    slot: u32,
    direction: usize,
}

impl Connections {
    /// An empty table. Sets its memory aside, and touches it, so that packets never wait for it.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(config: &Config) -> Result<Self, NoMemory> {
        let sessions = config.sessions.clamp(1, 1 << 28);
        Ok(Self {
            config: config.clone(),
            hasher: FlowHasher::new(),
            slots: Slots::new(sessions)?,
            index: Index::new(2 * sessions)?,
            counts: Counts::new(config.quotas, sessions)?,
            fragments: Fragments::new(config.fragments)?,
            hand: 0,
            ended: Ended::default(),
            begun: 0,
        })
    }

    /// Says the state of each packet at this tick, and follows TCP, time-outs and counts of the connections that they
    /// belong to. It begins no connection, and ends one only if its time is over. `tracked` has room for all packets.
    pub fn track(&mut self, packets: &[Packet<'_>], now: u32, tracked: &mut [Tracked]) {
        for (packets, tracked) in packets.chunks(BURST).zip(tracked.chunks_mut(BURST)) {
            let mut kinds = [const { Kind::UNTRACKED }; BURST];
            for (kind, packet) in kinds.iter_mut().zip(packets) {
                *kind = self.kind(packet, now);
                self.index.prefetch(kind.hash);
            }
            for kind in &kinds[..packets.len()] {
                if let Some(it) = self.index.find(kind.hash, |_| true) {
                    self.slots.prefetch(it >> 1);
                }
            }
            for ((packet, kind), tracked) in packets.iter().zip(&kinds).zip(tracked) {
                *tracked = self.track_one(packet, kind, now);
            }
        }
    }

    fn track_one(&mut self, packet: &Packet<'_>, kind: &Kind, now: u32) -> Tracked {
        let found = match kind.relation {
            Relation::None => return Tracked { state: kind.state, ..Tracked::default() },
            _ => self.find(kind, now),
        };
        match (kind.relation, found) {
            (Relation::About, Some(found)) => self.track_error(packet, kind, found),
            (Relation::About | Relation::None, _) => INVALID,
            (Relation::LaterOf, found) => self.track_later(packet, kind, found),
            (Relation::Of, Some(found)) => self.track_known(packet, found, now),
            (Relation::Of, None) => self.track_unknown(packet, kind),
        }
    }

    fn kind(&mut self, packet: &Packet<'_>, now: u32) -> Kind {
        Kind::of(packet, &mut self.fragments, &self.hasher, now)
    }

    /// The connection with this tuple; ends it if its time is over.
    fn find(&mut self, kind: &Kind, now: u32) -> Option<Found> {
        let is_it = |it: u32| self.slots.get(it >> 1).tuples[(it & 1) as usize] == kind.tuple;
        let it = self.index.find(kind.hash, is_it)?;
        let found = Found { slot: it >> 1, direction: (it & 1) as usize };
        if self.slots.get(found.slot).has_expired(now) {
            self.remove(found.slot);
            self.ended.expired += 1;
            return None;
        }
        Some(found)
    }

    fn track_known(&mut self, packet: &Packet<'_>, found: Found, now: u32) -> Tracked {
        let Found { slot, direction } = found;
        let connection = self.slots.get_mut(slot);
        if connection.tuples[0].protocol == IpProto::TCP {
            let Some(segment) = segment(packet) else { return INVALID };
            if connection.tcp.begins_again(&segment) {
                return NEW;
            }
            match connection.tcp.handle(direction, &segment) {
                Handled::Valid => {}
                Handled::WithoutEffect => return self.seen(found),
                Handled::Invalid => return INVALID,
            }
        }
        if let Some(of) = FragmentOf::of_first(packet) {
            self.fragments.confirm(&self.hasher, &of);
        }
        self.passes(packet, found);
        self.follow(slot, now);
        self.seen(found)
    }

    /// A packet of no connection that is known.
    fn track_unknown(&self, packet: &Packet<'_>, kind: &Kind) -> Tracked {
        if self.begin(packet, &kind.tuple).is_some() { NEW } else { INVALID }
    }

    /// The connection that a packet with this tuple begins, not yet in the table.
    fn begin(&self, packet: &Packet<'_>, tuple: &Tuple) -> Option<Connection> {
        let tuples = [*tuple, tuple.reversed()];
        let new = Connection { tuples, ..Connection::FREE };
        match tuple.protocol {
            IpProto::TCP => {
                let tcp = Tcp::begin(&segment(packet)?, self.config.pick_up)?;
                Some(Connection { tcp, ..new })
            }
            // A reply without a request.
            IpProto::ICMP | IpProto::ICMPV6 if tuple.query & 1 != 0 => None,
            _ => Some(new),
        }
    }

    /// A later fragment. Without a connection, it is what the first one was: rules decide the same, and the first one
    /// may begin the connection in the meantime.
    fn track_later(&mut self, packet: &Packet<'_>, kind: &Kind, found: Option<Found>) -> Tracked {
        let numbers = [kind.tuple.source_port, kind.tuple.destination_port];
        let ports = kind.tuple.protocol.has_ports().then_some(numbers);
        let tracked = match found {
            Some(found) => {
                self.count(packet, found);
                self.seen(found)
            }
            None => NEW,
        };
        Tracked { ports, ..tracked }
    }

    /// An error about a packet that its receiver has sent, so it goes in the other direction.
    fn track_error(&self, packet: &Packet<'_>, kind: &Kind, found: Found) -> Tracked {
        let Found { slot, direction } = found;
        let tcp = &self.slots.get(slot).tcp;
        let is_plausible = kind.tuple.protocol != IpProto::TCP
            || embedded(packet)
                .and_then(|it| it.sequence)
                .is_some_and(|sequence| tcp.may_have_sent(direction, sequence));
        let connection = Some(self.id(slot));
        let related =
            Tracked { state: ConnState::Related, connection, is_reply: direction == 0, ports: None };
        if is_plausible { related } else { INVALID }
    }

    fn count(&mut self, packet: &Packet<'_>, Found { slot, direction }: Found) {
        let connection = self.slots.get_mut(slot);
        connection.packets[direction] += 1;
        connection.bytes[direction] += packet.length as u64;
    }

    /// Counts a packet, which may be an answer.
    fn passes(&mut self, packet: &Packet<'_>, found: Found) {
        self.count(packet, found);
        self.slots.get_mut(found.slot).is_answered |= found.direction == 1;
        self.slots.follow_assurance(found.slot);
    }

    /// Begins the time-out of a connection anew.
    fn follow(&mut self, slot: u32, now: u32) {
        let connection = self.slots.get_mut(slot);
        let seconds = connection.timeout(&self.config.timeouts, now);
        let ticks = seconds.saturating_mul(TICKS_PER_SECOND).min(i32::MAX.cast_unsigned());
        connection.deadline = now.wrapping_add(ticks);
    }

    fn seen(&self, Found { slot, direction }: Found) -> Tracked {
        let is_reply = direction == 1;
        let is_answered = is_reply || self.slots.get(slot).is_answered;
        let state = if is_answered { ConnState::Established } else { ConnState::New };
        Tracked { state, connection: Some(self.id(slot)), is_reply, ports: None }
    }

    pub(crate) fn id(&self, slot: u32) -> ConnectionId {
        ConnectionId { slot, serial: self.slots.get(slot).serial }
    }

    /// Begins the connection of a packet that [`Connections::track`] found new and that rules have accepted. `from`: the
    /// number of the port that received it. Returns the connection that it belongs to now, if an earlier packet has
    /// begun it.
    ///
    /// # Errors
    /// [`Refusal`]; no connection has begun then.
    pub fn confirm(&mut self, packet: &Packet<'_>, from: u16, now: u32) -> Result<ConnectionId, Refusal> {
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
        let new = Connection { created: now, from, ..begun };
        if let Some(slot) = replaced {
            self.remove(slot);
            self.ended.replaced += 1;
        }
        self.make_room(&new, now)?;
        let found = Found { slot: self.add(&new), direction: 0 };
        if let Some(of) = FragmentOf::of_first(packet) {
            self.fragments.confirm(&self.hasher, &of);
        }
        self.begun += 1;
        self.passes(packet, found);
        self.follow(found.slot, now);
        Ok(self.id(found.slot))
    }

    /// Checks the quotas. If the table is full, looks for connections whose time is over, or evicts one.
    fn make_room(&mut self, new: &Connection, now: u32) -> Result<(), Refusal> {
        let Tuple { source, zone, .. } = new.tuples[0];
        if !self.counts.admits_source(&self.hasher, prefix_of(source), zone) {
            return Err(Refusal::SourceQuota);
        }
        if !self.counts.admits_port(new.from) {
            return Err(Refusal::PortQuota);
        }
        if !self.counts.admits_zone(zone) {
            return Err(Refusal::ZoneQuota);
        }
        if self.slots.is_full() && self.expire(now, SLOTS_IF_FULL) == 0 {
            let oldest = self.slots.oldest().ok_or(Refusal::Full)?;
            self.remove(oldest);
            self.ended.evicted += 1;
        }
        Ok(())
    }

    /// Whether there is a connection with this tuple, also one whose time is over.
    pub(crate) fn has(&self, tuple: &Tuple) -> bool {
        let is_it = |it: u32| self.slots.get(it >> 1).tuples[(it & 1) as usize] == *tuple;
        self.index.find(tuple.hash(&self.hasher), is_it).is_some()
    }

    pub(crate) fn add(&mut self, new: &Connection) -> u32 {
        let Tuple { source, zone, .. } = new.tuples[0];
        self.counts.add(&self.hasher, prefix_of(source), zone, new.from);
        let slot = self.slots.add(new);
        for (direction, tuple) in new.tuples.iter().enumerate() {
            self.index.insert(tuple.hash(&self.hasher), slot << 1 | direction as u32);
        }
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let Connection { tuples, from, .. } = *self.slots.get(slot);
        for (direction, tuple) in tuples.iter().enumerate() {
            self.index.remove(tuple.hash(&self.hasher), slot << 1 | direction as u32);
        }
        self.counts.remove(&self.hasher, prefix_of(tuples[0].source), tuples[0].zone, from);
        self.slots.remove(slot);
    }

    /// Ends the connections whose time is over, among the next `budget` slots. Returns how many it ended.
    pub fn expire(&mut self, now: u32, budget: u32) -> u32 {
        let mut count = 0;
        for _ in 0..budget.min(self.slots.most) {
            let slot = self.hand;
            self.hand = if slot + 1 < self.slots.most { slot + 1 } else { 0 };
            let connection = self.slots.get(slot);
            if connection.in_use && connection.has_expired(now) {
                self.remove(slot);
                count += 1;
            }
        }
        self.ended.expired += u64::from(count);
        count
    }
}

const NEW: Tracked = Tracked { state: ConnState::New, connection: None, is_reply: false, ports: None };
const INVALID: Tracked = Tracked { state: ConnState::Invalid, ..NEW };
