// SPDX-License-Identifier: Apache-2.0
//! [`Connections::track`]: the states of packets, and what they do to connections.

use netvm_wire::{ConnState, FlowKey, IpProto};

use super::connections::{Connections, Found};
use crate::connection::{Connection, Status};
use crate::nat::{End, Inside};
use crate::packet::fragments::FragmentOf;
use crate::packet::headers::{segment, transport};
use crate::packet::kind::{Kind, Relation};
use crate::packet::tuple::{Tuple, Zone};
use crate::protocol::{Handled, ProxyPhase, Sctp, SctpPacket, Tcp, TcpState, Transport};
use crate::syn_proxy::ByProxy;
use crate::{Packet, TICKS_PER_SECOND, Tracked};

/// Packets whose look-ups overlap.
const BURST: usize = 64;

pub(super) const NEW: Tracked = Tracked {
    state: ConnState::New,
    connection: None,
    is_reply: false,
    is_translated: false,
    proxy: ByProxy::Nothing,
    ports: None,
    decided: None,
};
const INVALID: Tracked = Tracked { state: ConnState::Invalid, ..NEW };

impl Connections {
    /// Says the state of each packet at this tick, and follows TCP, time-outs and counts of the connections that they
    /// belong to. It begins no connection, and ends one only if its time is over. `tracked` has room for all packets.
    pub fn track(&mut self, packets: &[Packet<'_>], now: u32, tracked: &mut [Tracked]) {
        self.now = now;
        for (packets, tracked) in packets.chunks(BURST).zip(tracked.chunks_mut(BURST)) {
            let mut kinds = [const { Kind::UNTRACKED }; BURST];
            for (kind, packet) in kinds.iter_mut().zip(packets) {
                *kind = self.kind(packet, now);
                self.index.prefetch(kind.hash);
            }
            for kind in &kinds[..packets.len()] {
                if let Some(it) = self.index.likely(kind.hash) {
                    self.slots.prefetch(it >> 1, kind.tuple.protocol);
                }
            }
            for ((packet, kind), tracked) in packets.iter().zip(&kinds).zip(tracked) {
                *tracked = self.track_one(packet, kind, now);
            }
        }
    }

    /// Says the state of a packet that the kernel of a router has forwarded, or of an error that it has sent, if
    /// [`Connections::track`] finds no connection: its destination may be translated already, and an error may be about
    /// a packet whose source is not yet.
    pub fn track_forwarded(&mut self, packet: &Packet<'_>, now: u32) -> Option<Tracked> {
        let kind = self.kind(packet, now);
        if kind.relation == Relation::None {
            return None;
        }
        let other = kind.tuple.reversed();
        let kind = Kind { hash: other.hash(&self.hasher), tuple: other, ..kind };
        let found = self.find(&kind, now).or_else(|| self.find_settled(&kind, now));
        let Found { slot, direction } = found?;
        let found = Found { slot, direction: 1 - direction };
        let tracked = match kind.relation {
            Relation::About => self.track_error(&kind, found),
            // The ports are those of the packet.
            Relation::LaterOf => {
                self.track_later(packet, &Kind { tuple: other.reversed(), ..kind }, Some(found))
            }
            Relation::Of | Relation::None => self.track_known(packet, found, now),
        };
        // Its ends may be other ones than those of a packet that was tracked before.
        Some(Tracked { decided: None, ..tracked })
    }

    /// The connection of answers that go to a source, as long as something else stands for it: of packets that wait in
    /// the kernel for one next hop, the first that leaves decides what that is.
    fn find_settled(&mut self, answer: &Kind, now: u32) -> Option<Found> {
        let forwarded = answer.tuple.reversed();
        let end = End { address: forwarded.source, port: forwarded.source_port };
        let inside = Inside { end, protocol: forwarded.protocol, zone: forwarded.zone };
        let answer_to = |outside: End| {
            let forwarded = Tuple { source: outside.address, ..forwarded };
            forwarded.with_source_port(outside.port).reversed()
        };
        let is_known = |outside: End| self.has(&answer_to(outside));
        let outside = self.shared.mappings()?.outside_of(&self.hasher, &inside, is_known)?;
        let tuple = answer_to(outside);
        self.find(&Kind { hash: tuple.hash(&self.hasher), tuple, ..*answer }, now)
    }

    pub(super) fn track_one(&mut self, packet: &Packet<'_>, kind: &Kind, now: u32) -> Tracked {
        let found = match kind.relation {
            Relation::None => return Tracked { state: kind.state, ..Tracked::default() },
            _ => self.find(kind, now),
        };
        match (kind.relation, found) {
            (Relation::About, Some(found)) => self.track_error(kind, found),
            (Relation::About | Relation::None, _) => INVALID,
            (Relation::LaterOf, found) => self.track_later(packet, kind, found),
            (Relation::Of, Some(found)) => self.track_known(packet, found, now),
            (Relation::Of, None) => {
                self.proved(packet, now).unwrap_or_else(|| self.track_unknown(packet, kind))
            }
        }
    }

    fn track_known(&mut self, packet: &Packet<'_>, found: Found, now: u32) -> Tracked {
        let Found { slot, direction } = found;
        let connection = self.slots.get_mut(slot);
        let handled = match connection.transport() {
            Transport::Tcp(_) => match self.track_segment(packet, found, now) {
                Ok(handled) => handled,
                Err(tracked) => return tracked,
            },
            Transport::Sctp(_) => match (&mut connection.transport, sctp_packet(packet)) {
                (Transport::Sctp(sctp), Some(packet)) => sctp.handle(direction, &packet),
                _ => Handled::Invalid,
            },
            Transport::Other => Handled::Valid,
        };
        match handled {
            Handled::Valid | Handled::WithoutRefresh => {}
            Handled::WithoutEffect => return self.seen(found),
            Handled::Invalid => return INVALID,
        }
        if let Some(of) = FragmentOf::of_first(packet) {
            self.fragments.confirm(&self.hasher, &of);
        }
        self.passes(packet, found);
        if handled == Handled::Valid {
            self.follow(slot, now);
        }
        self.seen(found)
    }

    /// What TCP says of a segment of a connection, or what is found instead.
    fn track_segment(&mut self, packet: &Packet<'_>, found: Found, now: u32) -> Result<Handled, Tracked> {
        let Some(received) = segment(packet) else { return Ok(Handled::Invalid) };
        let mut segment = received;
        if let Some(tracked) = self.by_proxy(packet, now, found, &mut segment) {
            return Err(tracked);
        }
        let Some(tcp) = self.slots.get_mut(found.slot).transport.tcp_mut() else {
            return Ok(Handled::Invalid);
        };
        if tcp.begins_again(&segment) {
            return Err(NEW);
        }
        match tcp.handle(found.direction, &segment) {
            Handled::Invalid => self.translated_before(found, received).map_or(Ok(Handled::Invalid), Err),
            handled => Ok(handled),
        }
    }

    /// A packet of no connection that is known.
    fn track_unknown(&self, packet: &Packet<'_>, kind: &Kind) -> Tracked {
        if self.begin(packet, &kind.tuple).is_some() { NEW } else { INVALID }
    }

    /// The connection that a packet with this tuple begins, not yet in the table.
    pub(super) fn begin(&self, packet: &Packet<'_>, tuple: &Tuple) -> Option<Connection> {
        let transport = match tuple.protocol {
            IpProto::TCP => Transport::Tcp(Tcp::begin(&segment(packet)?, self.config.pick_up)?),
            IpProto::SCTP => Transport::Sctp(Sctp::begin(&sctp_packet(packet)?)?),
            // A reply without a request.
            IpProto::ICMP | IpProto::ICMPV6 if tuple.query & 1 != 0 => return None,
            _ => Transport::Other,
        };
        Some(Connection::of([*tuple, tuple.reversed()], transport))
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
        Tracked { ports, decided: None, ..tracked }
    }

    /// An error about a packet that its receiver has sent.
    fn track_error(&self, kind: &Kind, found: Found) -> Tracked {
        let Found { slot, direction } = found;
        let connection = self.slots.get(slot);
        let sender = 1 - direction;
        let may_have_sent = |number| match connection.transport() {
            Transport::Tcp(tcp) => tcp.may_have_sent(sender, self.sequence_of_error(found, number)),
            Transport::Sctp(sctp) => sctp.may_have_sent(sender, number),
            Transport::Other => true,
        };
        if kind.number.is_some_and(|number| !may_have_sent(number)) {
            return INVALID;
        }
        // The rules may decide otherwise.
        Tracked { state: ConnState::Related, decided: None, ..self.seen(found) }
    }

    fn count(&mut self, packet: &Packet<'_>, Found { slot, direction }: Found) {
        self.slots.get_mut(slot).count(direction, packet.length);
    }

    /// Counts a packet, which may be an answer.
    pub(super) fn passes(&mut self, packet: &Packet<'_>, found: Found) {
        self.count(packet, found);
        if found.direction == 1 {
            self.slots.get_mut(found.slot).status |= Status::ANSWERED;
        }
        self.follow_stage(found.slot);
    }

    /// Begins the time-out of a connection anew.
    pub(super) fn follow(&mut self, slot: u32, now: u32) {
        let connection = self.slots.get_mut(slot);
        let seconds = connection.timeout(&self.config.timeouts, now);
        let ticks = seconds.saturating_mul(TICKS_PER_SECOND).min(i32::MAX.cast_unsigned());
        connection.deadline = now.wrapping_add(ticks);
    }

    pub(super) fn seen(&self, Found { slot, direction }: Found) -> Tracked {
        let is_reply = direction == 1;
        let connection = self.slots.get(slot);
        let is_answered = is_reply || connection.is_answered();
        let state = if is_answered { ConnState::Established } else { ConnState::New };
        let is_translated = connection.is_translated();
        let proxy = match connection.transport().proxy() {
            ProxyPhase::None => ByProxy::Nothing,
            _ => ByProxy::Translates,
        };
        let decided = self.decided.of(connection.decided[direction]);
        let connection = Some(self.id(slot));
        Tracked { state, connection, is_reply, is_translated, proxy, ports: None, decided }
    }
}

/// Packets of one direction that have passed unseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// How many.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Connections {
    /// Whether packets of TCP or UDP with these ends may pass unseen from now on, as by a kernel that forwards them in
    /// the caller's place, but for SYN, FIN and RST: both ends have answered, and neither closes the connection.
    /// `None`: they may not; else what NAT makes of them, which is to be done to each. Windows of TCP are not checked
    /// any more then.
    pub fn let_pass(&mut self, key: &FlowKey, zone: Zone, now: u32) -> Option<Tuple> {
        let (slot, is_reply) = self.slot_with_ends(key, zone)?;
        let connection = self.slots.get_mut(slot);
        let after = connection.tuple(usize::from(!is_reply)).reversed();
        let is_open = !connection.has_expired(now)
            && connection.is_answered()
            && after.source.is_v4() == key.source.is_v4();
        let may_pass = is_open
            && match connection.transport() {
                Transport::Tcp(tcp) => tcp.state == TcpState::Established && tcp.proxy == ProxyPhase::None,
                Transport::Sctp(_) => false,
                Transport::Other => true,
            };
        if may_pass && let Some(tcp) = connection.transport.tcp_mut() {
            tcp.pass_unseen();
        }
        may_pass.then_some(after)
    }

    /// Counts packets with these ends that have passed unseen. Returns what [`Connections::let_pass`] says of others.
    pub fn passed(&mut self, key: &FlowKey, zone: Zone, now: u32, unseen: Unseen) -> Option<Tuple> {
        let (slot, is_reply) = self.slot_with_ends(key, zone)?;
        let connection = self.slots.get_mut(slot);
        if connection.has_expired(now) {
            return None;
        }
        let (mut packets, mut bytes, direction) =
            (connection.packets(), connection.bytes, usize::from(is_reply));
        packets[direction] = packets[direction].wrapping_add(unseen.packets);
        bytes[direction] = bytes[direction].wrapping_add(unseen.bytes);
        connection.set_counts(packets, bytes);
        let after = self.let_pass(key, zone, now);
        if after.is_some() && unseen.packets > 0 {
            self.follow(slot, now);
        }
        after
    }
}

/// An SCTP packet that is not a later fragment.
fn sctp_packet<'a>(packet: &Packet<'a>) -> Option<SctpPacket<'a>> {
    transport(packet).and_then(SctpPacket::read)
}
