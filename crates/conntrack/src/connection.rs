// SPDX-License-Identifier: Apache-2.0
//! [`Connection`]: one entry of the table.

mod status;

use std::mem::offset_of;

use netvm_wire::IpProto;

use crate::TICKS_PER_SECOND;
use crate::config::Timeouts;
use crate::mapped::Mapped;
use crate::packet::tuple::Tuple;
use crate::protocol::{SctpState, Stage, TcpEnd, TcpState, Transport};
pub(crate) use status::Status;

/// A connection, as long as it lives: its slot, and the number of its use, so that a later connection in the slot is
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

impl ConnectionId {
    /// Its slot, less than 2^28, and the lower bits of its number, for
    /// [`Connections::noted`](crate::Connections::noted).
    #[must_use]
    pub const fn note(self) -> (u32, u16) {
        (self.slot, self.serial as u16)
    }

    /// The connection of this slot, in this use of it.
    #[must_use]
    pub const fn new(slot: u32, serial: u32) -> Self {
        Self { slot, serial }
    }

    /// Its slot.
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// The number of the slot's use.
    #[must_use]
    pub const fn serial(self) -> u32 {
        self.serial
    }
}

/// What begins a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The port that received its first packet.
    pub port: u16,
    /// The rule that accepted the packet, as the caller numbers rules, for events and lists; 0: none.
    pub rule: u32,
}

/// The state of a connection's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// TCP, with the names of RFC 9293, as Linux has them for both ends together.
    Tcp(TcpState),
    /// SCTP, with the names of Linux.
    Sctp(SctpState),
    /// No answer yet.
    Unreplied,
    /// Answered.
    Replied,
}

impl ConnectionState {
    /// The names of all states.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let others = [Self::Unreplied, Self::Replied].map(Self::name);
        let tcp = TcpState::ALL.map(TcpState::name).into_iter();
        tcp.chain(SctpState::ALL.map(SctpState::name)).chain(others)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp(state) => state.name(),
            Self::Sctp(state) => state.name(),
            Self::Unreplied => "unreplied",
            Self::Replied => "replied",
        }
    }
}

/// A connection: three cache lines. What a packet of UDP or ICMP reads and writes is in the first two.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Connection {
    /// The direction of its first packet.
    pub(crate) original: Tuple,
    /// Tick after which it ends.
    pub(crate) deadline: u32,
    pub(crate) serial: u32,
    /// Tick of its first packet.
    pub(crate) created: u32,
    /// What the caller has noted of the packets of each direction: see
    /// [`Connections::set_decided`](crate::Connections::set_decided).
    pub(crate) decided: [u32; 2],
    /// The port that received its first packet.
    pub from: u16,
    pub(crate) mapped: Mapped,
    pub(crate) status: Status,

    /// The direction of answers.
    pub(crate) reply: Tuple,
    /// Bytes by direction.
    pub bytes: [u64; 2],
    /// The lower 32 bits of the packets by direction.
    pub(crate) packets_below: [u32; 2],

    pub(crate) transport: Transport,
    /// The bits of the packets above.
    pub(crate) packets_above: [u16; 2],
    /// The rule that accepted it: [`Origin::rule`].
    pub rule: u32,
    /// Neighbours in the list of connections that may be evicted.
    pub(crate) older: u32,
    pub(crate) newer: u32,
}

/// Seconds that TCP in mid-stream may stay without an answer.
const UNACKNOWLEDGED: u32 = 300;

/// Ticks after which UDP in both directions is a stream.
const STREAM_AFTER: u32 = 2 * TICKS_PER_SECOND;

const _: () = {
    assert!(size_of::<Connection>() == 192);
    assert!(offset_of!(Connection, reply) == 64);
    assert!(offset_of!(Connection, transport) == 128);
};

impl Connection {
    /// A free slot.
    pub(crate) const FREE: Self = Self {
        original: Tuple::NONE,
        deadline: 0,
        serial: 0,
        created: 0,
        decided: [0; 2],
        from: 0,
        mapped: Mapped::NONE,
        status: Status::empty(),
        reply: Tuple::NONE,
        bytes: [0; 2],
        packets_below: [0; 2],
        transport: Transport::Other,
        packets_above: [0; 2],
        rule: 0,
        older: u32::MAX,
        newer: u32::MAX,
    };

    /// A connection with these tuples, original and reply, that has had no packet.
    pub(crate) const fn of([original, reply]: [Tuple; 2], transport: Transport) -> Self {
        let status = Status::empty().with(Status::STATELESS, matches!(transport, Transport::Other));
        Self { original, reply, transport, status, ..Self::FREE }
    }

    /// Whether its slot has one.
    #[inline(always)]
    pub(crate) const fn is_in_use(&self) -> bool {
        self.status.contains(Status::IN_USE)
    }

    /// Both directions.
    pub(crate) const fn tuples(&self) -> [Tuple; 2] {
        [self.original, self.reply]
    }

    /// One direction.
    #[inline(always)]
    pub(crate) const fn tuple(&self, direction: usize) -> &Tuple {
        if direction == 0 { &self.original } else { &self.reply }
    }

    /// Gives it another reply tuple, which says whether it is translated.
    pub(crate) fn set_reply(&mut self, reply: Tuple) {
        self.reply = reply;
        self.status.set(Status::TRANSLATED, reply != self.original.reversed());
    }

    /// Packets by direction, modulo 2^48.
    #[must_use]
    pub const fn packets(&self) -> [u64; 2] {
        let ([a, b], [c, d]) = (self.packets_below, self.packets_above);
        [(c as u64) << 32 | a as u64, (d as u64) << 32 | b as u64]
    }

    /// Sets the counters of both directions.
    pub(crate) const fn set_counts(&mut self, packets: [u64; 2], bytes: [u64; 2]) {
        let [a, b] = packets;
        self.packets_below = [a as u32, b as u32];
        self.packets_above = [(a >> 32) as u16, (b >> 32) as u16];
        self.bytes = bytes;
    }

    /// Counts a packet of a direction.
    #[inline(always)]
    pub(crate) fn count(&mut self, direction: usize, length: usize) {
        let (packets, has_overflown) = self.packets_below[direction].overflowing_add(1);
        self.packets_below[direction] = packets;
        self.bytes[direction] = self.bytes[direction].wrapping_add(length as u64);
        if has_overflown {
            self.packets_above[direction] = self.packets_above[direction].wrapping_add(1);
        }
    }

    /// What its protocol remembers. Reads the third cache line only if that is something.
    #[inline(always)]
    pub(crate) const fn transport(&self) -> &Transport {
        if self.status.contains(Status::STATELESS) { &Transport::Other } else { &self.transport }
    }

    /// The direction of its first packet.
    #[must_use]
    pub const fn original(&self) -> &Tuple {
        &self.original
    }

    /// The direction of answers.
    #[must_use]
    pub const fn reply(&self) -> &Tuple {
        &self.reply
    }

    /// What began it.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        Origin { port: self.from, rule: self.rule }
    }

    /// Both ends of TCP: the one that began it, and the other.
    #[must_use]
    pub fn tcp_ends(&self) -> Option<[TcpEnd; 2]> {
        match self.transport() {
            Transport::Tcp(tcp) => Some(tcp.ends()),
            _ => None,
        }
    }

    /// Whether it has had an answer.
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        self.status.contains(Status::ANSWERED)
    }

    /// Whether it stays when the table is full.
    #[must_use]
    pub const fn is_assured(&self) -> bool {
        self.status.contains(Status::OPEN)
    }

    /// Whether its packets are rewritten.
    #[must_use]
    pub const fn is_translated(&self) -> bool {
        self.status.contains(Status::TRANSLATED)
    }

    /// Whether one of its ends is of IPv6, and the other of IPv4: see [`nat64`](crate::nat64).
    #[must_use]
    pub const fn is_nat64(&self) -> bool {
        self.original.source.is_v4() != self.reply.source.is_v4()
    }

    /// Whether it leads to another destination than its first packet had.
    #[must_use]
    pub fn has_other_destination(&self) -> bool {
        let Self { original, reply, .. } = self;
        // The identifier of a query belongs to its source.
        let has_other_port = original.query == 0 && original.destination_port != reply.source_port;
        original.destination != reply.source || has_other_port
    }

    /// Whether what stands for its source is a port of a block.
    pub(crate) fn has_block(&self) -> bool {
        self.mapped.has_source() && self.mapped.block_size().is_some()
    }

    /// Whether [`Connections::settle_source`](crate::Connections::settle_source) has decided
    /// what stands for its source.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.status.contains(Status::SETTLED)
    }

    /// The state of its protocol.
    #[must_use]
    pub const fn state(&self) -> ConnectionState {
        match (self.transport(), self.is_answered()) {
            (Transport::Tcp(tcp), _) => ConnectionState::Tcp(tcp.state),
            (Transport::Sctp(sctp), _) => ConnectionState::Sctp(sctp.state),
            (_, false) => ConnectionState::Unreplied,
            (_, true) => ConnectionState::Replied,
        }
    }

    /// Ticks since its first packet.
    #[must_use]
    pub const fn age(&self, now: u32) -> u32 {
        now.wrapping_sub(self.created)
    }

    /// Ticks until it ends if no packet comes.
    #[must_use]
    pub fn left(&self, now: u32) -> u32 {
        if self.has_expired(now) { 0 } else { self.deadline.wrapping_sub(now) }
    }

    pub(crate) const fn has_expired(&self, now: u32) -> bool {
        now.wrapping_sub(self.deadline).cast_signed() > 0
    }

    /// How far it is, by its protocol.
    pub(crate) const fn reached(&self) -> Stage {
        if !self.is_answered() {
            return Stage::HalfOpen;
        }
        match self.transport() {
            Transport::Tcp(tcp) => tcp.stage(),
            Transport::Sctp(sctp) => sctp.stage(),
            Transport::Other => Stage::Open,
        }
    }

    /// Its time-out in seconds at this tick.
    pub(crate) fn timeout(&self, timeouts: &Timeouts, now: u32) -> u32 {
        let seconds = self.timeout_of_state(timeouts, now);
        if self.is_nat64() { seconds.max(self.min_timeout_of_nat64()) } else { seconds }
    }

    /// The defaults of RFC 6146 section 4.
    const fn min_timeout_of_nat64(&self) -> u32 {
        const TCP_EST: u32 = 7440;
        const TCP_TRANS: u32 = 240;
        const UDP_DEFAULT: u32 = 300;
        const ICMP_DEFAULT: u32 = 60;
        match (self.transport(), self.original.protocol) {
            (Transport::Tcp(_), _) if matches!(self.reached(), Stage::Open) => TCP_EST,
            (Transport::Tcp(_), _) => TCP_TRANS,
            (_, IpProto::UDP) => UDP_DEFAULT,
            (_, IpProto::ICMP | IpProto::ICMPV6) => ICMP_DEFAULT,
            _ => 0,
        }
    }

    fn timeout_of_state(&self, timeouts: &Timeouts, now: u32) -> u32 {
        match (self.transport(), self.is_answered()) {
            // In mid-stream, until it is answered (Linux: `nf_conntrack_tcp_timeout_unacknowledged`).
            (Transport::Tcp(tcp), false) => return tcp.state.timeout(timeouts).min(UNACKNOWLEDGED),
            (Transport::Tcp(tcp), true) => return tcp.state.timeout(timeouts),
            (Transport::Sctp(sctp), _) => return sctp.state.timeout(timeouts),
            (Transport::Other, _) => {}
        }
        match (self.original.protocol, self.is_answered()) {
            // Only what goes on after the first answers is a stream, as with Linux: not each query of a name server.
            (IpProto::UDP, true) if self.age(now) > STREAM_AFTER => timeouts.udp_stream,
            (IpProto::UDP, _) => timeouts.udp,
            (IpProto::ICMP | IpProto::ICMPV6, _) => timeouts.icmp,
            _ => timeouts.generic,
        }
    }
}
