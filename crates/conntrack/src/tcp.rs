//! TCP: the state of both ends together, and which segments are in the windows.
//!
//! A segment of one end is in the window if it has no data beyond what the other end has offered, begins no earlier
//! than a window before what was sent, acknowledges nothing that the other end has not sent, and acknowledges no less
//! than a window before that (van Rooij). Without the first segments of a connection the windows are not known, and
//! every segment is accepted.

use netvm_wire::TcpFlags;

use crate::config::Timeouts;
use crate::headers::Segment;

/// The state of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcpState {
    /// One end, or both, have sent SYN.
    SynSent,
    /// SYN was answered by SYN and ACK.
    SynReceived,
    /// The handshake is complete.
    Established,
    /// One end has sent FIN.
    FinWait,
    /// The other end has acknowledged it.
    CloseWait,
    /// Both ends have sent FIN.
    LastAck,
    /// Both have been acknowledged.
    TimeWait,
    /// Reset.
    Closed,
}

impl TcpState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "syn-sent",
            Self::SynReceived => "syn-recv",
            Self::Established => "established",
            Self::FinWait => "fin-wait",
            Self::CloseWait => "close-wait",
            Self::LastAck => "last-ack",
            Self::TimeWait => "time-wait",
            Self::Closed => "close",
        }
    }

    pub(crate) const fn timeout(self, timeouts: &Timeouts) -> u32 {
        match self {
            Self::SynSent => timeouts.tcp_syn_sent,
            Self::SynReceived => timeouts.tcp_syn_recv,
            Self::Established => timeouts.tcp_established,
            Self::FinWait => timeouts.tcp_fin_wait,
            Self::CloseWait => timeouts.tcp_close_wait,
            Self::LastAck => timeouts.tcp_last_ack,
            Self::TimeWait => timeouts.tcp_time_wait,
            Self::Closed => timeouts.tcp_close,
        }
    }
}

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

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// It belongs to the connection.
    Valid,
    /// A SYN of a connection whose handshake is complete: a retransmission, or a guess. The receiver knows which.
    WithoutEffect,
    /// It cannot belong to the connection, which is unchanged.
    Invalid,
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
    /// Shift of its windows (RFC 7323 section 2).
    scale: u8,
    /// Its SYN had the option of window scaling.
    has_scale: bool,
    /// It has sent a segment that was seen.
    is_known: bool,
    /// It has sent FIN, with this as the sequence number after it.
    fin: Option<u32>,
}

const UNKNOWN: End =
    End { end: 0, offered: 0, window: 0, scale: 0, has_scale: false, is_known: false, fin: None };

/// A TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tcp {
    pub(crate) state: TcpState,
    ends: [End; 2],
    /// Its first segments were not seen, so every one is in the window.
    is_liberal: bool,
}

/// Whether `a` comes after `b` in sequence space.
const fn is_after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a).cast_signed() < 0
}

/// How far back an acknowledgment may be, at least (Linux's MAXACKWINCONST).
const LEAST_BACK: u32 = 66_000;

impl Tcp {
    pub(crate) const NEW: Self = Self { state: TcpState::SynSent, ends: [UNKNOWN; 2], is_liberal: false };

    /// A connection that begins with this segment; `None` if it cannot.
    pub(crate) fn begin(segment: &Segment, picks_up: bool) -> Option<Self> {
        let mut tcp = Self::NEW;
        match kind_of(segment.flags)? {
            Kind::Syn => {}
            Kind::Ack | Kind::Fin if picks_up => {
                let state = if segment.flags.contains(TcpFlags::FIN) {
                    TcpState::FinWait
                } else {
                    TcpState::Established
                };
                (tcp.state, tcp.is_liberal) = (state, true);
            }
            _ => return None,
        }
        tcp.note(0, segment);
        Some(tcp)
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        self.state >= TcpState::Established
    }

    /// Whether a SYN may begin another connection between the same ends.
    pub(crate) const fn may_begin_again(&self) -> bool {
        matches!(self.state, TcpState::TimeWait | TcpState::Closed)
    }

    /// Handles a segment of the end that began the connection (0), or of the other one (1).
    pub(crate) fn handle(&mut self, from: usize, segment: &Segment) -> Handled {
        let Some(kind) = kind_of(segment.flags) else { return Handled::Invalid };
        let (is_syn, is_reply) = (matches!(kind, Kind::Syn | Kind::SynAck), from == 1);
        if !self.may_come(kind, is_reply, segment) {
            return Handled::Invalid;
        }
        if is_syn && self.state >= TcpState::Established {
            return Handled::WithoutEffect;
        }
        if !is_syn && !self.is_in_window(from, segment) {
            return Handled::Invalid;
        }
        self.note(from, segment);
        self.state = self.next(kind, from, segment);
        Handled::Valid
    }

    /// Whether a segment of this kind may come in this state.
    fn may_come(&self, kind: Kind, is_reply: bool, segment: &Segment) -> bool {
        let other = &self.ends[usize::from(!is_reply)];
        match (self.state, kind) {
            (TcpState::SynSent, Kind::Ack | Kind::Fin) => false,
            // An answer acknowledges the SYN (RFC 9293 section 3.10.7.3).
            (TcpState::SynSent, Kind::SynAck) => other.is_known && segment.acknowledgment == other.end,
            (TcpState::SynSent, Kind::Rst) if is_reply => {
                segment.flags.contains(TcpFlags::ACK) && segment.acknowledgment == other.end
            }
            (TcpState::SynReceived, Kind::SynAck) => segment.acknowledgment == other.end,
            (_, _) => true,
        }
    }

    fn is_in_window(&self, from: usize, segment: &Segment) -> bool {
        let (own, other) = (&self.ends[from], &self.ends[1 - from]);
        if self.is_liberal || !own.is_known || !other.is_known || segment.is_fragment {
            return true;
        }
        let begin = segment.sequence;
        let end = begin.wrapping_add(segment.length);
        let back = own.window.max(LEAST_BACK);
        let first = own.end.wrapping_sub(other.window);
        let data_fits = !is_after(begin, own.offered) && is_after(end, first.wrapping_sub(1));
        if !segment.flags.contains(TcpFlags::ACK) {
            return data_fits;
        }
        let acknowledges = !is_after(segment.acknowledgment, other.end)
            && is_after(segment.acknowledgment, other.end.wrapping_sub(back).wrapping_sub(1));
        data_fits && acknowledges
    }

    /// Notes what an end has sent and offered.
    fn note(&mut self, from: usize, segment: &Segment) {
        let is_syn = segment.flags.contains(TcpFlags::SYN);
        let scales = self.ends[0].has_scale && self.ends[1].has_scale;
        let end = segment.sequence.wrapping_add(segment.length);
        let [own, other] = match (&mut self.ends, from) {
            ([first, second], 0) => [first, second],
            ([first, second], _) => [second, first],
        };
        if is_syn {
            own.has_scale = segment.scale.is_some();
            own.scale = segment.scale.unwrap_or(0).min(14);
        }
        // Windows of SYN segments are not scaled (RFC 7323 section 2.2).
        let shift = if scales && !is_syn { own.scale } else { 0 };
        let window = (u32::from(segment.window) << shift).max(1);
        if !own.is_known || is_syn && self.state < TcpState::Established {
            (own.end, own.is_known) = (end, true);
            if !is_after(own.offered, end) {
                own.offered = end;
            }
        } else if is_after(end, own.end) {
            own.end = end;
        }
        own.window = own.window.max(window);
        if segment.flags.contains(TcpFlags::FIN) {
            own.fin = Some(end);
        }
        if segment.flags.contains(TcpFlags::ACK) {
            let offered = segment.acknowledgment.wrapping_add(window);
            if !other.is_known || is_after(offered, other.offered) {
                other.offered = offered;
            }
        }
    }

    /// The state after a valid segment that was noted.
    fn next(&self, kind: Kind, from: usize, segment: &Segment) -> TcpState {
        let both_fin = self.ends.iter().all(|end| end.fin.is_some());
        let acknowledges_fin =
            self.ends[1 - from].fin.is_some_and(|fin| !is_after(fin, segment.acknowledgment));
        match (self.state, kind) {
            (_, Kind::Rst) => TcpState::Closed,
            (TcpState::SynSent, Kind::SynAck) => TcpState::SynReceived,
            (TcpState::SynReceived, Kind::Ack) if from == 0 => TcpState::Established,
            (state @ (TcpState::TimeWait | TcpState::Closed), _) => state,
            (TcpState::LastAck, Kind::Ack) if acknowledges_fin => TcpState::TimeWait,
            (_, Kind::Fin) if both_fin => TcpState::LastAck,
            (_, Kind::Fin) => TcpState::FinWait,
            (TcpState::FinWait, Kind::Ack) if acknowledges_fin => TcpState::CloseWait,
            (state, _) => state,
        }
    }
}
