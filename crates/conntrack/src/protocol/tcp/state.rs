// SPDX-License-Identifier: Apache-2.0
//! [`TcpState`]: the state of both ends together, with the names and time-outs of Linux.

use crate::config::Timeouts;

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
    pub(crate) const ALL: [Self; 8] = [
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Closed,
    ];

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
