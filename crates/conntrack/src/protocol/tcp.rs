// SPDX-License-Identifier: Apache-2.0
//! TCP: the state of both ends together, and which segments are in the windows.
//!
//! A segment of one end is in the window if it has no data beyond what the other end has offered, begins no earlier
//! than a window before what was sent, acknowledges nothing that the other end has not sent, and acknowledges no less
//! than a window before that (van Rooij). Without the first segments of a connection the windows are not known, and
//! every segment is accepted.

mod state;
mod view;

use bitflags::bitflags;
use netvm_wire::TcpFlags;

use crate::packet::headers::Segment;
use crate::protocol::handled::{Handled, Stage};

pub use state::TcpState;
pub use view::TcpEnd;

/// What flags make of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

/// The kind of a segment; `None`: no end sends such flags.
pub(crate) fn kind_of(flags: TcpFlags) -> Option<Kind> {
    let with = |flag| flags.contains(flag);
    match (with(TcpFlags::SYN), with(TcpFlags::FIN), with(TcpFlags::RST), with(TcpFlags::ACK)) {
        (true, false, false, false) => Some(Kind::Syn),
        (true, false, false, true) => Some(Kind::SynAck),
        (false, true, false, true) => Some(Kind::Fin),
        (false, false, true, _) => Some(Kind::Rst),
        (false, false, false, true) => Some(Kind::Ack),
        _ => None,
    }
}

/// What one end has sent and offered.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The sequence number after the last one sent.
    end: u32,
    /// The sequence number after the last one that the other end has offered.
    offered: u32,
    /// The largest window offered to the other end.
    window: u32,
    /// Before the handshake is complete, the sequence number after its SYN; after it has sent FIN, the one after that.
    mark: u32,
    /// The last sequence number that it has acknowledged.
    acknowledged: u32,
}

bitflags! {
    /// What one end has sent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Sent: u8 {
        /// A segment.
        const SEGMENT = 1;
        /// An acknowledgment.
        const ACKNOWLEDGMENT = 2;
        const FIN = 4;
    }
}

impl Sent {
    /// What a segment with these flags has.
    fn of(flags: TcpFlags) -> Self {
        let mut sent = Self::SEGMENT;
        sent.set(Self::ACKNOWLEDGMENT, flags.contains(TcpFlags::ACK));
        sent.set(Self::FIN, flags.contains(TcpFlags::FIN));
        sent
    }
}

/// Its SYN was not seen, or did not have the option of window scaling.
const NO_SCALE: u8 = u8::MAX;
/// RFC 7323 section 2.3.
const MAX_SCALE: u8 = 14;

const UNKNOWN: End = End { end: 0, offered: 0, window: 0, mark: 0, acknowledged: 0 };

/// How far the SYN proxy is with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyPhase {
    /// The connection is not proxied.
    None,
    /// The client has proved its address; the server has not answered the SYN.
    Connecting,
    /// The server has.
    Connected,
}

impl ProxyPhase {
    /// All, by number.
    const ALL: [Self; 3] = [Self::None, Self::Connecting, Self::Connected];
}

/// A TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tcp {
    ends: [End; 2],
    /// Shifts of their windows (RFC 7323 section 2), or [`NO_SCALE`].
    scales: [u8; 2],
    sent: [Sent; 2],
    pub(crate) state: TcpState,
    /// Its first segments were not seen, so every one is in the window.
    is_liberal: bool,
    /// Segments may pass unseen, so every one is in the window, and the next sequence numbers are not known.
    passes_unseen: bool,
    pub(crate) proxy: ProxyPhase,
}

/// Bytes of [`Tcp::to_bytes`].
pub(crate) const SAVED_TCP: usize = 48;

/// Whether `a` comes after `b` in sequence space.
const fn is_after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a).cast_signed() < 0
}

/// How far back an acknowledgment may be, at least (Linux's MAXACKWINCONST).
const MIN_BACK: u32 = 66_000;

impl Tcp {
    pub(crate) const NEW: Self = Self {
        ends: [UNKNOWN; 2],
        scales: [NO_SCALE; 2],
        sent: [Sent::empty(); 2],
        state: TcpState::SynSent,
        is_liberal: false,
        passes_unseen: false,
        proxy: ProxyPhase::None,
    };

    /// Lets segments pass unseen from now on.
    pub(crate) const fn pass_unseen(&mut self) {
        (self.is_liberal, self.passes_unseen) = (true, true);
    }

    /// Whether an end has sent this.
    const fn has_sent(&self, end: usize, what: Sent) -> bool {
        self.sent[end].contains(what)
    }

    /// As in the record of a [`SavedConnection`](crate::SavedConnection).
    pub(crate) fn to_bytes(self) -> [u8; SAVED_TCP] {
        let mut bytes = [0; SAVED_TCP];
        let words = self.ends.iter().flat_map(|it| [it.end, it.offered, it.window, it.mark, it.acknowledged]);
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let ([a, b], [c, d]) = (self.scales, self.sent);
        let liberal = u8::from(self.is_liberal) + u8::from(self.passes_unseen);
        let rest = [a, b, c.bits(), d.bits(), self.state as u8, liberal, self.proxy as u8];
        bytes[40..47].copy_from_slice(&rest);
        bytes
    }

    /// Undoes [`Tcp::to_bytes`]; `None` for what no connection has.
    pub(crate) fn from_bytes(bytes: &[u8; SAVED_TCP]) -> Option<Self> {
        let (words, _) = bytes.as_chunks();
        let end = |first: usize| {
            let [end, offered, window, mark, acknowledged] =
                std::array::from_fn(|n| u32::from_le_bytes(words[first + n]));
            End { end, offered, window, mark, acknowledged }
        };
        let [.., a, b, c, d, state, liberal @ 0..=2, proxy, 0] = *bytes else { return None };
        let has_scale = |scale| scale <= MAX_SCALE || scale == NO_SCALE;
        let sent = [Sent::from_bits(c)?, Sent::from_bits(d)?];
        let state = *TcpState::ALL.get(usize::from(state))?;
        let (is_liberal, proxy) = (liberal > 0, *ProxyPhase::ALL.get(usize::from(proxy))?);
        let ends = [end(0), end(5)];
        let tcp = Self { ends, scales: [a, b], sent, state, is_liberal, passes_unseen: liberal == 2, proxy };
        (has_scale(a) && has_scale(b)).then_some(tcp)
    }

    /// A connection that begins with this segment; `None` if it cannot.
    pub(crate) fn begin(segment: &Segment, picks_up: bool) -> Option<Self> {
        let mut tcp = Self::NEW;
        match kind_of(segment.flags)? {
            Kind::Syn => {}
            Kind::Ack if picks_up => (tcp.state, tcp.is_liberal) = (TcpState::Established, true),
            _ => return None,
        }
        tcp.note(0, segment);
        Some(tcp)
    }

    /// How far the connection is after an answer.
    pub(crate) const fn stage(&self) -> Stage {
        match self.state {
            TcpState::SynSent | TcpState::SynReceived => Stage::HalfOpen,
            TcpState::TimeWait | TcpState::Closed => Stage::Closed,
            _ => Stage::Open,
        }
    }

    /// Whether both ends have closed it, or one has reset it.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.state, TcpState::TimeWait | TcpState::Closed)
    }

    /// Whether a segment begins another connection between the same ends.
    pub(crate) fn begins_again(&self, segment: &Segment) -> bool {
        self.is_over() && kind_of(segment.flags) == Some(Kind::Syn)
    }

    /// Whether the SYN of an end had this sequence number, as long as that end has not sent FIN.
    pub(crate) const fn began_with(&self, end: usize, sequence: u32) -> bool {
        self.has_sent(end, Sent::SEGMENT) && self.ends[end].mark == sequence.wrapping_add(1)
    }

    /// The shift of an end's windows, if its SYN had the option.
    pub(crate) const fn shift(&self, end: usize) -> Option<u8> {
        match self.scales[end] {
            NO_SCALE => None,
            shift => Some(shift),
        }
    }

    /// The largest window that an end has offered.
    pub(crate) const fn window(&self, end: usize) -> u32 {
        self.ends[end].window
    }

    /// Whether an ICMP error may be about a segment of this end with this sequence number (RFC 5927 section 4.1).
    pub(crate) fn may_have_sent(&self, end: usize, sequence: u32) -> bool {
        let [own, other] = [&self.ends[end], &self.ends[1 - end]];
        let first = own.end.wrapping_sub(other.window.max(MIN_BACK));
        let fits = !is_after(sequence, own.end) && !is_after(first, sequence);
        self.is_liberal || self.has_sent(end, Sent::SEGMENT) && fits
    }

    /// Handles a segment of the end that began the connection (0), or of the other one (1).
    pub(crate) fn handle(&mut self, from: usize, segment: &Segment) -> Handled {
        let Some(kind) = kind_of(segment.flags) else { return Handled::Invalid };
        let is_syn = matches!(kind, Kind::Syn | Kind::SynAck);
        if !self.may_come(kind, from, segment) {
            return Handled::Invalid;
        }
        if self.state >= TcpState::Established && is_syn
            || self.state == TcpState::SynReceived && kind == Kind::Syn
        {
            return Handled::WithoutEffect;
        }
        if !is_syn && !self.is_in_window(from, segment) {
            return Handled::Invalid;
        }
        if kind == Kind::Rst && self.state == TcpState::Established && !self.is_next(from, segment.sequence) {
            return Handled::WithoutEffect;
        }
        self.note(from, segment);
        self.state = self.next(kind, from, segment);
        Handled::Valid
    }

    /// Whether a segment of this kind may come in this state.
    fn may_come(&self, kind: Kind, from: usize, segment: &Segment) -> bool {
        let (own, other) = (&self.ends[from], &self.ends[1 - from]);
        let has_ack = segment.flags.contains(TcpFlags::ACK);
        // All of the SYN's data need not be acknowledged with it (RFC 7413 section 3).
        let answers_syn = self.has_sent(1 - from, Sent::SEGMENT)
            && !is_after(segment.acknowledgment, other.end)
            && !is_after(other.mark, segment.acknowledgment);
        match (self.state, kind) {
            (TcpState::SynSent, Kind::Ack | Kind::Fin) => false,
            // An answer acknowledges the SYN (RFC 9293 section 3.10.7.3).
            (TcpState::SynSent | TcpState::SynReceived, Kind::SynAck) => answers_syn,
            (TcpState::SynSent, Kind::Rst) if from == 1 => has_ack && answers_syn,
            (TcpState::SynSent, Kind::Rst) => segment.sequence == own.end,
            // Linux: what the other end has acknowledged cannot be reset.
            (_, Kind::Rst) => {
                let has_acknowledged = self.has_sent(1 - from, Sent::ACKNOWLEDGMENT);
                self.is_liberal || !has_acknowledged || !is_after(other.acknowledged, segment.sequence)
            }
            (_, _) => true,
        }
    }

    /// Whether a sequence number is the next one of an end, as far as the other end or its own segments say.
    fn is_next(&self, from: usize, sequence: u32) -> bool {
        let (own, other) = (&self.ends[from], &self.ends[1 - from]);
        self.passes_unseen
            || !self.has_sent(1 - from, Sent::ACKNOWLEDGMENT)
            || sequence == other.acknowledged
            || self.has_sent(from, Sent::SEGMENT) && sequence == own.end
    }

    fn is_in_window(&self, from: usize, segment: &Segment) -> bool {
        let (own, other) = (&self.ends[from], &self.ends[1 - from]);
        let are_known = self.sent.iter().all(|sent| sent.contains(Sent::SEGMENT));
        if self.is_liberal || !are_known || segment.is_fragment {
            return true;
        }
        let begin = segment.sequence;
        let end = begin.wrapping_add(segment.length);
        let back = own.window.max(MIN_BACK);
        let first = own.end.wrapping_sub(other.window);
        let data_fits = !is_after(begin, own.offered) && !is_after(first, end);
        let oldest = other.end.wrapping_sub(back);
        let acknowledges =
            !is_after(segment.acknowledgment, other.end) && !is_after(oldest, segment.acknowledgment);
        data_fits && (acknowledges || !segment.flags.contains(TcpFlags::ACK))
    }

    /// Notes what an end has sent and offered.
    fn note(&mut self, from: usize, segment: &Segment) {
        let Segment { sequence, acknowledgment, .. } = *segment;
        let is_syn = segment.flags.contains(TcpFlags::SYN);
        let scales = !self.scales.contains(&NO_SCALE);
        let [before, of_other] = [self.sent[from], self.sent[1 - from]];
        let end = sequence.wrapping_add(segment.length);
        let [first, second] = &mut self.ends;
        let (own, other) = if from == 0 { (first, second) } else { (second, first) };
        // Windows of SYN segments are not scaled (RFC 7323 section 2.2).
        let shift = if scales && !is_syn { self.scales[from] } else { 0 };
        let window = (u32::from(segment.window) << shift).max(1);
        if is_syn {
            self.scales[from] = segment.scale.map_or(NO_SCALE, |shift| shift.min(MAX_SCALE));
            own.mark = sequence.wrapping_add(1);
        }
        if !before.contains(Sent::SEGMENT) || is_syn {
            own.end = end;
            // The window of a SYN offers before its end acknowledges anything (RFC 7413 section 4.2.2).
            if !of_other.contains(Sent::ACKNOWLEDGMENT) {
                own.offered = end.wrapping_add(other.window);
            }
        } else if is_after(end, own.end) {
            own.end = end;
        }
        own.window = own.window.max(window);
        if segment.flags.contains(TcpFlags::FIN) {
            own.mark = end;
        }
        if segment.flags.contains(TcpFlags::ACK) {
            let offered = acknowledgment.wrapping_add(window);
            let has_acknowledged = before.contains(Sent::ACKNOWLEDGMENT);
            let is_first_offer = !of_other.contains(Sent::SEGMENT) && !has_acknowledged;
            if is_first_offer || is_after(offered, other.offered) {
                other.offered = offered;
            }
            if !has_acknowledged || is_after(acknowledgment, own.acknowledged) {
                own.acknowledged = acknowledgment;
            }
        }
        self.sent[from] |= Sent::of(segment.flags);
    }

    /// The state after a valid segment that was noted.
    fn next(&self, kind: Kind, from: usize, segment: &Segment) -> TcpState {
        let other = &self.ends[1 - from];
        let both_fin = self.sent.iter().all(|sent| sent.contains(Sent::FIN));
        let acknowledges_fin =
            self.has_sent(1 - from, Sent::FIN) && !is_after(other.mark, segment.acknowledgment);
        match (self.state, kind) {
            (_, Kind::Rst) => TcpState::Closed,
            (TcpState::SynSent, Kind::SynAck) => TcpState::SynReceived,
            (TcpState::SynReceived, Kind::Ack) if from == 0 => TcpState::Established,
            (state @ (TcpState::TimeWait | TcpState::Closed), _) => state,
            (TcpState::LastAck, Kind::Ack) if acknowledges_fin => TcpState::TimeWait,
            (_, Kind::Fin) if both_fin => TcpState::LastAck,
            (TcpState::CloseWait, Kind::Fin) => TcpState::CloseWait,
            (_, Kind::Fin) => TcpState::FinWait,
            (TcpState::FinWait, Kind::Ack) if acknowledges_fin => TcpState::CloseWait,
            (state, _) => state,
        }
    }
}
