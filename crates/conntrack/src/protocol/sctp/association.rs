// SPDX-License-Identifier: Apache-2.0
//! [`Sctp`]: the tags of an association, and which packets belong to it.

use super::packet::{Chunk, REFLECTED, SctpPacket, WITH_RULES, kind};
use super::state::{SctpState, next};
use crate::protocol::handled::{Handled, Stage};

/// An association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sctp {
    /// The tags that packets of each direction have; 0: not known.
    tags: [u32; 2],
    /// Those that an INIT and its answer offer while the association is open; 0: none.
    offered: [u32; 2],
    pub(crate) state: SctpState,
    /// Which ends have sent INIT, until a COOKIE ACK.
    has_sent_init: [bool; 2],
    /// The end whose HEARTBEAT had another tag, if it was not answered yet.
    other_heartbeat: Option<bool>,
}

/// Bytes of [`Sctp::to_bytes`].
pub(crate) const SAVED_SCTP: usize = 20;

impl Sctp {
    /// The association that a packet begins; `None` if it cannot.
    pub(crate) fn begin(packet: &SctpPacket<'_>) -> Option<Self> {
        let first = packet.chunks().next()?;
        let state = match first.kind {
            kind::HEARTBEAT => SctpState::HeartbeatSent,
            kind::SHUTDOWN_ACK => SctpState::ShutdownAckSent,
            kind::INIT | kind::HEARTBEAT_ACK => SctpState::Closed,
            _ => return None,
        };
        let is_init = first.kind == kind::INIT;
        let tags = match first.kind {
            kind::INIT => [0, first.offers()?],
            // Its answer reflects the tag (section 8.4, 5).
            kind::SHUTDOWN_ACK => [0, packet.tag],
            _ => [packet.tag, 0],
        };
        let has_rest = packet.chunks().all(|chunk| chunk.kind == first.kind);
        let is_valid = has_rest && (!is_init || packet.tag == 0);
        let has_sent_init = [is_init, false];
        is_valid.then_some(Self { tags, offered: [0; 2], state, has_sent_init, other_heartbeat: None })
    }

    /// How far the association is after an answer. As in Linux, it may be evicted from SHUTDOWN on.
    pub(crate) const fn stage(&self) -> Stage {
        match self.state {
            SctpState::CookieWait | SctpState::CookieEchoed | SctpState::HeartbeatSent => Stage::HalfOpen,
            SctpState::Established => Stage::Open,
            _ => Stage::Closed,
        }
    }

    /// Whether an ICMP error may be about a packet of this end with this tag (RFC 9260 section 10). That of an INIT
    /// chunk is 0.
    pub(crate) fn may_have_sent(&self, end: usize, tag: u32) -> bool {
        tag == 0 || [self.tags[end], self.offered[end]].contains(&tag) || self.tags[end] == 0
    }

    /// Handles a packet of the end that began the association (0), or of the other one (1).
    pub(crate) fn handle(&mut self, from: usize, packet: &SctpPacket<'_>) -> Handled {
        let mut after = *self;
        match after.follow(from, packet) {
            Some(handled) => {
                *self = after;
                handled
            }
            None => Handled::Invalid,
        }
    }

    /// Follows a packet; `None` if it cannot belong to the association.
    fn follow(&mut self, from: usize, packet: &SctpPacket<'_>) -> Option<Handled> {
        if packet.kinds & WITH_RULES == 0 && !self.has_tag(from, packet) {
            return None;
        }
        let mut handled = Handled::Valid;
        for chunk in packet.chunks() {
            let is_of_other_tag = match chunk.kind {
                kind::HEARTBEAT => self.heartbeat(from, packet.tag),
                kind::HEARTBEAT_ACK => self.heartbeat_ack(from, packet.tag)?,
                _ => false,
            };
            if is_of_other_tag {
                // Once in a packet without data. It does not lengthen the association's life.
                if packet.has(kind::DATA) || handled == Handled::WithoutRefresh {
                    return None;
                }
                handled = Handled::WithoutRefresh;
                continue;
            }
            self.check(from, packet, &chunk)?;
            let before = self.state;
            self.state = next(before, from, chunk.kind)?;
            let is_repeated = chunk.kind == kind::INIT && (before, self.state) == CLOSED_TWICE;
            if is_repeated {
                handled = Handled::WithoutRefresh;
            }
        }
        Some(handled)
    }

    /// Whether a packet without chunks of their own rules has a tag of its direction.
    fn has_tag(&self, from: usize, packet: &SctpPacket<'_>) -> bool {
        let answers_init = packet.has(kind::INIT_ACK) && self.offers(from, packet.tag);
        packet.tag == self.tags[from] || answers_init
    }

    /// Whether an INIT chunk, or its answer, has offered this tag for this direction of an open association.
    const fn offers(&self, from: usize, tag: u32) -> bool {
        self.state.is_open() && tag != 0 && self.offered[from] == tag
    }

    /// Checks the tag of a chunk, and notes new tags.
    fn check(&mut self, from: usize, packet: &SctpPacket<'_>, chunk: &Chunk<'_>) -> Option<()> {
        let (tag, other) = (packet.tag, 1 - from);
        match chunk.kind {
            kind::INIT if tag != 0 => return None,
            kind::INIT => self.init(from, chunk.offers()?),
            kind::INIT_ACK => self.init_ack(from, tag, chunk.offers()?)?,
            kind::ABORT | kind::SHUTDOWN_COMPLETE => {
                let direction = if chunk.flags & REFLECTED == 0 { from } else { other };
                if tag != self.tags[direction] {
                    return None;
                }
            }
            kind::COOKIE_ECHO if self.offers(from, tag) && self.offered[other] != 0 => {
                (self.tags, self.offered) = (self.offered, [0; 2]);
                self.state = SctpState::CookieEchoed;
            }
            kind::COOKIE_ECHO if tag != self.tags[from] => return None,
            kind::COOKIE_ACK => self.has_sent_init = [false; 2],
            _ => {}
        }
        Some(())
    }

    fn init(&mut self, from: usize, offered: u32) {
        let other = 1 - from;
        if self.state.is_open() {
            self.offered[other] = offered;
            return;
        }
        if self.has_sent_init == [true; 2] {
            self.has_sent_init[other] = false;
        }
        self.has_sent_init[from] = true;
        self.tags[other] = offered;
    }

    fn init_ack(&mut self, from: usize, tag: u32, offered: u32) -> Option<()> {
        let other = 1 - from;
        if tag != self.tags[from] {
            self.offered[other] = offered;
            return Some(());
        }
        let known = self.tags[other];
        let is_stray = !self.has_sent_init[other] && known != 0;
        let is_collision = self.has_sent_init == [true; 2];
        if (is_stray || is_collision) && known != offered {
            return None;
        }
        self.tags[other] = offered;
        Some(())
    }

    /// Whether a HEARTBEAT has another tag than its direction.
    fn heartbeat(&mut self, from: usize, tag: u32) -> bool {
        if self.tags[from] == 0 {
            self.tags[from] = tag;
        } else if self.tags[from] == tag {
            self.other_heartbeat = None;
        } else {
            self.other_heartbeat = Some(from == 1);
            return true;
        }
        false
    }

    /// An answer to such a HEARTBEAT has the tag from now on. Returns false, or `None` if it answers nothing.
    fn heartbeat_ack(&mut self, from: usize, tag: u32) -> Option<bool> {
        if self.tags[from] == 0 {
            self.tags[from] = tag;
        } else if self.tags[from] == tag {
            self.other_heartbeat = None;
        } else {
            let answers = self.other_heartbeat == Some(from == 0);
            if !answers {
                return None;
            }
            self.other_heartbeat = None;
            (self.tags[from], self.tags[1 - from]) = (tag, 0);
        }
        Some(false)
    }

    /// As in the record of a [`SavedConnection`](crate::SavedConnection).
    pub(crate) fn to_bytes(self) -> [u8; SAVED_SCTP] {
        let mut bytes = [0; SAVED_SCTP];
        let ([a, b], [c, d]) = (self.tags, self.offered);
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip([a, b, c, d]) {
            *place = word.to_le_bytes();
        }
        let [first, second] = self.has_sent_init.map(u8::from);
        let heartbeat = self.other_heartbeat.map_or(0, |by_second| 1 + u8::from(by_second));
        bytes[16..].copy_from_slice(&[self.state as u8, first, second, heartbeat]);
        bytes
    }

    /// Undoes [`Sctp::to_bytes`]; `None` for what no association has.
    pub(crate) fn from_bytes(bytes: &[u8; SAVED_SCTP]) -> Option<Self> {
        let [.., state, first @ (0 | 1), second @ (0 | 1), heartbeat @ 0..3] = *bytes else { return None };
        let words = bytes.as_chunks().0;
        let word = |n: usize| u32::from_le_bytes(words[n]);
        Some(Self {
            tags: [word(0), word(1)],
            offered: [word(2), word(3)],
            state: *SctpState::ALL.get(usize::from(state))?,
            has_sent_init: [first == 1, second == 1],
            other_heartbeat: heartbeat.checked_sub(1).map(|by_second| by_second == 1),
        })
    }
}

/// What a repeated INIT does to the state.
const CLOSED_TWICE: (SctpState, SctpState) = (SctpState::Closed, SctpState::Closed);
