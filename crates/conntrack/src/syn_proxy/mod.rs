// SPDX-License-Identifier: Apache-2.0
//! The SYN proxy: answers the SYN of a client in place of the server, and lets it begin a connection only after it has
//! acknowledged the answer, so that a flood of SYNs with forged sources begins none (RFC 4987 section 3.7).
//!
//! ```text
//!  client                       proxy                         server
//!    │ ── SYN ──────────────────▶ │                             │
//!    │ ◀─ SYN+ACK: cookie, win 0 ─│   no state                  │
//!    │ ── ACK of the cookie ────▶ │ ── the same as a SYN ─────▶ │   the connection begins
//!    │                            │ ◀───────────────── SYN+ACK ─│
//!    │ ◀─ ACK: window ────────────│ ── ACK ───────────────────▶ │
//!    │ ◀───────── sequence numbers, times, windows ───────────▶ │   translated
//! ```
//!
//! As in Linux, the lowest bits of the proxy's time carry what the cookie has no room for: the shift of the client's
//! windows, and whether it takes selective acknowledgments. A client without the option of timestamps has neither.
//! The server's SYN+ACK need not agree with what the client was told: windows are shifted to what each end expects.
//!
//! Not there: congestion notification (the SYN to the server does not ask for it), and repeating a SYN that is lost
//! between proxy and server, unless the client sends something; as in Linux.

mod cookie;
mod frames;
mod translate;

use netvm_flow_table::{NoMemory, Table};
use netvm_wire::{FlowKey, TcpFlags};

use crate::Packet;
use crate::nat::Rewrite;
use crate::packet::headers::{Segment, layers, segment, u16_at, u32_at};
use crate::packet::tuple::{Ports, Tuple, Zone};
use crate::protocol::{Kind, ProxyPhase, Tcp, kind_of};
use frames::{Frame, Options};
use translate::{Change, Translator};

/// Longest frame that the proxy writes, with room for several VLAN tags.
pub const MAX_PROXY_FRAME: usize = 128;

/// The shift of windows that the client is told.
const WINDOW_SHIFT: u8 = 7;

/// The largest segment that the client is told to send: what fits into an Ethernet frame.
const MSS_V4: u16 = 1460;
/// The same for IPv6.
const MSS_V6: u16 = 1440;
/// The largest segment of a client that does not say (RFC 9293 section 3.7.1).
const MSS_DEFAULT: u16 = 536;

/// Bits of a time that carry options.
const CARRIED: u32 = 0x3f;
/// Of these, the shift of windows, or [`NO_SHIFT`].
const SHIFT: u32 = 0x0f;
const NO_SHIFT: u32 = 0x0f;
/// The client takes selective acknowledgments.
const SACK: u32 = 0x10;

/// What the SYN proxy has to do with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByProxy {
    /// Nothing.
    #[default]
    Nothing,
    /// It acknowledges a cookie: [`Connections::syn_of`](crate::Connections::syn_of) makes the SYN of it.
    Proved,
    /// Its connection is proxied: [`Connections::translate_proxied`](crate::Connections::translate_proxied).
    Translates,
}

/// A client that has acknowledged a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proved {
    cookie: u32,
    /// The proxy's time that it has echoed.
    time: u32,
    /// The sequence number of its SYN.
    sequence: u32,
    window: u16,
    scale: Option<u8>,
}

/// What the table of connections has besides for each that is proxied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxied {
    /// The cookie; after the server's answer, how much higher its sequence numbers are than those that the client
    /// sees.
    pub(crate) sequence: u32,
    /// The proxy's time that the client knows; after the server's answer, how much higher its times are.
    pub(crate) times: u32,
}

/// The memory of the SYN proxy.
pub struct ProxyTable(pub(crate) Table<Proxied>);

impl ProxyTable {
    /// For a table of so many connections. Sets the memory aside, and touches it.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(sessions: u32) -> Result<Self, NoMemory> {
        let order = sessions.clamp(1, 1 << 28).next_power_of_two().trailing_zeros();
        Table::try_new(Proxied::default(), order).map(Self)
    }
}

/// The proxy's time at this tick, in about milliseconds, without what it carries.
const fn time(now: u32) -> u32 {
    now.wrapping_mul(1000 / crate::TICKS_PER_SECOND) & !CARRIED
}

const fn tuple(packet: &Packet<'_>) -> Tuple {
    let key = packet.key;
    Tuple::of(key, Ports { numbers: [key.source_port, key.destination_port], query: 0 }, packet.zone)
}

/// The TCP header of a packet.
fn header<'a>(packet: &Packet<'a>) -> Option<&'a [u8]> {
    packet.front.get(layers(packet.front, packet.length)?.transport?..)
}

/// Writes the answer to a SYN; returns its length.
pub(crate) fn answer(packet: &Packet<'_>, now: u32, out: &mut [u8]) -> Option<usize> {
    let syn = segment(packet).filter(|it| kind_of(it.flags) == Some(Kind::Syn) && !it.is_fragment)?;
    let asked = Options::of(header(packet)?);
    let shift = asked.scale.map_or(NO_SHIFT, u32::from);
    let sack = if asked.permits_sack { SACK } else { 0 };
    let carrying = |client: [u32; 2]| [time(now) | shift | sack, client[0]];
    let options = Options {
        mss: Some(if packet.key.source.is_v4() { MSS_V4 } else { MSS_V6 }),
        scale: asked.scale.and(asked.times).map(|_| WINDOW_SHIFT),
        permits_sack: asked.permits_sack && asked.times.is_some(),
        times: asked.times.map(carrying),
    };
    let mss = asked.mss.unwrap_or(MSS_DEFAULT);
    let frame = Frame {
        is_answer: true,
        sequence: cookie::make(&tuple(packet), syn.sequence, mss, now),
        acknowledgment: syn.sequence.wrapping_add(1),
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 0,
        options,
    };
    frame.write(packet, out)
}

/// An acknowledgment of a cookie.
struct Acknowledged {
    cookie: u32,
    /// The sequence number of the SYN.
    sequence: u32,
    mss: u16,
}

/// What a packet acknowledges, if it is a cookie. A client that may not send yet repeats the last byte, so to say (RFC
/// 9293 section 3.8.6.1), which is its SYN.
fn acknowledged(packet: &Packet<'_>, now: u32) -> Option<Acknowledged> {
    if kind_of(packet.key.tcp_flags) != Some(Kind::Ack) {
        return None;
    }
    let (header, tuple) = (header(packet)?, tuple(packet));
    let (next, cookie) = (u32_at(header, 4)?, u32_at(header, 8)?.wrapping_sub(1));
    [next.wrapping_sub(1), next].into_iter().find_map(|sequence| {
        cookie::check(&tuple, sequence, cookie, now).map(|mss| Acknowledged { cookie, sequence, mss })
    })
}

/// Whether a packet acknowledges a cookie.
pub(crate) fn is_proved(packet: &Packet<'_>, now: u32) -> bool {
    acknowledged(packet, now).is_some()
}

/// Makes the SYN to the server of a packet that acknowledges a cookie; returns its length.
pub(crate) fn syn(packet: &Packet<'_>, now: u32, out: &mut [u8]) -> Option<(usize, Proved)> {
    let Acknowledged { cookie, sequence, mss } = acknowledged(packet, now)?;
    let header = header(packet)?;
    let times = Options::of(header).times;
    let [_, time] = times.unwrap_or_default();
    let has_shift = times.is_some() && time & SHIFT != NO_SHIFT;
    let scale = has_shift.then_some((time & SHIFT) as u8);
    let offered = u64::from(u16_at(header, 14)?) << scale.unwrap_or(0);
    let window = offered.min(u16::MAX.into()) as u16;
    let options = Options {
        mss: Some(mss),
        scale,
        permits_sack: times.is_some() && time & SACK != 0,
        times: times.map(|[client, _]| [client, 0]),
    };
    let frame =
        Frame { is_answer: false, sequence, acknowledgment: 0, flags: TcpFlags::SYN, window, options };
    Some((frame.write(packet, out)?, Proved { cookie, time, sequence, window, scale }))
}

impl Proved {
    /// Begins to proxy the connection of this client.
    pub(crate) fn begin(&self, tcp: &mut Tcp) -> Proxied {
        tcp.proxy = ProxyPhase::Connecting;
        // If the client has begun anew, this is another SYN.
        let Self { sequence, window, scale, .. } = *self;
        let (flags, length, is_fragment) = (TcpFlags::SYN, 1, false);
        tcp.handle(0, &Segment { flags, sequence, acknowledgment: 0, window, length, scale, is_fragment });
        Proxied { sequence: self.cookie, times: self.time }
    }
}

impl Proxied {
    /// Writes the acknowledgment of the server's SYN and ACK, which was tracked; returns its length. `None`: the packet
    /// is another one.
    fn answer(&mut self, tcp: &mut Tcp, packet: &Packet<'_>, out: &mut [u8]) -> Option<usize> {
        let opens = |it: &Segment| kind_of(it.flags) == Some(Kind::SynAck) && tcp.began_with(1, it.sequence);
        let from = segment(packet).filter(opens)?;
        let times = Options::of(header(packet)?).times;
        let window = (tcp.window(0) >> tcp.shift(0).unwrap_or(0)).min(u16::MAX.into()) as u16;
        let (sequence, acknowledgment) = (from.acknowledgment, from.sequence.wrapping_add(1));
        let flags = TcpFlags::ACK;
        let options = Options { times: times.map(|[own, echo]| [echo, own]), ..Options::default() };
        let frame = Frame { is_answer: true, sequence, acknowledgment, flags, window, options };
        let length = frame.write(packet, out)?;
        if tcp.proxy == ProxyPhase::Connecting {
            tcp.proxy = ProxyPhase::Connected;
            self.sequence = from.sequence.wrapping_sub(self.sequence);
            self.times = times.map_or(0, |[own, _]| own.wrapping_sub(self.times));
            let (length, scale, is_fragment) = (0, None, false);
            tcp.handle(0, &Segment { flags, sequence, acknowledgment, window, length, scale, is_fragment });
        }
        Some(length)
    }

    const fn translator(self, tcp: &Tcp, change: Change) -> Translator {
        Translator { proxied: self, shifts: [tcp.shift(0), tcp.shift(1)], change }
    }

    /// Makes of a client's segment what the server sees of it.
    pub(crate) fn segment(self, tcp: &Tcp, segment: &mut Segment) {
        self.translator(tcp, Change::ToServer).segment(segment);
    }

    /// The server's sequence number for one that the client knows.
    pub(crate) const fn of_server(self, sequence: u32) -> u32 {
        sequence.wrapping_add(self.sequence)
    }

    /// Translates a packet that was tracked, or an error about one. Returns the length of the answer to its sender; 0:
    /// none. `None`: a field is not in the bytes at hand.
    pub(crate) fn translate(
        &mut self,
        tcp: &mut Tcp,
        is_reply: bool,
        packet: &mut ProxiedPacket<'_>,
    ) -> Option<usize> {
        let ProxiedPacket { key, rewrite, answer } = packet;
        let Rewrite { front, length, .. } = &*rewrite;
        let of = Packet { key, zone: Zone::default(), front, length: *length };
        let answered = if is_reply { self.answer(tcp, &of, answer) } else { None };
        let change = match (tcp.proxy, is_reply) {
            (ProxyPhase::None, _) | (ProxyPhase::Connecting, false) => return Some(0),
            (ProxyPhase::Connecting, true) => Change::Unanswered,
            (ProxyPhase::Connected, false) => Change::ToServer,
            (ProxyPhase::Connected, true) if answered.is_some() => Change::Opening,
            (ProxyPhase::Connected, true) => Change::ToClient,
        };
        self.translator(tcp, change).packet(rewrite)?;
        Some(answered.unwrap_or(0))
    }
}

/// A packet to translate.
#[derive(Debug)]
pub struct ProxiedPacket<'a> {
    /// Its header fields, complete.
    pub key: &'a FlowKey,
    /// Its bytes.
    pub rewrite: Rewrite<'a>,
    /// Room for the answer to its sender, of [`MAX_PROXY_FRAME`] bytes.
    pub answer: &'a mut [u8],
}
