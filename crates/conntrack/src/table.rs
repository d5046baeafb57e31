//! [`Connections`]: finds, begins and ends the connections of one worker.

use netvm_flow_table::NoMemory;
use netvm_wire::{ConnState, FlowHasher, Fragment, IpProto, TcpFlags};

use crate::config::Config;
use crate::connection::{Connection, ConnectionId};
use crate::fragments::{FragmentOf, Fragments};
use crate::headers::{embedded, fragment_identifier, is_error, query, segment};
use crate::index::Index;
use crate::quotas::{Counts, prefix_of};
use crate::slots::Slots;
use crate::tcp::{Handled, Tcp};
use crate::tuple::Tuple;
use crate::{Packet, TICKS_PER_SECOND, Tracked};

/// Packets whose look-ups overlap.
const BURST: usize = 64;

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
    slots: Slots,
    /// Slot and direction (the lowest bit) by tuple.
    index: Index,
    counts: Counts,
    fragments: Fragments,
    /// The slot that [`Connections::expire`] looks at next.
    hand: u32,
    ended: Ended,
    begun: u64,
}

/// What a packet is to tracking.
enum Kind {
    /// One of a connection with this tuple.
    Of(Tuple),
    /// A later fragment of one, whose ports the first had.
    LaterOf(Tuple),
    /// An error about a packet with this tuple.
    About(Tuple),
    /// It cannot belong to a connection.
    Invalid,
    /// Not tracked.
    Untracked,
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
    /// belong to. It begins no connection. `tracked` has room for all packets.
    pub fn track(&mut self, packets: &[Packet<'_>], now: u32, tracked: &mut [Tracked]) {
        for (packets, tracked) in packets.chunks(BURST).zip(tracked.chunks_mut(BURST)) {
            let mut hashes = [0; BURST];
            for (hash, packet) in hashes.iter_mut().zip(packets) {
                let ports = [packet.key.source_port, packet.key.destination_port];
                *hash = Tuple::of(packet.key, ports, packet.zone).hash(&self.hasher);
                self.index.prefetch(*hash);
            }
            for (packet, tracked) in packets.iter().zip(tracked) {
                *tracked = self.track_one(packet, now);
            }
        }
    }

    fn track_one(&mut self, packet: &Packet<'_>, now: u32) -> Tracked {
        match self.kind(packet, now) {
            Kind::Of(tuple) => self.track_tuple(packet, &tuple, now),
            Kind::LaterOf(tuple) => self.track_later(packet, &tuple, now),
            Kind::About(tuple) => self.track_error(&tuple, now),
            Kind::Invalid => Tracked { state: ConnState::Invalid, ..Tracked::default() },
            Kind::Untracked => Tracked::default(),
        }
    }

    fn kind(&mut self, packet: &Packet<'_>, now: u32) -> Kind {
        let (key, zone) = (packet.key, packet.zone);
        if !key.is_ip() {
            return Kind::Untracked;
        }
        if key.fragment == Fragment::Later {
            let ports = fragment_identifier(packet)
                .and_then(|it| self.fragments.ports(&self.hasher, &FragmentOf::new(key, zone, it), now));
            return ports.map_or(Kind::Invalid, |ports| Kind::LaterOf(Tuple::of(key, ports, zone)));
        }
        if is_error(key) {
            let about = embedded(packet);
            return about.map_or(Kind::Invalid, |it| Kind::About(Tuple::of(&it.key, it.ports, zone)));
        }
        let ports = match key.protocol {
            IpProto::ICMP | IpProto::ICMPV6 => match query(packet) {
                Some((ports, _)) => ports,
                // Neighbour discovery, multicast listeners: no connections (Linux does the same).
                None if key.protocol == IpProto::ICMPV6 => return Kind::Untracked,
                None => return Kind::Invalid,
            },
            _ => [key.source_port, key.destination_port],
        };
        if key.fragment == Fragment::First
            && let Some(identifier) = fragment_identifier(packet)
        {
            self.fragments.note(&self.hasher, FragmentOf::new(key, zone, identifier), ports, now);
        }
        Kind::Of(Tuple::of(key, ports, zone))
    }

    /// The connection with this tuple, and the direction; ends it if its time is over.
    fn find(&mut self, tuple: &Tuple, now: u32) -> Option<(u32, usize)> {
        let hash = tuple.hash(&self.hasher);
        let is_it = |it: u32| self.slots.get(it >> 1).tuples[(it & 1) as usize] == *tuple;
        let it = self.index.find(hash, is_it)?;
        let (slot, direction) = (it >> 1, (it & 1) as usize);
        if self.slots.get(slot).has_expired(now) {
            self.remove(slot);
            self.ended.expired += 1;
            return None;
        }
        Some((slot, direction))
    }

    fn track_tuple(&mut self, packet: &Packet<'_>, tuple: &Tuple, now: u32) -> Tracked {
        let found = self.find(tuple, now);
        let segment = if tuple.protocol == IpProto::TCP {
            let Some(segment) = segment(packet) else { return invalid() };
            Some(segment)
        } else {
            None
        };
        let Some((slot, direction)) = found else { return self.track_unknown(packet) };
        let connection = self.slots.get_mut(slot);
        if let Some(segment) = &segment {
            let begins = segment.flags.contains(TcpFlags::SYN) && !segment.flags.contains(TcpFlags::ACK);
            if begins && connection.tcp.may_begin_again() {
                self.remove(slot);
                self.ended.replaced += 1;
                return Tracked { state: ConnState::New, ..Tracked::default() };
            }
            match connection.tcp.handle(direction, segment) {
                Handled::Valid => {}
                Handled::WithoutEffect => return self.seen(slot, direction),
                Handled::Invalid => return invalid(),
            }
        }
        self.passes(slot, direction, packet.length);
        self.follow(slot, now);
        self.seen(slot, direction)
    }

    /// A packet of no connection that is known.
    fn track_unknown(&self, packet: &Packet<'_>) -> Tracked {
        let begins = match packet.key.protocol {
            IpProto::TCP => segment(packet).is_some_and(|it| Tcp::begin(&it, self.config.pick_up).is_some()),
            IpProto::ICMP | IpProto::ICMPV6 => query(packet).is_some_and(|(_, begins)| begins),
            _ => true,
        };
        if begins { Tracked { state: ConnState::New, ..Tracked::default() } } else { invalid() }
    }

    fn track_later(&mut self, packet: &Packet<'_>, tuple: &Tuple, now: u32) -> Tracked {
        let ports = Some([tuple.source_port, tuple.destination_port]);
        let Some((slot, direction)) = self.find(tuple, now) else {
            // The rules have not accepted the first one, or its connection has ended.
            return Tracked { ports, ..invalid() };
        };
        self.passes(slot, direction, packet.length);
        Tracked { ports, ..self.seen(slot, direction) }
    }

    /// An error is about a packet that its receiver has sent, so it goes in the other direction.
    fn track_error(&mut self, about: &Tuple, now: u32) -> Tracked {
        let Some((slot, direction)) = self.find(about, now) else { return invalid() };
        let connection = Some(self.id(slot));
        Tracked { state: ConnState::Related, connection, is_reply: direction == 0, ports: None }
    }

    /// Counts a packet. An answer makes protocols without handshakes complete.
    fn passes(&mut self, slot: u32, direction: usize, length: usize) {
        let connection = self.slots.get_mut(slot);
        connection.packets[direction] += 1;
        connection.bytes[direction] += length as u64;
        connection.is_answered |= direction == 1;
        let is_complete = match connection.tuples[0].protocol {
            IpProto::TCP => connection.is_answered && connection.tcp.is_established(),
            _ => connection.is_answered,
        };
        if is_complete {
            self.slots.assure(slot);
        }
    }

    /// Begins the time-out of a connection anew.
    fn follow(&mut self, slot: u32, now: u32) {
        let seconds = self.slots.get(slot).timeout(&self.config.timeouts);
        let ticks = seconds.saturating_mul(TICKS_PER_SECOND).min(i32::MAX.cast_unsigned());
        self.slots.get_mut(slot).deadline = now.wrapping_add(ticks);
    }

    fn seen(&self, slot: u32, direction: usize) -> Tracked {
        let is_reply = direction == 1;
        let state = if self.slots.get(slot).is_answered { ConnState::Established } else { ConnState::New };
        Tracked { state, connection: Some(self.id(slot)), is_reply, ports: None }
    }

    fn id(&self, slot: u32) -> ConnectionId {
        ConnectionId { slot, serial: self.slots.get(slot).serial }
    }

    /// Begins the connection of a packet that [`Connections::track`] found new and that rules have accepted. `from`: the
    /// number of the port that received it. Returns the connection that it belongs to now, if an earlier packet has
    /// begun it.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn confirm(&mut self, packet: &Packet<'_>, from: u16, now: u32) -> Result<ConnectionId, Refusal> {
        let Kind::Of(tuple) = self.kind(packet, now) else { return Err(Refusal::NotNew) };
        if let Some((slot, direction)) = self.find(&tuple, now) {
            self.passes(slot, direction, packet.length);
            return Ok(self.id(slot));
        }
        let mut new =
            Connection { tuples: [tuple, tuple.reversed()], created: now, from, ..Connection::FREE };
        if tuple.protocol == IpProto::TCP {
            let begun = segment(packet).and_then(|it| Tcp::begin(&it, self.config.pick_up));
            new.tcp = begun.ok_or(Refusal::NotNew)?;
        }
        new.counted_as = prefix_of(tuple.source);
        self.make_room(&new, from)?;
        self.counts.add(&self.hasher, new.counted_as, tuple.zone, from);
        let slot = self.slots.add(&new);
        for (direction, tuple) in new.tuples.iter().enumerate() {
            self.index.insert(tuple.hash(&self.hasher), slot << 1 | direction as u32);
        }
        self.begun += 1;
        self.passes(slot, 0, packet.length);
        self.follow(slot, now);
        Ok(self.id(slot))
    }

    /// Checks the quotas, and evicts a connection if the table is full.
    fn make_room(&mut self, new: &Connection, from: u16) -> Result<(), Refusal> {
        let zone = new.tuples[0].zone;
        if !self.counts.admits_source(&self.hasher, new.counted_as, zone) {
            return Err(Refusal::SourceQuota);
        }
        if !self.counts.admits_port(from) {
            return Err(Refusal::PortQuota);
        }
        if !self.counts.admits_zone(zone) {
            return Err(Refusal::ZoneQuota);
        }
        if self.slots.is_full() {
            let oldest = self.slots.oldest().ok_or(Refusal::Full)?;
            self.remove(oldest);
            self.ended.evicted += 1;
        }
        Ok(())
    }

    fn remove(&mut self, slot: u32) {
        let Connection { tuples, counted_as, from, .. } = *self.slots.get(slot);
        for (direction, tuple) in tuples.iter().enumerate() {
            self.index.remove(tuple.hash(&self.hasher), slot << 1 | direction as u32);
        }
        self.counts.remove(&self.hasher, counted_as, tuples[0].zone, from);
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

    /// A connection, if it still lives.
    #[must_use]
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = self.slots.get(id.slot);
        (connection.in_use && connection.serial == id.serial).then_some(connection)
    }

    /// The connections in `count` slots from `first` on that live at this tick.
    pub fn page(
        &self,
        first: u32,
        count: u32,
        now: u32,
    ) -> impl Iterator<Item = (ConnectionId, &Connection)> + '_ {
        let end = first.saturating_add(count).min(self.slots.most);
        let live = move |slot: &u32| {
            let connection = self.slots.get(*slot);
            connection.in_use && !connection.has_expired(now)
        };
        (first..end).filter(live).map(|slot| (self.id(slot), self.slots.get(slot)))
    }

    /// Ends a connection, if it still lives. Returns whether it did.
    pub fn end(&mut self, id: ConnectionId) -> bool {
        let lives = self.get(id).is_some();
        if lives {
            self.remove(id.slot);
            self.ended.flushed += 1;
        }
        lives
    }

    /// Slots, for [`Connections::page`].
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.slots.most
    }

    /// Connections now, also those whose time is over but that the hand has not passed.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.slots.in_use
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that may be evicted: their handshake is not complete, or they have had no answer.
    #[must_use]
    pub const fn incomplete(&self) -> u32 {
        self.slots.evictable
    }

    /// How many have begun.
    #[must_use]
    pub const fn begun(&self) -> u64 {
        self.begun
    }

    /// How many have ended, and why.
    #[must_use]
    pub const fn ended(&self) -> Ended {
        self.ended
    }
}

const fn invalid() -> Tracked {
    Tracked { state: ConnState::Invalid, connection: None, is_reply: false, ports: None }
}
