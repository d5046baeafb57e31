// SPDX-License-Identifier: Apache-2.0
//! The states of associations, and how chunks change them.

use super::packet::kind;
use crate::config::Timeouts;

/// The state of an SCTP association, for both ends together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SctpState {
    /// INIT, and what follows the end of an association.
    Closed,
    /// INIT was answered by INIT ACK.
    CookieWait,
    /// COOKIE ECHO.
    CookieEchoed,
    /// COOKIE ACK.
    Established,
    /// The end that began it has sent SHUTDOWN.
    ShutdownSent,
    /// The other end has.
    ShutdownReceived,
    /// SHUTDOWN was acknowledged.
    ShutdownAckSent,
    /// HEARTBEAT has begun it.
    HeartbeatSent,
}

impl SctpState {
    pub(crate) const ALL: [Self; 8] = [
        Self::Closed,
        Self::CookieWait,
        Self::CookieEchoed,
        Self::Established,
        Self::ShutdownSent,
        Self::ShutdownReceived,
        Self::ShutdownAckSent,
        Self::HeartbeatSent,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::CookieWait => "cookie-wait",
            Self::CookieEchoed => "cookie-echoed",
            Self::Established => "established",
            Self::ShutdownSent => "shutdown-sent",
            Self::ShutdownReceived => "shutdown-recd",
            Self::ShutdownAckSent => "shutdown-ack-sent",
            Self::HeartbeatSent => "heartbeat-sent",
        }
    }

    pub(crate) const fn timeout(self, timeouts: &Timeouts) -> u32 {
        match self {
            Self::Closed => timeouts.sctp_closed,
            Self::CookieWait => timeouts.sctp_cookie_wait,
            Self::CookieEchoed => timeouts.sctp_cookie_echoed,
            Self::Established => timeouts.sctp_established,
            Self::ShutdownSent => timeouts.sctp_shutdown_sent,
            Self::ShutdownReceived => timeouts.sctp_shutdown_recd,
            Self::ShutdownAckSent => timeouts.sctp_shutdown_ack_sent,
            Self::HeartbeatSent => timeouts.sctp_heartbeat_sent,
        }
    }

    /// Whether both ends may be in the association.
    pub(super) const fn is_open(self) -> bool {
        !matches!(self, Self::Closed | Self::CookieWait | Self::HeartbeatSent)
    }
}

/// The state after a chunk of an end; `None` if the chunk cannot come.
pub(super) const fn next(state: SctpState, from: usize, chunk: u8) -> Option<SctpState> {
    use SctpState::{
        Closed, CookieEchoed, CookieWait, Established, HeartbeatSent, ShutdownAckSent, ShutdownReceived,
        ShutdownSent,
    };
    Some(match (state, from, chunk) {
        (HeartbeatSent, 0, kind::INIT) => CookieWait,
        (HeartbeatSent, 0, kind::SHUTDOWN_ACK) => ShutdownAckSent,
        (HeartbeatSent, 1, kind::HEARTBEAT_ACK) => Established,
        (HeartbeatSent, _, kind::HEARTBEAT | kind::HEARTBEAT_ACK) => state,
        (HeartbeatSent, 0, kind::INIT_ACK | kind::ABORT..=kind::COOKIE_ACK | kind::SHUTDOWN_COMPLETE) => {
            Closed
        }
        (
            HeartbeatSent,
            _,
            kind::INIT | kind::INIT_ACK | kind::ABORT..=kind::COOKIE_ACK | kind::SHUTDOWN_COMPLETE,
        ) => {
            return None;
        }
        (_, _, kind::ABORT) => Closed,
        (Closed, 1, kind::INIT_ACK) => CookieWait,
        (CookieWait, _, kind::COOKIE_ECHO) => CookieEchoed,
        (CookieEchoed, _, kind::COOKIE_ACK) => Established,
        // A stale cookie.
        (CookieEchoed, 1, kind::ERROR) => Closed,
        (Established, 0, kind::SHUTDOWN) => ShutdownSent,
        (Established, _, kind::SHUTDOWN) => ShutdownReceived,
        (ShutdownSent | ShutdownReceived, _, kind::SHUTDOWN_ACK) => ShutdownAckSent,
        (ShutdownAckSent, _, kind::SHUTDOWN_COMPLETE) => Closed,
        _ => state,
    })
}
